"""What FastDeploy's stream generators keep of a choice."""

from __future__ import annotations

import json
from typing import Any


class Seen:
    """Tokens, times and calls of a choice, from result to result."""

    def __init__(self) -> None:
        self.tokens = self.reasoning = 0
        self.start: Any = 0
        self.has_called = False

    def arrival(self, metrics: dict[str, Any]) -> Any:
        """The time of a result; the first one has its own."""
        if self.start == 0:
            self.start = metrics["inference_start_time"]
            return metrics["first_token_time"]
        return metrics["engine_recv_latest_token_time"] - self.start

    def add(self, outputs: dict[str, Any]) -> None:
        """Count a result's tokens."""
        self.tokens += len(outputs["token_ids"])
        self.reasoning += outputs.get("reasoning_token_num", 0)
        self.has_called |= outputs["tool_calls"] is not None

    def reason(self, result: dict[str, Any], most: int | None) -> str:
        """Why the choice has ended."""
        said = result.get("error_msg") or ""
        if "Aborted" in said:
            return "abort"
        return "length" if self.tokens == most else "tool_calls" if self.has_called else "stop"


def index_of(result: dict[str, Any]) -> int:
    """The choice that a result belongs to."""
    name = result["request_id"]
    return int(name.rpartition("_")[2] if "::n::" not in name else name.rpartition("::n::")[2])


def event(model: Any) -> str:
    """A chunk of a stream."""
    return f"data: {model.model_dump_json(exclude_unset=True)}\n\n"


def failed(error: Exception) -> str:
    """The chunk of a stream that fails."""
    return f"data: {json.dumps({'error': str(error)})}\n\n"

"""What FastDeploy's generators keep of a choice."""

from __future__ import annotations

import base64
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
        self.has_called |= outputs.get("tool_calls") is not None

    def reason(self, result: dict[str, Any], most: int | None) -> str:
        """Why the choice has ended."""
        said = result.get("error_msg") or ""
        if "Aborted" in said:
            return "abort"
        return "length" if self.tokens == most else "tool_calls" if self.has_called else "stop"

    @staticmethod
    def shows(request: Any) -> bool:
        """Whether a request shows the draft's log-probabilities, too."""
        return bool(getattr(request, "include_draft_logprobs", False))


class Whole(Seen):
    """A choice of an answer that is not streamed, and what it will show."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Any] = []
        self.drafts: list[Any] = []
        self.masks: list[Any] = []
        self.prompt: Any = []
        self.rows: tuple[list[list[Any]], ...] = ([[], [], []], [[], [], []])
        self.last: dict[str, Any] = {}

    def keep(self, outputs: dict[str, Any], request: Any) -> None:
        """Add a result's rows to the others, as completions do."""
        for key, rows in zip(("top_logprobs", "draft_top_logprobs"), self.rows, strict=True):
            if not outputs.get("top_logprobs") or (rows is self.rows[1] and not self.shows(request)):
                break
            for into, more in zip(rows, outputs.get(key) or (), strict=False):
                into.extend(more)

    def mask(self, mask: Any) -> None:
        """Add a sampling mask, of one token or of several."""
        if mask is not None:
            self.masks += mask if mask and isinstance(mask[0], list) else [mask]


def columns_of(client: Any, asked: int | None) -> int | None:
    """How many candidates a request asks for; -1: all."""
    return client.ori_vocab_size if asked == -1 else asked


def encoded(experts: Any) -> str | None:
    """Routed experts as an answer shows them."""
    if experts is None:
        return None
    import numpy as np

    return base64.b64encode(np.array(experts).tobytes()).decode()


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

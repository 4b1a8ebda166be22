"""This module counts fallbacks to FastDeploy's own code by reason, for the log and Prometheus."""

from __future__ import annotations

from typing import Any

from ..logs import api_log
from .chunks._chunks import forget_totals, tell_notes_to

_counters: dict[str, Any] = {}


def begin() -> None:
    """Begin to count; what came before is forgotten."""
    forget_totals()
    tell_notes_to(_tell)


def _tell(reason: str, count: int) -> None:
    """Count a note; log a reason the first time, the tenth, the hundredth, ..."""
    total = counter(
        "api_left", "How often fd_postproc left part of an answer to FastDeploy's own code", "reason"
    )
    if total is not None:
        total.labels(reason).inc()
    if str(count).strip("0") == "1":
        times = "once" if count == 1 else f"{count} times"
        api_log().info(f"fd_postproc: API side left to FastDeploy's own code {times}: {reason}")


def counter(name: str, text: str, label: str) -> Any:
    """The metric ``fd_postproc_NAME_total{LABEL=...}``; None in a process without prometheus_client."""
    if name not in _counters:
        try:
            from prometheus_client import Counter

            _counters[name] = Counter(f"fd_postproc_{name}", text, [label])
        except (ImportError, OSError, ValueError):  # none, no file to share, or the name is taken
            _counters[name] = None
    return _counters[name]

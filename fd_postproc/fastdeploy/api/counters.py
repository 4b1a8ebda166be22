"""How often FastDeploy's own way was taken, by reason: for the log, and for whoever watches the service."""

from __future__ import annotations

from typing import Any

from ..logs import api_log
from ._chunks import forget_totals, tell_notes_to

_counter: Any = None


def begin() -> None:
    """Count from now on: what a trial did is forgotten."""
    forget_totals()
    tell_notes_to(_tell)


def stop() -> None:
    """Tell nobody: a trial is about to run."""
    tell_notes_to(None)


def _tell(reason: str, count: int) -> None:
    """Called for each note.  A log line at the first of a reason, at the tenth, the hundredth, ..."""
    counter = _metric()
    if counter is not None:
        counter.labels(reason).inc()
    if str(count).strip("0") == "1":
        times = "once" if count == 1 else f"{count} times"
        api_log().info(f"fd_postproc: API side left to FastDeploy's own code {times}: {reason}")


def _metric() -> Any:
    """``fd_postproc_api_left_total{reason=...}``; None in a process without prometheus_client."""
    global _counter
    if _counter is None:
        try:
            from prometheus_client import Counter

            _counter = Counter(
                "fd_postproc_api_left",
                "How often fd_postproc left part of an answer to FastDeploy's own code",
                ["reason"],
            )
        except (ImportError, OSError, ValueError):  # none, no file to share, or the name is taken
            _counter = False
    return _counter or None

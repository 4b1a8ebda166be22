"""The table of all counters, for Prometheus, and what is left to FastDeploy's own code.

Only counters of prometheus_client's own reach a scrape in FastDeploy's multi-process mode.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .log import api_log

TOTALS = {
    "steps": "Decode steps that were processed",
    "results": "Results that were made",
    "malformed": "Messages that were refused",
    "corrupt": "Messages of these that were compact frames with a wrong checksum",
    "foreign": "Messages of these that were compact frames of another service",
    "incomplete": "Compact frames that never became whole",
    "missing": "Compact frames that did not come between others, incomplete and refused ones among them",
    "doubled": "Compact frames whose number had come already",
    "reordered": "Compact frames that came after later ones of their sender",
    "stale": "Messages of an earlier run that were dropped",
    "lost_steps": "Steps that were lost to an exception",
    "undelivered": "Results that could not be put into the scheduler, by its own method either",
    "failed_requests": "Requests that ended with an error of the token processor",
    "unpaired_drafts": "Results that were sent without draft log-probabilities: none came in time",
    "api_process_gone_requests": "Requests that nobody reads, because their API process was gone",
    "receive_seconds": "Time to receive and decode steps, and between steps, waiting included",
    "wait_seconds": "Time of it that was waiting for the worker",
    "build_seconds": "Time to make results, waiting for sampling masks included",
    "put_seconds": "Time to deliver results to the scheduler",
}
"""Text of each counter ``fd_postproc_NAME_total`` of the engine's work."""
LABELLED = {
    "fallbacks": ("seam", "How often a part of fd_postproc raised and FastDeploy's own took over"),
    "api_left": ("reason", "How often fd_postproc left part of an answer to FastDeploy's own code"),
    "mended": ("kind", "How often fd_postproc kept what FastDeploy would have lost"),
    "engine_gone_requests": (
        "outcome",
        "Requests that fd_postproc ended or refused because the engine's process was gone",
    ),
    "dispatcher_down_requests": (
        "outcome",
        "Requests that fd_postproc ended or refused because an API process could not receive results",
    ),
    "api_dispatcher_faults": (
        "kind",
        "Faults after which an API process's dispatcher went on: what could not be read, or raised",
    ),
}
"""Label and text of each counter ``fd_postproc_NAME_total{LABEL=...}``."""

_made: dict[str, Any] = {}


def counter(name: str) -> Any:
    """The metric ``fd_postproc_NAME_total``; None in a process without prometheus_client."""
    if name not in _made:
        *labels, text = LABELLED.get(name) or (TOTALS[name],)
        try:
            from prometheus_client import Counter

            _made[name] = Counter(f"fd_postproc_{name}", text, labels)
        except (ImportError, OSError, ValueError):  # none, no file to share, or the name is taken
            _made[name] = None
    return _made[name]


def count(name: str, value: str, amount: int = 1) -> None:
    """Add to a counter of `LABELLED`, by the value of its label."""
    total = counter(name)
    if total is not None and amount:
        total.labels(value).inc(amount)


_left: Counter[str] = Counter()


def note(reason: str) -> None:
    """Count one use of FastDeploy's own code; log a reason the first time, the tenth, the hundredth, ..."""
    _left[reason] += 1
    count("api_left", reason)
    if str(_left[reason]).strip("0") == "1":
        times = "once" if _left[reason] == 1 else f"{_left[reason]} times"
        api_log().info(f"fd_postproc: API side left to FastDeploy's own code {times}: {reason}")


def noted() -> dict[str, int]:
    """How often each reason was noted in this process."""
    return dict(_left)


def forget() -> None:
    """Reset the counts of reasons to zero."""
    _left.clear()

"""This module counts fallbacks to FastDeploy's own code by reason, for the log and Prometheus."""

from __future__ import annotations

from .. import logs, notes


def begin() -> None:
    """Begin to count; what came before is forgotten."""
    notes.forget()
    notes.tell_notes_to(_tell)


def _tell(reason: str, count: int) -> None:
    """Count a note; log a reason the first time, the tenth, the hundredth, ..."""
    logs.count(
        "api_left", "How often fd_postproc left part of an answer to FastDeploy's own code", "reason", reason
    )
    if str(count).strip("0") == "1":
        times = "once" if count == 1 else f"{count} times"
        logs.api_log().info(f"fd_postproc: API side left to FastDeploy's own code {times}: {reason}")

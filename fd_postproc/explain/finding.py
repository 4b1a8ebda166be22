"""One fault, as `findings` returns it."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from .timeline import Picture

ERROR, WARNING, INFO = "error", "warning", "info"


class Finding(NamedTuple):
    """One fault.

    Attributes
    ----------
    severity : {"error", "warning", "info"}
    code : str
        A word of `fd_postproc.faults.FAULTS`.
    at : float
        Monotonic seconds.
    text : str
        Without the time.
    """

    severity: str
    code: str
    at: float
    text: str


def as_dict(finding: Finding, picture: Picture) -> dict[str, Any]:
    """The finding as a dictionary for JSON."""
    return {
        "severity": finding.severity, "code": finding.code, "seconds_ago": round(picture.end - finding.at, 6),
        "time": picture.clock(finding.at), "text": finding.text,
    }  # fmt: skip


def span(seconds: float) -> str:
    """A time as text."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def errno_text(code: int) -> str:
    """The meaning of an error number of the kernel."""
    return os.strerror(code) if 0 < code < 4096 else f"error {code}"

"""This module notes what is left to FastDeploy's own code, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .gate.seams import Refused


class NotPlain(Refused):
    """Raised for code or an object of FastDeploy's that does more than is known here; it stays in use."""


_counts: Counter[str] = Counter()
_listener: Callable[[str, int], None] | None = None


def note(reason: str) -> None:
    """Count one use of FastDeploy's own code, or one stand-in that became a full model."""
    _counts[reason] += 1
    if _listener is not None:
        _listener(reason, _counts[reason])


def tell_notes_to(listener: Callable[[str, int], None] | None) -> None:
    """Set the function that receives each reason and its count; None removes it."""
    global _listener
    _listener = listener


def noted() -> dict[str, int]:
    """How often each reason was noted in this process."""
    return dict(_counts)


def forget() -> None:
    """Reset the counts to zero."""
    _counts.clear()

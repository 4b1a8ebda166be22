"""Keeps FastDeploy's sender waiting in the scheduler until results come.

FastDeploy's local scheduler wakes the waiting threads when it gets results, but lets none wait for
longer than a millisecond; the sender then sleeps for 5 ms before it asks again, and a step that comes
meanwhile lies there.  With a long wait a step leaves when it is put, and an idle engine is not woken 150
times a second.
"""

from __future__ import annotations

from typing import Any

from ....support.environment import KEEP_POLLING, is_on
from ...gate.judgements import gate
from ...gate.replacements import Replacement

LONGEST_WAIT_S = 0.5
"""Seconds within which a thread notices that it is to end."""

TIMEOUT = "wait_response_timeout"


class WakeUp:
    """The longer wait of a scheduler: `begin` sets it, `end` restores."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = waits_in(scheduler)
        self._replacement: Replacement | None = None

    def begin(self) -> str:
        """Set the long wait, unless it is long already, or the environment forbids it.

        The text for the log says what was changed; it is empty if nothing was.
        """
        if self._scheduler is None or self._replacement is not None or is_on(KEEP_POLLING):
            return ""
        before = getattr(self._scheduler, TIMEOUT)
        if before >= LONGEST_WAIT_S:
            return ""
        self._replacement = Replacement("wake-up", (self._scheduler, TIMEOUT, LONGEST_WAIT_S)).install()
        return (
            f"results are sent when they are put: the scheduler's wait for them is {LONGEST_WAIT_S:g} s "
            f"instead of {before:g} s ({KEEP_POLLING}=1 leaves it)"
        )

    @property
    def is_installed(self) -> bool:
        """Whether the scheduler waits longer than FastDeploy made it."""
        return self._replacement is not None

    def end(self) -> None:
        """Restore the wait, unless other code has changed it since."""
        if self._replacement is not None:
            self._replacement.restore()
        self._replacement = None


def waits_in(scheduler: Any) -> Any | None:
    """The scheduler, or its inner one, whose ``get_results`` uses its attribute as the time limit.

    The data-parallel scheduler keeps a local one, which its own thread asks.  None unless the code of its
    class is known.
    """
    for one in (scheduler, getattr(scheduler, "_scheduler", None)):
        if isinstance(getattr(one, TIMEOUT, None), (int, float)) and is_woken(type(one)):
            return one
    return None


def is_woken(cls: type) -> bool:
    """Whether a scheduler's class waits for that time limit, or until a put wakes it."""
    return gate.judge("wake-up", cls).reason is None

"""Keeps FastDeploy's sender waiting in the scheduler until results come.

FastDeploy's local scheduler wakes the waiting threads when it gets results, but lets none wait for
longer than a millisecond; the sender then sleeps for 5 ms before it asks again, and a step that comes
meanwhile lies there.  With a long wait a step leaves when it is put, and an idle engine is not woken 150
times a second.
"""

from __future__ import annotations

import types
from typing import Any

from ....environment import KEEP_POLLING, is_on
from ...seams import Replacement
from ..results._results import Plan
from .trial import NAMES, fake_scheduler

LONGEST_WAIT_S = 0.5
"""Seconds within which a thread notices that it was told to end."""

TIMEOUT, CONDITION = "wait_response_timeout", "responses_not_empty"


class WakeUp:
    """The longer wait of a scheduler: `begin` sets it, `end` restores.

    Parameters
    ----------
    scheduler : object
        FastDeploy's, or whatever stands in its place.
    plan : Plan
    """

    def __init__(self, scheduler: Any, plan: Plan) -> None:
        self._scheduler = waits_in(scheduler, plan)
        self._replacement: Replacement | None = None

    def begin(self) -> str:
        """Set the long wait, unless it is long already, or the environment forbids it.

        Returns
        -------
        str
            For the log: what was changed; empty if nothing was.
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

    def end(self) -> None:
        """Restore the wait, unless other code has changed it since."""
        if self._replacement is not None:
            self._replacement.restore()
        self._replacement = None


def waits_in(scheduler: Any, plan: Plan) -> Any | None:
    """The scheduler, or its inner one, whose ``get_results`` uses its attribute as the time limit.

    The data-parallel scheduler keeps a local one, which its own thread asks.

    Returns
    -------
    object or None
        None unless a trial shows that the attribute decides, and that ``put_results`` ends the wait.
    """
    for one in (scheduler, getattr(scheduler, "_scheduler", None)):
        if isinstance(getattr(one, TIMEOUT, None), (int, float)) and is_woken(type(one), vars(one), plan):
            return one
    return None


def is_woken(cls: type, attributes: dict[str, Any], plan: Plan) -> bool:
    """Whether a scheduler class waits for that time limit, or until a put wakes it.

    Parameters
    ----------
    cls : type
    attributes : dict
        Of an instance.  The trial is made on another one, with tables and a condition of its own.
    plan : Plan
    """
    try:
        names = set(_code(cls, "get_results").co_names)
        return {TIMEOUT, CONDITION} <= names and _try(cls, attributes, plan)
    except Exception:  # another scheduler, whatever it is
        return False


def _code(cls: type, name: str) -> types.CodeType:
    function = getattr(cls, name)
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"{cls.__name__}.{name} is no function")
    return function.__code__


def _try(cls: type, attributes: dict[str, Any], plan: Plan) -> bool:
    scheduler = fake_scheduler(cls, attributes)
    before = len(scheduler.get_results())
    scheduler.put_results([plan.new_result(0, 1, NAMES[0], 3, None)])
    after = len(scheduler.get_results())
    wait = getattr(scheduler, TIMEOUT)
    return (before, after, scheduler.responses_not_empty.rung) == (0, 1, [wait, True, wait])

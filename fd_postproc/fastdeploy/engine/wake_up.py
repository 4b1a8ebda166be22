"""How long FastDeploy's sender waits for results in the scheduler: until they come.

FastDeploy's local scheduler wakes whoever waits for results when it gets some, but lets nobody wait for
longer than a millisecond; the sender then sleeps for 5 ms before it asks again, and a step that comes
meanwhile lies there.  With a long wait a step leaves when it is put, and an idle engine is not woken 150
times a second.
"""

from __future__ import annotations

import threading
import types
from typing import Any

from ...environment import KEEP_POLLING, is_on
from ._results import Plan

LONGEST = 0.5
"""Seconds: as long as a thread that was told to end may take to notice."""

TIMEOUT, CONDITION = "wait_response_timeout", "responses_not_empty"


class WakeUp:
    """The wait of a scheduler, made long by `begin` and given back by `end`.

    Parameters
    ----------
    scheduler : object
        FastDeploy's, or whatever stands in its place.
    plan : Plan
    """

    def __init__(self, scheduler: Any, plan: Plan) -> None:
        self._scheduler = waits_in(scheduler, plan)
        self._before: float | None = None

    def begin(self) -> str:
        """Make the wait long, unless it is long already, or the environment forbids it.

        Returns
        -------
        str
            For the log: what was changed; empty if nothing was.
        """
        if self._scheduler is None or self._before is not None or is_on(KEEP_POLLING):
            return ""
        before = getattr(self._scheduler, TIMEOUT)
        if before >= LONGEST:
            return ""
        self._before = before
        setattr(self._scheduler, TIMEOUT, LONGEST)
        return (
            f"results are sent when they are put: the scheduler's wait for them is {LONGEST:g} s instead of "
            f"{before:g} s ({KEEP_POLLING}=1 leaves it)"
        )

    def end(self) -> None:
        """Give the wait back as it was, if nobody has changed it since."""
        if self._before is not None and getattr(self._scheduler, TIMEOUT) == LONGEST:
            setattr(self._scheduler, TIMEOUT, self._before)
        self._before = None


def waits_in(scheduler: Any, plan: Plan) -> Any | None:
    """The scheduler, or the one inside it, whose ``get_results`` waits as long as its attribute says.

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
    """Whether schedulers of a class wait for results as long as their attribute says, or until some are put.

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


class _Condition:
    """A condition that does not wait, and notes how long it would have, and whether it was notified."""

    def __init__(self, mutex: Any) -> None:
        self.mutex = mutex
        self.waits: list[Any] = []
        self.rung: list[bool] = []

    def __enter__(self) -> Any:
        return self.mutex.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.mutex.__exit__(*error)

    def wait_for(self, predicate: Any, timeout: Any = None) -> Any:
        if len(self.waits) > 2:
            raise RuntimeError("this scheduler waits again and again")
        self.waits.append(timeout)
        return predicate()

    def notify_all(self) -> None:
        self.rung.append(self.mutex.locked())


def _try(cls: type, attributes: dict[str, Any], plan: Plan) -> bool:
    scheduler: Any = object.__new__(cls)
    mutex = threading.Lock()
    condition, wait = _Condition(mutex), 12.5
    vars(scheduler).update(
        attributes,
        mutex=mutex,
        requests={"one": object()},
        responses={},
        batch_responses_per_step=[],
        **{CONDITION: condition, TIMEOUT: wait},
    )
    before = len(scheduler.get_results())
    scheduler.put_results([plan.new_result(0, 1, "one", 3, None)])
    after = len(scheduler.get_results())
    return (before, after, condition.waits, condition.rung) == (0, 1, [wait, wait], [True])

"""Judges whether the results that are made leave the engine, from one look and those before it."""

from __future__ import annotations

from typing import Any, NamedTuple

from .liveness import Health

LEAVES_S = 1.0
"""Seconds within which something has to leave, if there is anything."""

_A_LOOK_S = 0.6
"""Most seconds that count between two looks: if this process was stopped meanwhile, its sender was, too."""


class Outlet(NamedTuple):
    """State of the way out at one look."""

    now: float  # monotonic seconds
    table: Any  # results by request, until a thread takes the whole table; None or empty: none wait
    puts: tuple[int, int] = (0, 0)  # steps that were put into the scheduler so far; those that failed
    sends: tuple[int, int] = (0, 0)  # messages that were sent so far; those that could not be


class Outflow:
    """Judge of the way out: nothing of what was made has left for a second.

    What a stream interval holds back is not in the table.  Each sender, FastDeploy's own as well, puts an
    empty table instead of the one that it takes.
    """

    def __init__(self) -> None:
        self._looked: float | None = None
        self._table: Any = None  # as it was at the last look, if something was in it
        self._waited = 0.0  # seconds for which that has been there
        self._failing = {"put": _Failing(), "send": _Failing()}

    def look(self, outlet: Outlet) -> Health | None:
        """The fault; None if there is none."""
        gap = 0.0 if self._looked is None else min(max(outlet.now - self._looked, 0.0), _A_LOOK_S)
        self._looked = outlet.now
        if not outlet.table:
            self._table, self._waited = None, 0.0
        elif outlet.table is self._table:
            self._waited += gap
        else:
            self._table, self._waited = outlet.table, 0.0
        putting = self._failing["put"].lasts(*outlet.puts, gap)
        sending = self._failing["send"].lasts(*outlet.sends, gap)
        if putting:
            return Health("undelivered", "results are made, and none can be put into the scheduler")
        if sending:
            return Health("undelivered", "results are made, and none can be sent to the API server")
        if self._waited > LEAVES_S:
            text = f"results have waited for {self._waited:.1f} s, and nobody takes them out of the scheduler"
            return Health("undelivered", f"{text}: its sender has ended, or hangs")
        return None


class _Failing:
    """Seconds of failures since the last success; a fault that lasts stays one until it works."""

    def __init__(self) -> None:
        self._worked, self._failed, self._seconds = 0, 0, 0.0

    def lasts(self, worked: int, failed: int, gap: float) -> bool:
        if worked != self._worked:
            self._seconds = 0.0
        elif failed != self._failed:
            self._seconds += gap
        self._worked, self._failed = worked, failed
        return self._seconds > LEAVES_S

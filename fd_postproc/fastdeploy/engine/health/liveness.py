"""Judges whether steps come as they should, from one look and those before it.

A worker that sends nothing may be at work: it compiles a kernel for a new shape, or rearranges experts.
Its CPU time separates that from sleep.  It does not separate work from a spin lock, or a wait for a GPU that
never ends: so work counts for a limited time only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ....support.patience import LONGEST_S, SILENCE_S, USUAL_TIMES, WORKS

_FORGET = 0.98  # of what is usual, at each look
_REFUSALS = 3  # consecutive refused messages that count as a fault of the worker
_REFUSED_S = 2.0  # seconds without a step that do, after refused messages or a removed queue
_GONE_S = 2.0  # seconds without a worker that are a fault while nothing runs: a stop may end it first
_WINDOW_S = 0.5  # seconds at least over which the worker's CPU time is compared

REASONS = (
    *("thread", "step", "queue", "worker", "stopped", "silent", "removed", "refused"),
    *("undelivered", "other-service", "two-readers"),
)
"""Label values of the engine process's gauge; ``engine`` is the API server's, and `ENDING`'s."""

ENDING = "engine"
"""Reason of a process that hangs in its exit; for clients it is one that is gone."""

BUSY = "busy"
"""Reason that is no fault: the worker sends nothing, and is at work.  It has a gauge of its own."""


class Health(NamedTuple):
    """Reason for bad health: one of `REASONS`, or `BUSY`, and the same for a person."""

    reason: str
    text: str


class Sight(NamedTuple):
    """State of the queue and the requests at one look."""

    now: float  # monotonic seconds
    steps: int  # total
    refused: int  # total
    running: Mapping[str, int]  # tokens of each request that has a slot
    known: frozenset[str]  # requests that have had a token and are not over, running or not
    engine_busy: bool = False  # whether results wait for something else than the worker: a cache transfer
    worker: int = 0  # process that sent the last step; 0: unknown
    state: str = ""  # its state as in /proc/PID/stat; empty if there is no such process, or it is unknown
    cpu: float | None = None  # seconds of CPU time of it and its children so far; None: not asked, or unknown
    refused_by_worker: bool = True  # whether what was refused may be the worker's
    refusal: str = ""  # what was wrong with the message that was refused last
    removed: bool = False  # whether the queue was removed, and no step has come since


class Liveness:
    """Judge of the worker's liveness, which looks periodically.

    While a request has had no token since it got its slot, its prefill may be under way, for which all
    others wait: then only a worker that has ended or was stopped is a death, up to `prefill` seconds.
    Silence of up to `floor` seconds is never a death; infinite: silence is none.  Nor is that of a worker at
    work, up to `prefill` seconds.

    Attributes
    ----------
    steps : int
        Steps at the last look.  A `Sight` of as many needs the worker's CPU time.
    """

    def __init__(self, floor: float, prefill: float) -> None:
        self._floor, self._prefill = floor, prefill
        self._usual = 0.0  # seconds of a step, the longest of late
        self.steps = -1
        self._refused = 0  # at the last step
        self._since: float | None = None  # since then a step is due
        self._looked: float | None = None
        self._refused_since: float | None = None
        self._before: dict[
            str, int
        ] = {}  # by running request: its tokens when it got its slot; -1: more by now
        self._parked: frozenset[str] = frozenset()  # requests that had a slot, and have none at the moment
        self._prefilling = False
        self._measured: tuple[float, float, str] | None = None  # time, CPU time and state to compare with
        self._worked = 0.0  # when the worker was seen at work last
        self._was_busy = False  # whether it was found busy since the last step
        self._gone_since: float | None = None  # since then the worker's process is gone

    @property
    def patience(self) -> float:
        """Seconds of silence after which a worker that does not prefill counts as dead."""
        return max(self._floor, min(USUAL_TIMES * self._usual, LONGEST_S))

    def look(self, sight: Sight) -> Health | None:
        """The fault, or `BUSY`; None if there is none.

        A look that comes late says nothing of the worker: this process was stopped, or a thread held the
        GIL.  Messages may wait, so a silence is counted from now on.
        """
        if self._looked is not None and sight.now - self._looked > SILENCE_S and self._since is not None:
            self._since = sight.now
        self._looked = sight.now
        self._learn(sight)
        self._measure(sight)
        if not sight.worker or sight.state:
            self._gone_since = None
        else:
            self._gone_since = sight.now if self._gone_since is None else self._gone_since
            gone = f"the worker's process {sight.worker} is gone"
            if sight.running:
                return Health("worker", f"requests are running, and {gone}")
            if sight.now - self._gone_since >= _GONE_S:
                return Health("worker", f"{gone}; no request runs")
        if not sight.running or self._since is None:
            return None
        silent = sight.now - self._since
        who = f"the worker's process {sight.worker}" if sight.worker else "the worker"
        if sight.removed and silent > min(_REFUSED_S, self.patience):
            return Health("removed", f"the queue was removed, and {who} has sent nothing since")
        if sight.state in ("T", "t") and silent > self.patience:
            return Health("stopped", f"{who} is stopped (kill -STOP), and requests are running")
        since = self._refused_since
        if (
            since is not None
            and sight.refused_by_worker
            and (sight.now - since > _REFUSED_S or silent > self.patience)
        ):
            return Health("refused", f"no message of {who} can be read, maybe another build: {sight.refusal}")
        if sight.engine_busy or silent <= (self._prefill if self._prefilling else self.patience):
            return None
        during = "no request has had its first token" if self._prefilling else "requests are being decoded"
        text = f"{who} has sent nothing for {silent:.1f} s, and {during}"
        idle = sight.now - max(self._worked, self._since)
        if idle > self.patience:
            return Health("silent", text)
        if silent > self._prefill:
            return Health("silent", f"{text}; it takes CPU time, as a deadlock that spins does")
        if idle > 2 * _WINDOW_S and not self._was_busy:
            return None  # it ended its work before a reader needed the result
        self._was_busy = True
        return Health(BUSY, f"{text}; its CPU time says that it is at work")

    def _measure(self, sight: Sight) -> None:
        """Note whether the worker works: it takes CPU time, or the kernel works for it (state D).

        Where it gets less of a processor than it wants, it is found ready to run (R) time and again.
        """
        if sight.cpu is None:
            self._measured = None
            return
        now = sight.now, sight.cpu, sight.state
        since, cpu, state = self._measured = self._measured or now
        seconds = sight.now - since
        if seconds >= _WINDOW_S:
            self._measured = now
            if sight.cpu - cpu >= WORKS * seconds or state == sight.state == "R":
                self._worked = sight.now
        if sight.state == "D":
            self._worked = sight.now

    def _learn(self, sight: Sight) -> None:
        came = sight.steps - self.steps
        prefilling = self._first_tokens_due(sight)
        if came and self._since is not None and sight.running and not self._prefilling and self.steps >= 0:
            gap = 0.0 if self._was_busy else (sight.now - self._since) / came  # that is no usual step
            self._usual = max(gap, self._usual * _FORGET)
        if came:
            self._was_busy = False
        if came or not sight.running:
            self._refused_since, self._refused = None, sight.refused
        elif self._refused_since is None and sight.refused - self._refused >= _REFUSALS:
            self._refused_since = sight.now
        if came or not sight.running or self._since is None or (self._prefilling and not prefilling):
            self._since = sight.now
        self.steps, self._prefilling = sight.steps, prefilling

    def _first_tokens_due(self, sight: Sight) -> bool:
        """Whether a request with a slot still waits for its first token."""
        before = {}
        for name, tokens in sight.running.items():
            first = self._before.get(name)
            if first is None:  # a request that was preempted is computed anew
                first = tokens if tokens == 0 or name in self._parked else -1
            before[name] = first if tokens == first else -1
        self._parked = (self._parked.union(self._before) - before.keys()) & sight.known
        self._before = before
        return any(first >= 0 for first in before.values())

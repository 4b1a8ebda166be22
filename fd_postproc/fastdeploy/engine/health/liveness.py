"""Judges whether steps come as they should, from one look and those before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ....patience import LONGEST_S, SILENCE_S, USUAL_TIMES

_FORGET = 0.98  # of what is usual, at each look
_REFUSALS = 3  # consecutive refused messages that count as a fault of the worker
_REFUSED_S = 2.0  # seconds without a step that do, after refused messages or a removed queue

REASONS = ("thread", "step", "queue", "worker", "stopped", "silent", "removed", "refused", "undelivered")
"""Label values of the engine process's gauge; ``engine`` is the API server's."""


class Health(NamedTuple):
    """Reason for bad health: one of `REASONS`, and the same for a person."""

    reason: str
    text: str


class Sight(NamedTuple):
    """State of the queue and the requests at one look."""

    now: float  # monotonic seconds
    steps: int  # total
    refused: int  # total
    running: Mapping[str, int]  # tokens of each request that has a slot
    known: frozenset[str]  # requests that have had a token and are not over, running or not
    busy: bool = False  # whether results wait for something other than the worker, as for a cache transfer
    worker: int = 0  # process that sent the last step; 0: unknown
    state: str = ""  # its state as in /proc/PID/stat; empty if there is no such process, or it is unknown
    refused_by_worker: bool = True  # whether what was refused may be the worker's
    refusal: str = ""  # what was wrong with the message that was refused last
    removed: bool = False  # whether the queue was removed, and no step has come since


class Liveness:
    """Judge of the worker's liveness, which looks periodically.

    While a request has had no token since it got its slot, its prefill may be under way, for which all
    others wait: then only a worker that has ended or was stopped is a death, up to `prefill` seconds.
    Silence of up to `floor` seconds is never a death; infinite: silence is none.
    """

    def __init__(self, floor: float, prefill: float) -> None:
        self._floor, self._prefill = floor, prefill
        self._usual = 0.0  # seconds of a step, the longest of late
        self._steps = -1
        self._refused = 0  # at the last step
        self._since: float | None = None  # since then a step is due
        self._looked: float | None = None
        self._refused_since: float | None = None
        self._before: dict[
            str, int
        ] = {}  # by running request: its tokens when it got its slot; -1: more by now
        self._parked: frozenset[str] = frozenset()  # requests that had a slot, and have none at the moment
        self._prefilling = False

    @property
    def patience(self) -> float:
        """Seconds of silence after which a worker that does not prefill counts as dead."""
        return max(self._floor, min(USUAL_TIMES * self._usual, LONGEST_S))

    def look(self, sight: Sight) -> Health | None:
        """The fault; None if there is none.

        A look that comes late tells nothing of the worker: this process was stopped, or a thread held the
        GIL.  Messages may wait, so a silence is counted from now on.
        """
        if self._looked is not None and sight.now - self._looked > SILENCE_S and self._since is not None:
            self._since = sight.now
        self._looked = sight.now
        self._learn(sight)
        if not sight.running or self._since is None:
            return None
        silent = sight.now - self._since
        if sight.worker and not sight.state:
            return Health("worker", f"requests are running, and the worker's process {sight.worker} is gone")
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
        if silent > (self._prefill if self._prefilling else self.patience) and not sight.busy:
            during = (
                "no request has had its first token" if self._prefilling else "requests are being decoded"
            )
            return Health("silent", f"{who} has sent nothing for {silent:.1f} s, and {during}")
        return None

    def _learn(self, sight: Sight) -> None:
        came = sight.steps - self._steps
        prefilling = self._first_tokens_due(sight)
        if came and self._since is not None and sight.running and not self._prefilling and self._steps >= 0:
            self._usual = max((sight.now - self._since) / came, self._usual * _FORGET)
        if came or not sight.running:
            self._refused_since, self._refused = None, sight.refused
        elif self._refused_since is None and sight.refused - self._refused >= _REFUSALS:
            self._refused_since = sight.now
        if came or not sight.running or self._since is None or (self._prefilling and not prefilling):
            self._since = sight.now
        self._steps, self._prefilling = sight.steps, prefilling

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

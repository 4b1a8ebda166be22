"""Timeline of a flight recorder's file: rates, stages, the slowest steps, the longest gaps.

Times are monotonic seconds; `Picture.clock` makes the time of day of them.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ..flight.codes import Kind
from ..flight.reading import Event, Flight, Live, QueueEntry, StepEntry
from ..support.patience import SILENCE_S

SHOWN = 5
LATELY = 10.0  # seconds that rates are of
_MOSTLY = 0.5  # share of a gap from which one side has made it


class Gap(NamedTuple):
    """Time between the ends of two steps.

    Its side is what the next step waited for.  The engine, if it wrote nothing for most of the time (it
    looks at the queue once a second, whatever the worker does), if each look found messages in the queue, or
    if most of the time went into the step's results.  Nobody, if most looks found neither a request nor a
    message: idle time.  Else the worker: the engine waited, and the queue was empty.
    """

    at: float  # when it ended
    seconds: float
    side: str  # "worker", "engine" or "nobody"


@dataclass(frozen=True)
class Picture:
    """A recorded flight, and the time of the evaluation."""

    flight: Flight
    now: float  # monotonic seconds

    @cached_property
    def steps(self) -> list[StepEntry]:
        return [entry for entry in self.flight.entries if isinstance(entry, StepEntry)]

    @cached_property
    def queues(self) -> list[QueueEntry]:
        return [entry for entry in self.flight.entries if isinstance(entry, QueueEntry)]

    @cached_property
    def events(self) -> list[Event]:
        return [entry for entry in self.flight.entries if isinstance(entry, Event)]

    def of(self, *kinds: Kind) -> list[Event]:
        """Events of the given kinds."""
        return [event for event in self.events if event.kind in kinds]

    @property
    def is_alive(self) -> bool:
        """Whether its process still writes."""
        return self.flight.writer is not None

    @cached_property
    def first(self) -> float:
        return self.flight.entries[0].at if self.flight.entries else self.flight.began

    @cached_property
    def last(self) -> float:
        """The time of the last entry."""
        return max((entry.at for entry in self.flight.entries[-50:]), default=self.flight.began)

    @property
    def end(self) -> float:
        """The end of the known time: now, or the death of the process."""
        return max(self.now, self.last) if self.is_alive else self.last

    @cached_property
    def stop(self) -> float | None:
        """The time when the process's exit began, or its recorder ended; None if neither is recorded."""
        return next((event.at for event in self.of(Kind.CLOSED)), None)

    @property
    def state(self) -> str:
        """Whether the process runs, is ending or has ended, for a person."""
        if not self.is_alive:
            return "has ended"
        return "runs" if self.stop is None else f"is ending since {self.clock(self.stop)}"

    def clock(self, at: float) -> str:
        """The local time of day."""
        try:
            moment = self.flight.began_ns / 1e9 + at - self.flight.began
            return time.strftime("%H:%M:%S", time.localtime(moment)) + f".{int(moment * 1000) % 1000:03}"
        except (OverflowError, ValueError, OSError):  # any number
            return "?"

    @cached_property
    def gaps(self) -> list[Gap]:
        """Gaps between each step and the one before it."""
        return self.gaps_of(self.steps)

    def gaps_of(self, steps: list[StepEntry]) -> list[Gap]:
        """Gaps between each of some steps and the one before it."""
        return [self._gap(before, step) for before, step in pairwise(steps)]

    def _gap(self, before: StepEntry, step: StepEntry) -> Gap:
        seconds = max(step.at - before.at, 0.0)
        looks = self._looks_between(before.at, step.at)
        idle = sum(not (look.running or look.transfers or look.messages) for look in looks)
        if idle > _MOSTLY * len(looks):
            return Gap(step.at, seconds, "nobody")
        return Gap(step.at, seconds, "worker" if self._worker_is_late(before.at, step, seconds) else "engine")

    def _looks_between(self, since: float, until: float) -> list[QueueEntry]:
        return self.queues[bisect_right(self._look_times, since) : bisect_left(self._look_times, until)]

    @cached_property
    def _look_times(self) -> list[float]:
        return [look.at for look in self.queues]

    def _worker_is_late(self, since: float, step: StepEntry, seconds: float) -> bool:
        if step.receive < _MOSTLY * seconds:
            return False
        if seconds < SILENCE_S / 2:  # too short for more than one look
            return True
        within = [one for one in self.absences if one[0] < step.at and one[1] > since]
        if sum(min(end, step.at) - max(begin, since) for begin, end in within) > _MOSTLY * seconds:
            return False
        looks = self._looks_between(since, step.at)
        return not looks or not all(look.messages for look in looks)

    @cached_property
    def absences(self) -> list[tuple[float, float]]:
        """Times, begin and end, in which the engine wrote nothing, though it looks once a second.

        The last may go on: it ends now.  None is judged before the first look, or behind the end of the token
        thread, which takes the one that looks along.
        """
        if not self.queues:
            return []
        ends = [event.at for event in self.of(Kind.UNHEALTHY) if event.text.startswith("thread:")]
        ends += [] if self.stop is None else [self.stop]
        first, last = self.queues[0].at, min(ends, default=float("inf"))
        times = [entry.at for entry in self.flight.entries if first <= entry.at <= last]
        if self.is_alive and not ends:
            times.append(max(self.now, self.last))
        return [(a, b) for a, b in pairwise(sorted(times)) if b - a > SILENCE_S]

    @cached_property
    def usual_gap(self) -> float | None:
        """Seconds: the median of the last thousand steps' gaps."""
        found = [gap.seconds for gap in self.gaps[-1000:]]
        return median(found) if found else None

    @cached_property
    def looks_of_this_run(self) -> list[QueueEntry]:
        """Looks after something has come: until then the kernel names who used the queue before."""
        came = [one.at for one in self.of(Kind.REFUSED, Kind.OPEN, Kind.INCOMPLETE)]
        came += [step.at for step in self.steps[:1]]
        if self.flight.overwritten:
            return self.queues
        return [look for look in self.queues if came and look.at >= min(came)]

    def longest_gaps(self) -> list[Gap]:
        """Unusual gaps, the longest first, without idle time."""
        if self.usual_gap is None:
            return []
        unusual = max(8 * self.usual_gap, 0.05)
        long = [gap for gap in self.gaps if gap.seconds > unusual and gap.side != "nobody"]
        return sorted(long, key=lambda gap: -gap.seconds)[:SHOWN]

    def slowest_steps(self) -> list[StepEntry]:
        """The steps that took the engine longest."""
        return sorted(self.steps, key=lambda step: -(step.build + step.put))[:SHOWN]

    @cached_property
    def lately(self) -> list[StepEntry]:
        """The steps of the last seconds that have any."""
        if not self.steps:
            return []
        since = self.steps[-1].at - LATELY
        return [step for step in self.steps if step.at >= since]

    def rates(self) -> dict[str, float]:
        """Rates over the last ten seconds of steps: per second, per step, and medians of stages."""
        steps = self.lately
        if not steps:
            return {}
        span = steps[-1].at - steps[0].at
        later = steps[1:]
        return {
            "steps_per_second": len(later) / span if span > 0 else 0.0,
            "tokens_per_second": sum(step.rows for step in later) / span if span > 0 else 0.0,
            "requests": sum(step.live for step in steps) / len(steps),
            "tokens_per_step": sum(step.rows for step in steps) / len(steps),
            "bytes": median(step.length for step in steps),
            "receive_seconds": median(step.receive for step in steps),
            "build_seconds": median(step.build for step in steps),
            "put_seconds": median(step.put for step in steps),
        }


def with_slots(flight: Flight) -> Iterator[tuple[StepEntry, frozenset[int]]]:
    """Each step with its slots that had tokens; none where that was overwritten."""
    slots: frozenset[int] = frozenset()
    for entry in flight.entries:
        if isinstance(entry, Live):
            slots = entry.slots
        elif isinstance(entry, StepEntry):
            yield entry, slots


def latencies(engine: Flight, worker: Flight) -> list[float]:
    """Seconds from the worker's call of the save op to the end of the step, of frames in both files."""
    sent = {
        event.numbers[0]: event.at - event.numbers[1] / 1e9 for event in Picture(worker, 0.0).of(Kind.SENT)
    }
    found = []
    for entry in engine.entries:
        if isinstance(entry, StepEntry) and entry.frame in sent and entry.at >= sent[entry.frame]:
            found.append(entry.at - sent[entry.frame])
    return found


def span(seconds: float) -> str:
    """A time, for a person."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"

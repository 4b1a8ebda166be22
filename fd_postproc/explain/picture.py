"""How it went, by a flight recorder's file: rates, stages, the slowest steps, the longest gaps.

Times are monotonic seconds; `Picture.clock` makes the time of day of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ..flight.codes import Kind
from ..flight.reading import Event, Flight, Live, Queue, Step

SHOWN = 5
LATELY = 10.0  # seconds that rates are of


class Gap(NamedTuple):
    """Time between the ends of two steps.

    Attributes
    ----------
    at, seconds : float
        When it ended; how long it was.
    side : {"worker", "engine"}
        Where most of it passed: nothing had come, or the engine was at work on what had.
    """

    at: float
    seconds: float
    side: str


@dataclass(frozen=True)
class Picture:
    """A flight, and when it is looked at.

    Parameters
    ----------
    flight : Flight
    now : float
        Monotonic seconds.
    """

    flight: Flight
    now: float

    @cached_property
    def steps(self) -> list[Step]:
        return [entry for entry in self.flight.entries if isinstance(entry, Step)]

    @cached_property
    def queues(self) -> list[Queue]:
        return [entry for entry in self.flight.entries if isinstance(entry, Queue)]

    @cached_property
    def events(self) -> list[Event]:
        return [entry for entry in self.flight.entries if isinstance(entry, Event)]

    def of(self, *kinds: Kind) -> list[Event]:
        """Events of some kinds."""
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
        """The time up to which something is known: now, or when the process died."""
        return max(self.now, self.last) if self.is_alive else self.last

    def clock(self, at: float) -> str:
        """The time of day, here."""
        try:
            moment = self.flight.began_ns / 1e9 + at - self.flight.began
            return time.strftime("%H:%M:%S", time.localtime(moment)) + f".{int(moment * 1000) % 1000:03}"
        except (OverflowError, ValueError, OSError):  # anybody's number
            return "?"

    @cached_property
    def gaps(self) -> list[Gap]:
        """Between each step and the one before it."""
        return [gap_of(before, step) for before, step in pairwise(self.steps)]

    @cached_property
    def usual_gap(self) -> float | None:
        """Seconds: the median of the last thousand steps' gaps."""
        found = [gap.seconds for gap in self.gaps[-1000:]]
        return median(found) if found else None

    def longest_gaps(self) -> list[Gap]:
        """Those that are longer than usual, the longest first."""
        if self.usual_gap is None:
            return []
        long = [gap for gap in self.gaps if gap.seconds > max(8 * self.usual_gap, 0.05)]
        return sorted(long, key=lambda gap: -gap.seconds)[:SHOWN]

    def slowest_steps(self) -> list[Step]:
        """Those that took the engine longest."""
        return sorted(self.steps, key=lambda step: -(step.build + step.put))[:SHOWN]

    @cached_property
    def lately(self) -> list[Step]:
        """The steps of the last seconds in which there were any."""
        if not self.steps:
            return []
        since = self.steps[-1].at - LATELY
        return [step for step in self.steps if step.at >= since]

    def rates(self) -> dict[str, float]:
        """Of `lately`: steps and tokens a second, requests with tokens and tokens of a step; "
        "medians of stages."""
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

    def seats(self) -> dict[int, Event]:
        """The requests that are in a slot at the end, by slot, as the event that says since when."""
        found: dict[int, Event] = {}
        for event in self.of(
            Kind.SEATED, Kind.BEGAN, Kind.ENDED, Kind.FAILED, Kind.PREEMPTED, Kind.ABORTED, Kind.LEFT
        ):
            if event.kind in (Kind.SEATED, Kind.BEGAN):
                found[event.slot] = event
            else:
                found.pop(event.slot, None)
        return found


def gap_of(before: Step, step: Step) -> Gap:
    """The time between two steps that follow each other."""
    seconds = max(step.at - before.at, 0.0)
    return Gap(step.at, seconds, "worker" if step.receive >= seconds / 2 else "engine")


def with_slots(flight: Flight) -> Iterator[tuple[Step, frozenset[int]]]:
    """Each step, and the slots that had tokens in it; none where that was overwritten."""
    slots: frozenset[int] = frozenset()
    for entry in flight.entries:
        if isinstance(entry, Live):
            slots = entry.slots
        elif isinstance(entry, Step):
            yield entry, slots


def latencies(engine: Flight, worker: Flight) -> list[float]:
    """Seconds from the worker's call of the save op to the end of the step, for frames that both "
    "files know."""
    sent = {
        event.numbers[0]: event.at - event.numbers[1] / 1e9
        for event in events_of(worker)
        if event.kind == Kind.SENT
    }
    found = []
    for entry in engine.entries:
        if isinstance(entry, Step) and entry.frame in sent and entry.at >= sent[entry.frame]:
            found.append(entry.at - sent[entry.frame])
    return found


def events_of(flight: Flight) -> Iterable[Event]:
    return (entry for entry in flight.entries if isinstance(entry, Event))

"""Changes of the pace, by the times and stages of the steps."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ..faults import BURST_TIMES, MOSTLY, SLOW_S, SLOWER_TIMES, SUSTAINED_S, SUSTAINED_STEPS
from ..flight.reading import StepEntry

WINDOW = 32  # steps that are looked at together for a burst
_SLOPE = 16  # for a slope
_JUMP = 8  # for a jump
_MOST = 64  # windows that are looked at, the latest
_RISES = 5  # windows after the first that a slope has, at least
_NOISE = 0.9  # of the window before, below which it no longer rises
_EVEN = 1.5  # times slower, over the windows before a jump, that are no slope
_STILL = 1.15  # times slower in the last windows of a slope that goes on
_ONE_RISE = 0.6  # share of a slope that two windows may make: a step that falls into two windows makes all


class Change(NamedTuple):
    """The worker's pace before and after.

    Attributes
    ----------
    since : float
        Monotonic seconds.
    before, now : float
        Seconds from one step to the next.
    """

    since: float
    before: float
    now: float


class Window(NamedTuple):
    """A window of consecutive steps.

    Attributes
    ----------
    since, seconds : float
        When it begins, how long it is.
    steps : int
    gap : float
        Median of the seconds between two steps.
    live : float
        Median of the requests with tokens.
    receive, build, put : float
        Seconds that the stages took, all together.
    """

    since: float
    seconds: float
    steps: int
    gap: float
    live: float
    receive: float
    build: float
    put: float

    @property
    def waits_for_worker(self) -> bool:
        return self.receive >= MOSTLY * (self.receive + self.build + self.put)


def _windows(steps: Sequence[StepEntry], size: int) -> list[Window]:
    """Windows of a number of steps each; the last one ends with the latest step."""
    first = (len(steps) - 1) % size
    return [_window(steps[k : k + size + 1]) for k in range(first, len(steps) - size, size)]


def _window(steps: Sequence[StepEntry]) -> Window:
    later = steps[1:]
    return Window(
        steps[0].at, steps[-1].at - steps[0].at, len(later),
        median(step.at - before.at for before, step in pairwise(steps)), median(step.live for step in later),
        sum(step.receive for step in later), sum(step.build for step in later),
        sum(step.put for step in later),
    )  # fmt: skip


def working(steps: Sequence[StepEntry], seconds: float) -> Iterator[Window]:
    """Windows of at least a number of seconds."""
    first = 0
    for k, step in enumerate(steps):
        if k > first and step.at - steps[first].at >= seconds:
            yield _window(steps[first : k + 1])
            first = k


def slower(steps: Sequence[StepEntry]) -> Change | None:
    """Find a worker that becomes slower and slower.

    Each of the last windows is slower than the one before, and no two of them make most of the change:
    another batch, or another clock of the GPU, makes a step and no slope.
    """
    windows = _windows(steps[-_MOST * _SLOPE - 1 :], _SLOPE)
    first = len(windows) - 1
    while first > 0 and 0 < _NOISE * windows[first - 1].gap < windows[first].gap:
        first -= 1
    slope = windows[max(first, 0) :]
    if len(slope) <= _RISES or slope[-1].gap < max(SLOWER_TIMES * slope[0].gap, SLOW_S):
        return None
    if slope[-1].gap < _STILL * slope[-1 - _RISES].gap:
        return None
    rises = [math.log(after.gap / before.gap) for before, after in pairwise(slope)]
    if max(a + b for a, b in pairwise(rises)) > _ONE_RISE * sum(rises):
        return None
    if not all(window.waits_for_worker for window in slope[len(slope) // 2 :]):
        return None
    return Change(slope[0].since, slope[0].gap, slope[-1].gap)


def jump(steps: Sequence[StepEntry], begun: Sequence[float] = ()) -> Change | None:
    """Find a worker that is slower from one moment on, and was steady before.

    Parameters
    ----------
    steps : sequence of StepEntry
    begun : sequence of float, optional
        When requests had their first tokens, in order: their prefills make steps of others longer, too.
    """
    windows = _windows(steps[-_MOST * _JUMP - 1 :], _JUMP)
    if not windows:
        return None
    now = windows[-1].gap
    first = len(windows) - 1
    while first > 0 and windows[first - 1].gap >= now / 2:
        first -= 1
    # The window before may hold steps of both paces.
    before, since = windows[max(first - 9, 0) : max(first - 1, 0)], windows[first:]
    seconds, count = sum(window.seconds for window in since), sum(window.steps for window in since)
    if len(before) < 4 or seconds < SUSTAINED_S or count < SUSTAINED_STEPS // 2:
        return None
    half = len(before) // 2
    early, late = (median(window.gap for window in part) for part in (before[:half], before[half:]))
    usual = median(window.gap for window in before)
    if late > _EVEN * early or now < max(SLOWER_TIMES * usual, SLOW_S):
        return None
    if median(window.live for window in since) > 1.5 * median(window.live for window in before):
        return None
    if not all(window.waits_for_worker for window in since):
        return None
    if len(begun) - bisect_left(begun, since[0].since) > count / 8:
        return None
    return Change(since[0].since, usual, median(window.gap for window in since))


def bursts(steps: Sequence[StepEntry]) -> list[tuple[float, int, float, float]]:
    """Bursts of steps: when, how many, within which time, the usual seconds between steps.

    Those between two times of a slower, even pace: who is faster for good makes no burst.  Nor do steps
    that only make up for a pause: with it they take their usual time.
    """
    found: list[tuple[float, int, float, float]] = []
    usual: float | None = None
    begun: Window | None = None
    count = 0
    for window in _windows(steps, WINDOW):
        if usual is None or window.gap * BURST_TIMES >= usual:
            if begun is not None and usual is not None and window.gap * 2 >= usual:
                pause = _pause_before(steps, begun.since, usual)
                within = window.since - begun.since
                if pause + within < MOSTLY * usual * count:
                    found.append((begun.since, count, within, usual))
            usual, begun, count = window.gap, None, 0
        else:
            begun, count = begun or window, count + window.steps
    return found


def _pause_before(steps: Sequence[StepEntry], at: float, usual: float) -> float:
    """The longest time without a step in the window before, if it is unusual."""
    k = bisect_left(steps, at, key=lambda step: step.at)
    gaps = [step.at - before.at for before, step in pairwise(steps[max(k - WINDOW, 0) : k + 1])]
    longest = max(gaps, default=0.0)
    return longest if longest > 2 * usual else 0.0

"""Changes of the worker's pace, by the times of its steps."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from ..flight.reading import Step

WINDOW = 32  # steps that are looked at together
SLOWER = 4.0  # times
SLOW_S = 0.05  # seconds between two steps that nobody would call slow
FASTER = 8.0


def slower(steps: list[Step]) -> tuple[float, float, float] | None:
    """Whether the worker has become slower and slower: since when, seconds between steps then and now.

    Every one of the last windows is slower than the one before it: another batch makes a step, not a slope.
    """
    medians = [(at, gap) for at, gap in _windows(steps, WINDOW // 2)][-64:]
    if len(medians) < 4:
        return None
    first = len(medians) - 1
    while first > 0 and medians[first - 1][1] < medians[first][1]:
        first -= 1
    (since, then), (_, now) = medians[first], medians[-1]
    if len(medians) - first < 4 or now < SLOWER * then or now < SLOW_S:
        return None
    return since, then, now


def bursts(steps: list[Step]) -> list[tuple[float, int, float, float]]:
    """Steps that came at once: when, how many, within which time, the usual seconds between steps.

    Those between two times of a slower, even pace: whoever is faster for good is no burst.
    """
    windows = _windows(steps, WINDOW)
    found: list[tuple[float, int, float, float]] = []
    usual: float | None = None
    begun: tuple[float, int] | None = None
    for at, gap in windows:
        if usual is None or gap * FASTER >= usual:
            if begun is not None and usual is not None and gap * 2 >= usual:
                since, count = begun
                found.append((since, count * WINDOW, at - since, usual))
            usual, begun = gap, None
        else:
            begun = (at, 1) if begun is None else (begun[0], begun[1] + 1)
    return found


def _windows(steps: list[Step], size: int) -> list[tuple[float, float]]:
    """For so many steps after each other, when they began and the median of the seconds between them."""
    gaps = [(before.at, step.at - before.at) for before, step in pairwise(steps)]
    return [
        (gaps[k][0], median(gap for _, gap in gaps[k : k + size]))
        for k in range(0, len(gaps) - size + 1, size)
    ]

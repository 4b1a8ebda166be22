"""Step times of a token processor, beside those of FastDeploy's own."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .measured import BATCHES, STEP_MS
from .workload import Case, Load

PASSES, WARM_UP = 5, 3


class Times(NamedTuple):
    """Milliseconds of thread time."""

    median: float  # best of the passes' medians
    middle: float  # the middle one of the passes' medians
    best: float  # best single step


def cases(batches: Iterable[int] = BATCHES) -> Iterator[Case]:
    """The cases of the table, in its order."""
    for (channel, columns, accepted), entries in STEP_MS.items():
        for batch, _ in zip(BATCHES, entries, strict=False):
            if batch in batches:
                yield Case(channel, columns, accepted, batch)


def measured(case: Case) -> tuple[float, float]:
    """FastDeploy's own (median, best) for a case of the table, in ms."""
    return STEP_MS[case.channel, case.columns, case.accepted][BATCHES.index(case.batch)]


def time_steps(load: Load, steps: int, passes: int) -> Times:
    """Time single steps; the requests are made young again before each pass."""
    medians, best = [], float("inf")
    for _ in range(passes):
        load.reset()
        gc.collect()
        for _ in range(WARM_UP):
            load.step()
        samples = []
        for _ in range(steps):
            began = time.thread_time_ns()
            load.step()
            samples.append((time.thread_time_ns() - began) / 1e6)
        medians.append(statistics.median(samples))
        best = min(best, *samples)
    return Times(min(medians), statistics.median(medians), best)


def report(module: Any, cls: type, batches: Iterable[int], steps: int, passes: int) -> str:
    """A Markdown table, and how far the ratios lie from those of FastDeploy's own times."""
    lines = [
        "| channel | cols | acc | batch | median (middle) [best], ms | theirs [best] | ratio | of best |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    ratios: list[tuple[float, float]] = []
    for case in cases(batches):
        own = time_steps(Load(module, cls, case), steps, passes)
        median, best = measured(case)
        ratios.append((own.median / median, own.best / best))
        lines.append(
            f"| {case.channel} | {case.columns} | {case.accepted} | {case.batch} "
            f"| {own.median:.2f} ({own.middle:.2f}) [{own.best:.2f}] | {median:.2f} [{best:.2f}] "
            f"| {ratios[-1][0]:.2f} | {ratios[-1][1]:.2f} |"
        )
    for name, column in zip(("medians", "best steps"), zip(*ratios, strict=True), strict=True):
        centre = statistics.geometric_mean(column)
        within = sum(1 / 1.5 <= ratio / centre <= 1.5 for ratio in column)
        lines.append(
            f"\n{name}: {centre:.2f} of FastDeploy's on (geometric) average; "
            f"from {min(column) / centre:.2f} to {max(column) / centre:.2f} of that; "
            f"{within} of {len(column)} within 1.5x either way"
        )
    return "\n".join(lines)

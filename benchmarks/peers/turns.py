"""Contenders that take turns, pass by pass: each waits in a process of its own until it is its turn.

What a noisy machine does in a minute it does to all of them.  It is also fast and slow in turns of some ten
milliseconds.  A pass is therefore cut into slices that are shorter, and a fixed piece of work is timed around
each of them.  A contender's cost is the median of its passes' ratios to that work.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

PASSES = 9
SEED = 60
SLICE = 0.008
"""CPU seconds of a contender from one look at the fixed work to the next, about."""
WORDS = 1_000  # of the fixed work: a millisecond


def fixed_work() -> float:
    """CPU seconds of a fixed piece of work: objects, maps and texts, as contenders make them."""
    gc.disable()  # else it looks at what the contender keeps, too
    began = time.process_time()
    rows = [{"id": f"request-{n}", "ids": [n, n + 1], "score": n * 0.5} for n in range(WORDS)]
    by_name = {row["id"]: row for row in rows}
    "".join(f"{name}{row['ids']}" for name, row in by_name.items()).encode()
    spent = time.process_time() - began
    gc.enable()
    return spent


def timed(steps: Iterable[Callable[[], Any]], work: Callable[[], float] = fixed_work) -> dict[str, float]:
    """CPU seconds of a step, and of the fixed work beside it.

    Parameters
    ----------
    steps : iterable of callable
        Those of a pass, one at least; what brings them is not timed.
    work : callable, optional
        Gives the CPU seconds of the fixed work.

    Returns
    -------
    dict of str to float
        ``seconds`` and ``work``.  Their ratio is that of the slices, each by the work before and after it.
    """
    seconds = ratio = since = 0.0
    count, before = 0, work()

    def end_slice() -> None:
        nonlocal seconds, ratio, since, before
        after = work()
        seconds, ratio = seconds + since, ratio + 2 * since / (before + after)
        since, before = 0.0, after

    for step in steps:
        began = time.process_time()
        step()
        since += time.process_time() - began
        count += 1
        if since >= SLICE:
            end_slice()
    if since:
        end_slice()
    return {"seconds": seconds / count, "work": seconds / ratio}


def take_turns(
    names: Iterable[str], one_pass: Callable[[str], dict[str, float]], passes: int = PASSES
) -> dict[str, list[dict[str, float]]]:
    """Let contenders take turns, in another order each round.

    Parameters
    ----------
    names : iterable of str
    one_pass : callable
        Gives what `timed` does of a contender's next pass.
    passes : int
        Of each contender.

    Returns
    -------
    dict of str to list
        The passes of each, in order.
    """
    told: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    order, draw = [*told], random.Random(SEED)
    for _ in range(passes):
        draw.shuffle(order)
        for name in order:
            told[name].append(one_pass(name))
    return told


def summed_up(told: dict[str, list[dict[str, float]]], tokens: int) -> dict[str, dict[str, Any]]:
    """The cost of each contender from the passes of all.

    Returns
    -------
    dict of str to dict
        ``us``: CPU microseconds a token, the median ratio times the median work of all passes; ``ratios``: of
        each pass to the work beside it; ``spread``: the middle half of the ratios, as a share of their
        median; ``passes``: CPU microseconds a token, as they were timed.
    """
    works = [one["work"] for passes in told.values() for one in passes]
    summed = {}
    for name, passes in told.items():
        ratios = [one["seconds"] / one["work"] for one in passes]
        median = statistics.median(ratios)
        lower, _, upper = statistics.quantiles(ratios, n=4, method="inclusive")
        summed[name] = {
            "us": median * statistics.median(works) / tokens * 1e6,
            "spread": (upper - lower) / median,
            "ratios": ratios,
            "passes": [one["seconds"] / tokens * 1e6 for one in passes],
            "work ms": statistics.median(works) * 1e3,
        }
    return summed

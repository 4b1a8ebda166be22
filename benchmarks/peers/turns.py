"""Contenders that take turns, pass by pass: each waits in a process of its own until it is its turn.

What a noisy machine does in a minute it does to all of them, and to a fixed piece of work that is timed
before and after each pass.  A contender's cost is the median of its passes' ratios to that work.
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
WORDS = 4_000  # of the fixed work: some 10 ms


def fixed_work() -> float:
    """CPU seconds of a fixed piece of work: objects, maps and texts, as contenders make them."""
    gc.disable()  # else it looks at what the contender keeps, too
    began = time.process_time()
    for number in range(4):
        rows = [{"id": f"request-{n}", "ids": [n, n + number], "score": n * 0.5} for n in range(WORDS)]
        by_name = {row["id"]: row for row in rows}
        "".join(f"{name}{row['ids']}" for name, row in by_name.items()).encode()
    spent = time.process_time() - began
    gc.enable()
    return spent


def timed(one_pass: Callable[[], float]) -> dict[str, float]:
    """CPU seconds of a pass, and of the fixed work beside it."""
    before = fixed_work()
    seconds = one_pass()
    return {"seconds": seconds, "work": (before + fixed_work()) / 2}


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

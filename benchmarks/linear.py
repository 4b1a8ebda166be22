"""Is the cost a line over the accepted rows?

The contenders of a comparison are not ways but sizes: the same call on the same batch, with more and more
accepted tokens.  They are timed in turn like others, and a line is put through the fastest timings, which
noise can only lengthen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from . import decode, lists, receive, save, step
from .cases import Case, Comparison, Ready
from .fit import Line, line
from .processors import OURS, load_case, token_processor_module
from .queued import taken
from .report import seconds
from .runner import Compared

ABOUT = "256 requests, 1 to 6 accepted tokens each, 21 columns: what a row more costs"
REFERENCE = "256 rows"

ACCEPTED = (1, 2, 3, 4, 5, 6)
QUICK, QUICK_CALLS = (1, 2, 4, 6), ("decode", "lists", "step, all lists read")
CALLS: dict[str, Callable[[Case], Ready]] = {
    "decode": decode._ours,
    "lists": lambda case: lists._make(case, lists._ours),
    "receive": lambda case: taken(case, partial(receive._ours, dialect="compact", full=False)),
    "save": lambda case: save._make(case, partial(save._op, dialect="compact")),
    "step": lambda case: step._make(OURS, load_case(case)),
    "step, all lists read": lambda case: step._and_read(load_case(case)),
}

load = token_processor_module


def comparisons(quick: bool) -> Iterator[Comparison]:
    for name in QUICK_CALLS if quick else CALLS:
        cases = [Case(accepted=accepted) for accepted in (QUICK if quick else ACCEPTED)]
        yield Comparison(
            name, {f"{case.batch * case.accepted} rows": partial(CALLS[name], case) for case in cases}
        )


def lines(compared: list[Compared]) -> dict[str, Line]:
    """The line of each call that has three points or more."""
    found: dict[str, Line] = {}
    for one in compared:
        points = {int(name.removesuffix(" rows")): result.best for name, result in one.results.items()}
        if len(points) >= 3:
            found[one.case] = line(list(points), list(points.values()))
    return found


def notes(compared: list[Compared]) -> list[str]:
    """The lines in words."""
    return [
        f"{name}: {seconds(one.start)} + {seconds(one.slope)} a row; R² {one.r2:.4f}, "
        f"largest deviation {100 * one.worst:.1f} %"
        for name, one in lines(compared).items()
    ]

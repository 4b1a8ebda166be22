"""Lazy logprobs: what a step costs when nobody, or only a few, read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fd_postproc._core import Step

from .built import _floor
from .cases import HEADLINE, Case, Comparison, Ready, check, objects_in, timed

ABOUT = (
    "one Logprobs for every request, of which some are read; floor: one empty object for every request, "
    "and bare C-API calls for the lists of those read"
)
REFERENCE = "floor"


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in (HEADLINE[-1],) if quick else HEADLINE:
        for read in (0, 8) if quick else (0, 8, 64, case.batch):
            yield Comparison(
                f"{case}, {read} of {case.batch} read",
                {
                    "fd_postproc": partial(_make, case, read, _views),
                    "floor": partial(_make, case, read, _objects),
                    "tolists, all made": partial(_make, case, read, _tolists),
                },
            )


def _make(case: Case, read: int, contender: Callable[[Step, int], Callable[[], Any]]) -> Ready:
    step = case.step()
    call = contender(step, read)
    held, lists = call()
    wanted = [part[:read] for part in step.tolists() if part is not None]
    right = [list(part[:read]) for part in lists] == wanted
    check(right and len(held) == case.batch, "the lists hold something else")
    return Ready(timed(call), 0, objects_in((list(held), lists)) - 2)


def _views(step: Step, read: int) -> Callable[[], Any]:
    requests = range(step.batch)

    def call() -> tuple[list, tuple]:
        view = step.logprobs
        views = [view(i) for i in requests]
        lists = [views[i].tolists() for i in range(read)]
        return views, tuple(zip(*lists, strict=True)) or ((), (), ())

    return call


def _objects(step: Step, read: int) -> Callable[[], Any]:
    requests, first = range(step.batch), _floor.Lists(step).first

    def call() -> tuple[list, tuple]:
        return [object() for _ in requests], first(read)

    return call


def _tolists(step: Step, read: int) -> Callable[[], Any]:
    def call() -> tuple[list, tuple]:
        lists = step.tolists()
        return lists[0], lists

    return call

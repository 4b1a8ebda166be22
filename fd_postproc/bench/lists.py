"""Step -> nested lists of Python numbers, ``[request][token][column]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from .._core import Step
from . import _floor
from .cases import (
    HEADLINE,
    Case,
    Comparison,
    Ready,
    TimeFunction,
    check,
    gc_off,
    gc_unfrozen,
    objects_in,
    timed,
)

ABOUT = "Step.tolists(): ids, scores and ranks as nested lists; the Step is there already"
REFERENCE = "floor"


_MORE = (
    *(Case(batch=batch, columns=columns) for batch in (1, 32, 512) for columns in (1, 6, 21)),
    *(Case(accepted=accepted) for accepted in (1, 4, 6)),
)


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in (HEADLINE[0], HEADLINE[-1]) if quick else HEADLINE + _MORE:
        contenders = {
            "fd_postproc": partial(_make, case, _ours),
            "floor": partial(_make, case, _bare_calls),
        }
        if case in HEADLINE:
            contenders["numpy tolist"] = partial(_make, case, _numpy)
            contenders["numpy element by element"] = partial(_make, case, _elements)
        yield Comparison(str(case), contenders)
    case = HEADLINE[-1]
    for name, condition in {"gc off": gc_off, "heap not frozen": gc_unfrozen}.items():
        if quick and condition is gc_unfrozen:
            continue
        yield Comparison(
            f"{case}, {name}",
            {
                "fd_postproc": partial(_make, case, _ours, condition),
                "floor": partial(_make, case, _bare_calls, condition),
            },
        )


def _make(
    case: Case,
    contender: Callable[[Step], Callable[[], Any]],
    condition: Callable[[TimeFunction], TimeFunction] = lambda run: run,
) -> Ready:
    step = case.step()
    call = contender(step)
    made = call()
    check(made == _plain(step), "the lists hold something else")
    return Ready(condition(timed(call)), 0, objects_in(made))


def _plain(step: Step) -> tuple[list, list, list]:
    """The right answer, by slicing."""
    ids, scores, ranks = step.ids.tolist(), step.scores.tolist(), step.ranks.tolist()
    bounds = list(pairwise(step.offsets.tolist()))
    return [ids[a:b] for a, b in bounds], [scores[a:b] for a, b in bounds], [ranks[a:b] for a, b in bounds]


def _ours(step: Step) -> Callable[[], Any]:
    return step.tolists


def _bare_calls(step: Step) -> Callable[[], Any]:
    return _floor.Lists(step).make


def _numpy(step: Step) -> Callable[[], Any]:
    arrays = [np.asarray(part) for part in (step.ids, step.scores, step.ranks)]
    offsets = np.asarray(step.offsets)

    def call() -> tuple[list, ...]:
        ids, scores, ranks = (array.tolist() for array in arrays)
        bounds = list(pairwise(offsets.tolist()))
        return (
            [ids[a:b] for a, b in bounds],
            [scores[a:b] for a, b in bounds],
            [ranks[a:b] for a, b in bounds],
        )

    return call


def _elements(step: Step) -> Callable[[], Any]:
    ids, scores, ranks = (np.asarray(part) for part in (step.ids, step.scores, step.ranks))
    offsets, cols = np.asarray(step.offsets), range(step.cols)

    def call() -> tuple[list, ...]:
        bounds = list(pairwise(offsets.tolist()))
        return (
            [[[int(ids[j, k]) for k in cols] for j in range(a, b)] for a, b in bounds],
            [[[float(scores[j, k]) for k in cols] for j in range(a, b)] for a, b in bounds],
            [[int(ranks[j]) for j in range(a, b)] for a, b in bounds],
        )

    return call

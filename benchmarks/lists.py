"""Step -> nested lists of Python numbers, ``[request][token][column]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fd_postproc._core import Step

from .built import _floor
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
    rounds_for,
    timed,
)

ABOUT = "Step.tolists(): ids, scores and ranks as nested lists; the Step is there already"
REFERENCE = "floor"
BASELINE = "FastDeploy restated"

_MORE = (
    *(Case(batch=batch, columns=columns) for batch in (1, 32, 512) for columns in (1, 6, 21)),
    *(Case(accepted=accepted) for accepted in (1, 4, 6)),
)


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in (HEADLINE[0], HEADLINE[-1]) if quick else HEADLINE + _MORE:
        contenders = {
            "fd_postproc": partial(_make, case, _ours),
            "floor": partial(_make, case, _bare_calls),
            BASELINE: partial(_make, case, _fastdeploy),
        }
        if case in HEADLINE:
            contenders |= {name: partial(_make, case, peer) for name, peer in _PEERS.items()}
        yield Comparison(str(case), contenders, rounds=rounds_for(case))
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


def _plain(step: Step) -> tuple[list, ...]:
    """The right answer, by slicing."""
    parts = [part.tolist() for part in (step.ids, step.scores, step.ranks) if part is not None]
    bounds = list(pairwise(step.offsets.tolist()))
    return tuple([part[a:b] for a, b in bounds] for part in parts)


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


def _fastdeploy(step: Step) -> Callable[[], Any]:
    """Lists of all six draft positions of every slot, from the tensors that its get op fills."""
    batch, cols = step.batch, step.cols
    slots = (batch, 6, 21)
    live = np.arange(6) < np.asarray(step.counts)[:, None]
    shape = (step.rows, cols)
    tokens, values, places = np.zeros(slots, np.int64), np.zeros(slots, np.float32), np.zeros((batch, 6), int)
    tokens[live, :cols] = np.asarray(step.ids).reshape(shape)
    values[live, :cols] = np.asarray(step.scores).reshape(shape)
    places[live] = np.asarray(step.ranks)
    counts = step.counts

    def call() -> tuple[list, ...]:
        ids, scores = tokens[:, :, :cols].tolist(), values[:, :, :cols].tolist()
        ranks = places.tolist()
        return tuple(
            [part[:n] for part, n in zip(parts, counts, strict=True)] for parts in (ids, scores, ranks)
        )

    return call


def _vllm(step: Step) -> Callable[[], Any]:
    """As vLLM's engine: arrays are sliced for each request, and each row becomes lists on its own."""
    shape = (step.rows, step.cols)
    ids, scores = np.asarray(step.ids).reshape(shape), np.asarray(step.scores).reshape(shape)
    ranks, offsets, counts = np.asarray(step.ranks), step.offsets.tolist(), step.counts

    def call() -> tuple[list, ...]:
        sliced = [
            (ids[a : a + n], scores[a : a + n], ranks[a : a + n])
            for a, n in zip(offsets, counts, strict=False)
        ]
        all_ids, all_scores, all_ranks = [], [], []
        for some_ids, some_scores, some_ranks in sliced:
            rows = [
                (row_ids.tolist(), row_scores.tolist(), rank.tolist())
                for row_ids, row_scores, rank in zip(some_ids, some_scores, some_ranks, strict=True)
            ]
            all_ids.append([row[0] for row in rows])
            all_scores.append([row[1] for row in rows])
            all_ranks.append([row[2] for row in rows])
        return all_ids, all_scores, all_ranks

    return call


def _sglang(step: Step) -> Callable[[], Any]:
    """As SGLang's scheduler: each row of the batch becomes lists, then requests take theirs one by one."""
    shape = (step.rows, step.cols)
    ids, scores = list(np.asarray(step.ids).reshape(shape)), list(np.asarray(step.scores).reshape(shape))
    ranks, counts = np.asarray(step.ranks), step.counts

    def call() -> tuple[list, ...]:
        id_rows, score_rows = [row.tolist() for row in ids], [row.tolist() for row in scores]
        places, at = ranks.tolist(), 0
        all_ids, all_scores, all_ranks = [], [], []
        for n in counts:
            some_ids, some_scores, some_ranks = [], [], []
            for _ in range(n):
                some_ids.append(id_rows[at])
                some_scores.append(score_rows[at])
                some_ranks.append(places[at])
                at += 1
            all_ids.append(some_ids)
            all_scores.append(some_scores)
            all_ranks.append(some_ranks)
        return all_ids, all_scores, all_ranks

    return call


_PEERS = {
    "numpy tolist": _numpy,
    "numpy element by element": _elements,
    "vLLM's way restated": _vllm,
    "SGLang's way restated": _sglang,
}

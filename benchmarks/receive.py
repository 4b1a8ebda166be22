"""A message that waits in a System V queue -> Step: the system call, the kernel's copy and the decoding.

One process; sending is not timed.  Nothing is learned here about waiting or waking.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import sysv_ipc

from fd_postproc._core import Receiver, Step, decode, payload_size
from fd_postproc.core.layout import GPU

from .built import _floor
from .cases import HEADLINE, Case, Comparison, Dialect, objects_in, rounds_for, tensors_of
from .queued import Taking, taken

ABOUT = "Receiver.receive() of a message sent just before by the same process"
REFERENCE = "floor"
BASELINE = "FastDeploy's get op restated"

_SMALL = (
    Case("plain", accepted=1, columns=1),
    Case("spec", columns=1),
)
_SMALL_MORE = (
    *(Case("plain", batch, 1, 1) for batch in (1, 32, 512)),
    *(Case("spec", batch, 2, 1) for batch in (1, 32)),
)
_FRAMES_MORE = (
    *(Case("topk", accepted=1, columns=columns) for columns in (1, 6, 21)),
    *(Case(batch=batch) for batch in (1, 32, 512)),
    *(Case(accepted=accepted) for accepted in (1, 4, 6)),
)


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in (HEADLINE[0], HEADLINE[-1]) if quick else HEADLINE + _FRAMES_MORE:
        yield _comparison(case, "compact")
        if case in HEADLINE:
            yield _to_lists(case)
    for case in _SMALL if quick else _SMALL + _SMALL_MORE:
        yield _comparison(case, "packed")
    for case in () if quick else HEADLINE:
        yield _comparison(case, "packed")
    yield _comparison(HEADLINE[-1], "packed", full=True)


def _comparison(case: Case, dialect: Dialect, full: bool = False) -> Comparison:
    contenders: dict[str, Callable[..., Taking]] = {
        "fd_postproc": partial(_ours, dialect=dialect, full=full),
        BASELINE: _stock,
        "floor": _arrays if dialect == "compact" else partial(_rows, full=full),
        "sysv_ipc + decode": partial(_sysv_ipc, dialect=dialect, full=full),
    }
    size = "full size" if full else dialect
    made = {name: partial(taken, case, one) for name, one in contenders.items()}
    return Comparison(f"{case}, {size}", made, rounds=rounds_for(case))


def _to_lists(case: Case) -> Comparison:
    ways: dict[str, Callable[..., Taking]] = {
        "fd_postproc": _ours_to_lists,
        "floor": _arrays_to_lists,
        "sysv_ipc + struct": _struct_to_lists,
    }
    return Comparison(
        f"{case}, and on to lists", {name: partial(taken, case, way) for name, way in ways.items()}
    )


def _message(case: Case, dialect: Dialect, full: bool = False) -> tuple[bytes, int]:
    return case.message(full=full, dialect=dialect), 2 if dialect == "compact" else 1


def _ours(queue: sysv_ipc.MessageQueue, case: Case, *, dialect: Dialect, full: bool) -> Taking:
    receiver, step = Receiver(case.channel, key=queue.key), case.step()
    return Taking(receiver.receive, lambda got: got == step, *_message(case, dialect, full))


def _ours_to_lists(queue: sysv_ipc.MessageQueue, case: Case) -> Taking:
    receive, lists = Receiver(case.channel, key=queue.key).receive, case.step().tolists()

    def call() -> Any:
        step = receive()
        assert step is not None
        return step.tolists()

    return Taking(call, lambda got: got == lists, *_message(case, "compact"), objects_in(lists))


def _arrays_to_lists(queue: sysv_ipc.MessageQueue, case: Case) -> Taking:
    """The lists are made from arrays that were there before."""
    payload, mtype = _message(case, "compact")
    take, lists = _floor.Drain(queue.id, len(payload)).take_copy, _floor.Lists(case.step())
    right = case.step().tolists()

    def call() -> Any:
        take()
        return lists.make()

    return Taking(call, lambda got: got == right, payload, mtype, objects_in(right))


def _rows(queue: sysv_ipc.MessageQueue, case: Case, *, full: bool) -> Taking:
    taker = _floor.Taker(_floor.Rows(case.step(), GPU), queue.id, payload_size(case.channel))
    payload, mtype = _message(case, "packed", full)
    return Taking(taker.take, lambda n: n == len(payload) and taker.taken()[:n] == payload, payload, mtype, 0)


def _arrays(queue: sysv_ipc.MessageQueue, case: Case) -> Taking:
    payload, mtype = _message(case, "compact")
    drain = _floor.Drain(queue.id, len(payload))
    return Taking(drain.take_copy, lambda n: drain.taken(n) == (payload, mtype), payload, mtype, 0)


def _sysv_ipc(queue: sysv_ipc.MessageQueue, case: Case, *, dialect: Dialect, full: bool) -> Taking:
    take, channel, step = queue.receive, case.channel, case.step()

    def call() -> Step:
        payload, mtype = take()
        return decode(payload, channel, mtype=mtype)

    return Taking(call, lambda got: got == step, *_message(case, dialect, full))


def _stock(queue: sysv_ipc.MessageQueue, case: Case) -> Taking:
    """FastDeploy's sender sends all slots, and its op makes no Python object."""
    tensors = tensors_of(case.channel)
    op = _floor.StockGet(case.channel, tensors, queue.id)
    payload, step = case.message(), case.step()
    return Taking(op.get, lambda n: n == len(payload) and tensors_hold(tensors, step), payload, 1, 0)


def tensors_hold(tensors: tuple[np.ndarray, ...], step: Step) -> bool:
    """Whether a get op's tensors hold the sampled token of each row, and all scores and ranks of a step."""
    counts = np.asarray(step.counts)
    ids = np.asarray(step.ids).reshape(step.rows, step.cols)
    tokens = tensors[0]
    if step.channel == "plain":
        return bool((tokens[2 : 2 + step.batch] == ids[:, 0]).all())
    if step.channel == "topk":
        used = step.rows * step.cols
        right = (tokens[2 : 2 + used].reshape(ids.shape) == ids).all()
        scores = tensors[1][:used].reshape(ids.shape)
        ranks = tensors[2][: step.batch]
    elif step.channel == "spec":
        live = np.arange(6) < counts[:, None]
        return bool((tokens[258 : 258 + 6 * step.batch].reshape(-1, 6)[live] == ids[:, 0]).all())
    else:
        live = np.arange(6) < counts[:, None]
        slots = (step.batch, 6, 21)
        used = 126 * step.batch
        right = (tokens[515 : 515 + used].reshape(slots)[live][:, : step.cols] == ids).all()
        scores = tensors[1][:used].reshape(slots)[live][:, : step.cols]
        ranks = tensors[2][: 6 * step.batch].reshape(-1, 6)[live]
    return bool(
        right and (scores == np.asarray(step.scores)).all() and (ranks == np.asarray(step.ranks)).all()
    )


def _struct_to_lists(queue: sysv_ipc.MessageQueue, case: Case) -> Taking:
    """A packed ``spec_topk`` message taken apart with `struct`, row by row; nothing is checked."""
    take, lists = queue.receive, case.step().tolists()
    ints, floats = struct.Struct(f"={case.columns}i"), struct.Struct(f"={case.columns}f")

    def call() -> Any:
        payload = take()[0]
        batch = struct.unpack_from("=3i", payload)[2]
        all_ids, all_scores, all_ranks = [], [], []
        for i, count in enumerate(struct.unpack_from(f"={batch}i", payload, 12)):
            slot = 2060 + 1032 * i
            starts = range(slot, slot + 84 * count, 84)
            all_ids.append([list(ints.unpack_from(payload, at)) for at in starts])
            all_scores.append([list(floats.unpack_from(payload, at + 504)) for at in starts])
            all_ranks.append(list(struct.unpack_from(f"={count}i", payload, slot + 1008)))
        return all_ids, all_scores, all_ranks

    return Taking(call, lambda got: got == lists, *_message(case, "packed"), objects_in(lists))

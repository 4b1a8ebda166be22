"""A message that waits in a System V queue -> Step: the system call, the kernel's copy and the decoding.

One process; sending is not timed.  Nothing is learned here about waiting or waking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import sysv_ipc

from fd_postproc._core import Receiver, Step, decode, payload_size
from fd_postproc.core.layout import GPU

from .built import _floor
from .cases import NARROW, PLAIN, SPEC, TOPK, WIDE, Case, Comparison, Dialect, tensors_of
from .queued import Taking, taken

ABOUT = "Receiver.receive() of a message sent just before by the same process"
REFERENCE = "floor"
BASELINE = "FastDeploy's get op restated"


def comparisons() -> Iterator[Comparison]:
    for case in NARROW, WIDE, TOPK:
        yield _comparison(case, "compact")
    for case in SPEC, PLAIN:
        yield _comparison(case, "packed")
    yield _comparison(WIDE, "packed", full=True)


def _comparison(case: Case, dialect: Dialect, full: bool = False) -> Comparison:
    contenders: dict[str, Callable[..., Taking]] = {
        "fd_postproc": partial(_ours, dialect=dialect, full=full),
        BASELINE: _stock,
        "floor": _arrays if dialect == "compact" else partial(_rows, full=full),
        "sysv_ipc + decode": partial(_sysv_ipc, dialect=dialect, full=full),
    }
    size = "full size" if full else dialect
    made = {name: partial(taken, case, one) for name, one in contenders.items()}
    return Comparison(f"{case}, {size}", made)


def _message(case: Case, dialect: Dialect, full: bool = False) -> tuple[bytes, int]:
    return case.message(full=full, dialect=dialect), 2 if dialect == "compact" else 1


def _ours(queue: sysv_ipc.MessageQueue, case: Case, *, dialect: Dialect, full: bool) -> Taking:
    receiver, step = Receiver(case.channel, key=queue.key), case.step()
    return Taking(receiver.receive, lambda got: got == step, *_message(case, dialect, full))


def _rows(queue: sysv_ipc.MessageQueue, case: Case, *, full: bool) -> Taking:
    taker = _floor.Taker(case.step(), GPU, queue.id, payload_size(case.channel))
    payload, mtype = _message(case, "packed", full)
    return Taking(taker.take, lambda n: n == len(payload) and taker.taken()[:n] == payload, payload, mtype)


def _arrays(queue: sysv_ipc.MessageQueue, case: Case) -> Taking:
    payload, mtype = _message(case, "compact")
    drain = _floor.Drain(queue.id, len(payload))
    return Taking(drain.take_copy, lambda n: drain.taken(n) == (payload, mtype), payload, mtype)


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
    return Taking(op.get, lambda n: n == len(payload) and tensors_hold(tensors, step), payload)


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

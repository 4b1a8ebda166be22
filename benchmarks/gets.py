"""A message that waits in a System V queue -> the tensors that FastDeploy's token processor reads.

One process; sending is not timed.  Each op is given what its own worker side sends: FastDeploy's the whole
message, ours a compact frame where there is one, else the message cut after its last live slot.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import sysv_ipc

from fd_postproc import ops
from fd_postproc.queues import locate
from tests.restated.workload import flat_view

from .built import _floor
from .cases import HEADLINE, Case, Comparison, Dialect, Ready, rounds_for, tensors_of
from .queued import Taking, taken
from .receive import tensors_hold
from .save import Environment, has_paddle, new_queue_id

ABOUT = "a get op, from a message in the queue to the caller's CPU tensors"
REFERENCE = "floor"
BASELINE = "FastDeploy's op restated"

FRAME_HEADER = 64  # bytes
_MORE = (
    *(Case(batch=batch) for batch in (1, 32, 512)),
    *(Case(accepted=accepted) for accepted in (1, 4, 6)),
    *(Case("topk", accepted=1, columns=columns) for columns in (1, 6, 21)),
    *(Case("spec", batch, 2, 1) for batch in (1, 32, 256)),
    *(Case("plain", batch, 1, 1) for batch in (1, 32, 256, 512)),
)
_OPS: dict[str, tuple[Callable[..., Any], tuple[int | bool, ...]]] = {  # the op; what follows the tensors
    "plain": (ops.get_output, (0, False)),
    "topk": (ops.get_output_topk, (20, 0, False)),
    "spec": (ops.speculate_get_output, (0, False, True)),
    "spec_topk": (ops.speculate_get_output_topk, (20, 0, False)),
}


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in (HEADLINE[0], HEADLINE[-1]) if quick else HEADLINE + _MORE:
        own: Dialect = "compact" if case.channel.endswith("topk") else "packed"
        contenders: dict[str, Callable[..., Taking]] = {
            "fd_postproc": partial(_op, dialect=own),
            "fd_postproc, FastDeploy's message": partial(_op, dialect="packed", full=True),
        }
        if not quick and case in HEADLINE and has_paddle():
            contenders["fd_postproc, Paddle tensors"] = partial(_op, dialect=own, framework="paddle")
        contenders[BASELINE] = _stock
        contenders["floor"] = _spread if own == "compact" else partial(_stock, full=False)
        made = {name: partial(_make, case, one) for name, one in contenders.items()}
        yield Comparison(str(case), made, rounds=rounds_for(case))


def _make(case: Case, contender: Callable[..., Taking]) -> Ready:
    environment = Environment(INFERENCE_MSG_QUEUE_ID=new_queue_id(), INFERENCE_MSG_ID=None)
    try:
        ready = taken(case, contender, key=locate(case.channel))
    except BaseException:
        environment.restore()
        raise
    remove = ready.close

    def close() -> None:
        remove()
        environment.restore()

    ready.close = close
    return ready


def _op(
    queue: sysv_ipc.MessageQueue,
    case: Case,
    *,
    dialect: Dialect,
    full: bool = False,
    framework: str | None = None,
) -> Taking:
    arrays = tensors_of(case.channel)
    tensors: tuple[Any, ...] = arrays
    if framework:
        paddle = importlib.import_module(framework)
        tensors = tuple(paddle.to_tensor(array, place=paddle.CPUPlace()) for array in arrays)
        arrays = tuple(map(flat_view, tensors))
    op, rest = _OPS[case.channel]
    payload, step = case.message(full=full, dialect=dialect), case.step()
    return Taking(
        partial(op, *tensors, *rest),
        lambda _: tensors_hold(arrays, step),
        payload,
        2 if dialect == "compact" else 1,
        0,
    )


def _stock(queue: sysv_ipc.MessageQueue, case: Case, full: bool = True) -> Taking:
    tensors, step, payload = tensors_of(case.channel), case.step(), case.message(full=full)
    op = _floor.StockGet(case.channel, tensors, queue.id)
    return Taking(op.get, lambda n: n == len(payload) and tensors_hold(tensors, step), payload, 1, 0)


def _spread(queue: sysv_ipc.MessageQueue, case: Case) -> Taking:
    tensors, step = tensors_of(case.channel), case.step()
    payload = case.message(full=False, dialect="compact")
    speculative = case.channel == "spec_topk"
    header = (1, 3 | case.columns << 8, case.batch) if speculative else (1, case.batch | case.columns << 16)
    floor = _floor.Spreader(step, tensors, header, FRAME_HEADER, queue.id, len(payload))
    return Taking(floor.get, lambda n: n == len(payload) and tensors_hold(tensors, step), payload, 2, 0)

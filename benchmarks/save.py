"""A step's CPU tensors -> a message in a System V queue: checks of the tensors, packing, system calls.

One process; each message is taken out again before the next, by the same code for every contender, and
that is not timed.  Nothing is learned here about waiting or waking.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import sysv_ipc

from fd_postproc import ops
from fd_postproc._core import Receiver, Sender, payload_size
from fd_postproc.queues import locate

from .built import _floor
from .cases import NARROW, PLAIN, SPEC, TOPK, WIDE, Case, Comparison, Dialect, Ready, check
from .queued import fits

ABOUT = "a save op, from CPU tensors to a message in the queue"
REFERENCE = "floor"
BASELINE = "FastDeploy's op restated"
PADDLE = "fd_postproc, Paddle tensors"

OPS: dict[str, tuple[Callable[..., Any], tuple[str | int, ...]]] = {  # the op; its arguments, tensors by role
    "plain": (ops.save_output, ("tokens", "not_need_stop", "preempted", 0, 0)),
    "topk": (
        ops.save_output_topk,
        ("tokens", "ids", "scores", "ranks", "not_need_stop", "preempted", 0),
    ),
    "spec": (
        ops.speculate_save_output,
        ("tokens", "counts", "not_need_stop", "decoded", "prompts", "preempted", 0, 0, 1),
    ),
    "spec_topk": (
        ops.speculate_save_output_topk,
        (
            *("tokens", "ids", "scores", "ranks", "counts", "offsets"),
            *("not_need_stop", "decoded", "prompts", "preempted", 3, 0, 0),
        ),
    ),
}


def comparisons() -> Iterator[Comparison]:
    return map(_comparison, (NARROW, WIDE, Case(accepted=6), TOPK, SPEC, PLAIN))


def _comparison(case: Case) -> Comparison:
    has_logprobs = case.channel.endswith("topk")
    own: Dialect = "compact" if has_logprobs else "packed"
    contenders: dict[str, _Contender] = {"fd_postproc": partial(_op, dialect=own)}
    if has_logprobs:
        contenders["fd_postproc, packed"] = partial(_op, dialect="packed")
    if case in (NARROW, WIDE) and importlib.util.find_spec("paddle") is not None:
        contenders[PADDLE] = partial(_op, dialect=own, framework="paddle")
    contenders["Sender.send of a Step"] = partial(_sender, dialect=own)
    contenders[BASELINE] = _stock
    contenders["floor"] = partial(_floor_of, dialect=own)
    if has_logprobs:
        contenders["floor, packed"] = partial(_floor_of, dialect="packed")
    made = {name: partial(_make, case, one) for name, one in contenders.items()}
    return Comparison(str(case), made)


def new_queue_id() -> str:
    """An unused id."""
    return str(random.SystemRandom().randrange(1 << 16, 1 << 20))


class Environment:
    """Environment variables for as long as a contender lives."""

    def __init__(self, **values: str | None) -> None:
        self._before = {name: os.environ.get(name) for name in values}
        self._set(values)

    def restore(self) -> None:
        self._set(self._before)

    @staticmethod
    def _set(values: dict[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_Contender = Callable[[sysv_ipc.MessageQueue, Case], Callable[[], Any]]


def _make(case: Case, contender: _Contender) -> Ready:
    stock = payload_size(case.channel)
    fits(stock)
    environment = Environment(
        INFERENCE_MSG_QUEUE_ID=new_queue_id(), INFERENCE_MSG_ID=None, FD_POSTPROC_DIALECT=None
    )
    try:
        queue = sysv_ipc.MessageQueue(locate(case.channel), sysv_ipc.IPC_CREX, mode=0o600)
    except BaseException:
        environment.restore()
        raise

    def close() -> None:
        queue.remove()
        environment.restore()

    try:
        send = contender(queue, case)
        send()
        received = Receiver(case.channel, key=queue.key).receive(timeout=0)
        check(received == case.step(), "another step was sent")
        check(queue.current_messages == 0, "more than one step was sent")
        drain = _floor.Drain(queue.id, stock)
        send()
        size = drain.take()
    except BaseException:
        close()
        raise

    def run(loops: int) -> float:
        take, now, total = drain.take, perf_counter, 0.0
        for _ in range(loops):
            began = now()
            send()
            total += now() - began
            take()
        return total

    return Ready(run, size, close=close)


def _op(
    queue: sysv_ipc.MessageQueue, case: Case, *, dialect: Dialect, framework: str | None = None
) -> Callable[[], Any]:
    os.environ["FD_POSTPROC_DIALECT"] = dialect
    tensors: dict[str, Any] = dict(case.inputs())
    if framework:
        paddle = importlib.import_module(framework)
        place = paddle.CPUPlace()
        tensors = {role: paddle.to_tensor(array, place=place) for role, array in tensors.items()}
    op, wanted = OPS[case.channel]
    arguments = [tensors[one] if isinstance(one, str) else one for one in wanted]
    return lambda: op(*arguments)


def _sender(queue: sysv_ipc.MessageQueue, case: Case, *, dialect: Dialect) -> Callable[[], Any]:
    sender = Sender(case.channel, key=queue.key, dialect=dialect)
    return partial(sender.send, case.step())


def _stock(queue: sysv_ipc.MessageQueue, case: Case) -> Callable[[], Any]:
    return _floor.Stock(case.channel, case.inputs(), queue.id).save


def _floor_of(queue: sysv_ipc.MessageQueue, case: Case, *, dialect: Dialect) -> Callable[[], Any]:
    payload = case.message(full=False, dialect=dialect)
    return _floor.Putter(payload, 2 if dialect == "compact" else 1, queue.id).put

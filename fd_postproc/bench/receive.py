"""A message that waits in a System V queue -> Step: the system call, the kernel's copy and the decoding.

One process; sending is not timed.  Nothing is learned here about waiting or waking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import sysv_ipc

from .._core import Receiver, decode, payload_size
from ..layout import GPU
from ..queues import kernel_limits
from . import _floor
from .cases import HEADLINE, Case, Comparison, Ready, Unavailable, check

ABOUT = "Receiver.receive() of a message sent just before by the same process"
REFERENCE = "floor"

_SMALL = (
    Case("plain", accepted=1, columns=1),
    Case("spec", columns=1),
    Case(batch=5, accepted=6),
)
_SMALL_MORE = (Case("plain", 1, 1, 1), Case("plain", 512, 1, 1), Case("spec", 32, 2, 1), Case(batch=1))
_LARGE_MORE = (Case("topk", accepted=1, columns=1), Case("topk", accepted=1), Case(batch=32), Case(batch=512))


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in _SMALL if quick else _SMALL + _SMALL_MORE:
        yield _comparison(case, full=False)
    for case in (HEADLINE[0], HEADLINE[-1]) if quick else HEADLINE + _LARGE_MORE:
        yield _comparison(case, full=False)
    yield _comparison(HEADLINE[-1], full=True)


def _comparison(case: Case, full: bool) -> Comparison:
    return Comparison(
        f"{case}, {'full size' if full else 'cut after the last slot'}",
        {
            "fd_postproc": partial(_make, case, full, _ours),
            "floor": partial(_make, case, full, _take_and_copy),
            "sysv_ipc + decode": partial(_make, case, full, _sysv_ipc),
        },
    )


_Contender = Callable[[sysv_ipc.MessageQueue, Case], tuple[Callable[[], Any], Callable[[Any, bytes], bool]]]


def _make(case: Case, full: bool, contender: _Contender) -> Ready:
    payload = case.message(full=full)
    limits = kernel_limits()
    room = min(limits.msgmax, limits.msgmnb)
    if len(payload) > room:
        raise Unavailable(
            f"{len(payload)} bytes do not fit a queue here (msgmax {limits.msgmax}, msgmnb {limits.msgmnb}), "
            "and no IPC namespace of its own could be made: run as root, or raise both sysctls"
        )
    queue = sysv_ipc.MessageQueue(
        None, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=payload_size(case.channel)
    )
    try:
        receive, right = contender(queue, case)
        queue.send(payload, block=False, type=1)
        check(right(receive(), payload), "another message came out")
    except BaseException:
        queue.remove()
        raise

    def run(loops: int) -> float:
        send, now, total = queue.send, perf_counter, 0.0
        for _ in range(loops):
            send(payload, False, 1)
            began = now()
            receive()
            total += now() - began
        return total

    return Ready(run, len(payload), 1, queue.remove)


def _ours(queue: sysv_ipc.MessageQueue, case: Case) -> tuple:
    receiver = Receiver(case.channel, key=queue.key)
    return receiver.receive, lambda step, _: step == case.step()


def _take_and_copy(queue: sysv_ipc.MessageQueue, case: Case) -> tuple:
    taker = _floor.Taker(_floor.Rows(case.step(), GPU), queue.id, payload_size(case.channel))
    return taker.take, lambda n, payload: n == len(payload) and taker.taken()[:n] == payload


def _sysv_ipc(queue: sysv_ipc.MessageQueue, case: Case) -> tuple:
    take, channel = queue.receive, case.channel
    return lambda: decode(take()[0], channel), lambda step, _: step == case.step()

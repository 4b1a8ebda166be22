"""What the questions about receiving share: a private queue, filled before each timed call."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import sysv_ipc

from fd_postproc._core import payload_size
from fd_postproc.queues import kernel_limits

from .cases import Case, Ready, Unavailable, check


class Taking(NamedTuple):
    """A way to take a message out of a queue.

    Attributes
    ----------
    call : callable
        Takes one message; this is timed.
    right : callable
        Whether what `call` returned is right.
    payload : bytes
        The message.
    mtype : int
        1, or 2 for a compact frame.
    """

    call: Callable[[], Any]
    right: Callable[[Any], bool]
    payload: bytes
    mtype: int = 1


def fits(size: int) -> None:
    """Raise `Unavailable` if no message of `size` payload bytes can be sent here."""
    limits = kernel_limits()
    if size > min(limits.msgmax, limits.msgmnb):
        raise Unavailable(
            f"{size} bytes do not fit a queue here (msgmax {limits.msgmax}, msgmnb {limits.msgmnb}), "
            "and no IPC namespace of its own could be made: run as root, or raise both sysctls"
        )


def taken(case: Case, make: Callable[[sysv_ipc.MessageQueue, Case], Taking]) -> Ready:
    """Time a way to take the case's message, which this process has just sent; sending is not timed."""
    queue = sysv_ipc.MessageQueue(
        None, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=payload_size(case.channel)
    )
    try:
        way = make(queue, case)
        fits(len(way.payload))
        queue.send(way.payload, block=False, type=way.mtype)
        check(way.right(way.call()), "another message came out")
        check(queue.current_messages == 0, "the message is still there")
    except BaseException:
        queue.remove()
        raise

    def run(loops: int) -> float:
        send, call, now, total = queue.send, way.call, perf_counter, 0.0
        payload, mtype = way.payload, way.mtype
        for _ in range(loops):
            send(payload, False, mtype)
            began = now()
            call()
            total += now() - began
        return total

    return Ready(run, len(way.payload), queue.remove)

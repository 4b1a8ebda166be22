"""The cost of sending a compact frame in fragments, between two processes.

The timed process sends; a second one receives and says through a pipe when it has everything.  ``python -m``
with this module is that second process.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from time import perf_counter

import sysv_ipc

from .._child import python_command
from .._core import Receiver, Sender
from ..queues import kernel_limits
from .cases import Case, Channel, Comparison, Dialect, Ready, Unavailable, check

ABOUT = "one step from a sending process to a receiving one, by what one message may hold"
REFERENCE = "one message"

PATIENCE = 60  # seconds after which the receiving process gives up
_ORDER = struct.Struct("=qq")  # steps to be received; answer after so many of them

# kernel.msgmax and kernel.msgmnb.  A queue of 4 MiB lets the sender run ahead by several messages without
# filling the caches with those that wait.
_BIG = (1 << 20, 4 << 20)
_WAYS: dict[str, tuple[Dialect, tuple[int, int]]] = {
    "one message": ("compact", _BIG),
    "fragments of 8192": ("compact", (8192, 16384)),  # a new kernel's limits
    "fragments of 4096": ("compact", (4096, 16384)),
    "fragments of 8136": ("compact", (8136, 16384)),  # fill two pages, with the kernel's own headers
    "fragments of 4048": ("compact", (4048, 16384)),  # one page
    "one packed message": ("packed", _BIG),
}
_QUICK = tuple(_WAYS)[:3]
_LARGE = Case(batch=512, accepted=6)


def comparisons(quick: bool) -> Iterator[Comparison]:
    ways = _QUICK if quick else tuple(_WAYS)
    yield _comparison(Case(), ways, in_turn=False)
    if not quick:
        yield _comparison(_LARGE, ways, in_turn=False)
    yield _comparison(Case(), ways, in_turn=True)
    if not quick:
        yield _comparison(_LARGE, ways, in_turn=True)


def _comparison(case: Case, ways: tuple[str, ...], in_turn: bool) -> Comparison:
    return Comparison(
        f"{case}, {'each awaited' if in_turn else 'back to back'}",
        {way: partial(_make, case, *_WAYS[way], in_turn) for way in ways},
        {way: _WAYS[way][1] for way in ways},
    )


def _make(case: Case, dialect: Dialect, limits: tuple[int, int], in_turn: bool) -> Ready:
    now = kernel_limits()
    if (now.msgmax, now.msgmnb) != limits:
        raise Unavailable(
            f"needs msgmax {limits[0]} and msgmnb {limits[1]} (here {now.msgmax} and {now.msgmnb}) in an IPC "
            "namespace of its own, which could not be made: run as root"
        )
    queue = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX, mode=0o600)
    step = case.step()
    sender = Sender(case.channel, key=queue.key, dialect=dialect)
    peer = Peer(case, queue.key)
    try:
        peer.expect(1, 1)
        sender.send(step)
        check(peer.answer(), "another step came out")
    except BaseException:
        queue.remove()
        peer.close()
        raise

    def back_to_back(loops: int) -> float:
        send = sender.send
        began = perf_counter()
        peer.expect(loops, loops)
        for _ in range(loops):
            send(step)
        check(peer.answer(), "another step came out")
        return perf_counter() - began

    def each_awaited(loops: int) -> float:
        send, answer, right = sender.send, peer.answer, True
        peer.expect(loops, 1)
        began = perf_counter()
        for _ in range(loops):
            send(step)
            right &= answer()
        took = perf_counter() - began
        check(right, "another step came out")
        return took

    def close() -> None:
        queue.remove()
        peer.close()

    return Ready(
        each_awaited if in_turn else back_to_back, len(case.message(full=False, dialect=dialect)), close=close
    )


class Peer:
    """The receiving process."""

    def __init__(self, case: Case, key: int) -> None:
        shape = (case.channel, case.batch, case.accepted, case.columns, key)
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen(
            python_command(__name__, *map(str, shape)), stdin=orders, stdout=answers
        )
        os.close(orders)
        os.close(answers)

    def expect(self, steps: int, answer_every: int) -> None:
        """Tell it how many steps will come, and after how many of them to answer."""
        os.write(self._orders, _ORDER.pack(steps, answer_every))

    def answer(self) -> bool:
        """Wait for its word: whether the step that came last was the right one."""
        word = os.read(self._answers, 1)
        if not word:
            raise RuntimeError(f"the receiving process ended with status {self._process.wait()}")
        return word == b"="

    def close(self) -> None:
        os.close(self._orders)
        self._process.wait()
        os.close(self._answers)


def main(channel: Channel, batch: str, accepted: str, columns: str, key: str) -> None:
    """Receive as many steps as are announced on stdin, and answer on stdout."""
    right = Case(channel, int(batch), int(accepted), int(columns)).step()
    receiver = Receiver(channel, key=int(key))
    receive = receiver.receive
    signal.signal(signal.SIGALRM, _give_up)
    try:
        while order := os.read(0, _ORDER.size):
            steps, every = _ORDER.unpack(order)
            signal.alarm(PATIENCE)  # the sender may be dead
            for number in range(1, steps + 1):
                step = receive()
                if number % every:
                    continue
                # Of steps that are each awaited only the last is compared, to keep that out of the times.
                is_right = step == right if number == steps else step is not None and step.rows == right.rows
                os.write(1, b"=" if is_right else b"!")
            signal.alarm(0)
    except BaseException:
        receiver.remove()  # or the sender might wait for ever
        raise


def _give_up(*_: object) -> None:
    raise TimeoutError(f"no step for {PATIENCE} s")


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]

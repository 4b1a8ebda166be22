"""A second process that receives what the timed one sends, and says through a pipe when it has everything."""

from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
from collections.abc import Callable
from time import perf_counter
from typing import Any

from fd_postproc.subprocess_json import python_command

from .cases import TimeFunction, check

PATIENCE = 60  # seconds after which the receiving process gives up
_ORDER = struct.Struct("=qq")  # steps to be received; answer after so many of them


class Peer:
    """The receiving process.

    Parameters
    ----------
    module : str
        What it runs; its ``main`` calls `serve`.
    *arguments
        For its command line.
    """

    def __init__(self, module: str, *arguments: Any) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen(
            python_command(module, *map(str, arguments)), stdin=orders, stdout=answers
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


def serve(receive: Callable[[], Any], right: Callable[[Any, bool], bool], give_up: Callable[[], Any]) -> None:
    """Receive as many steps as are announced on stdin, and answer on stdout.

    Parameters
    ----------
    receive : callable
        Waits for one step.
    right : callable
        Whether a step is right; the second argument says whether it is the last one.  Of steps that are each
        awaited only the last should be looked at closely, to keep that out of the times.
    give_up : callable
        Frees a sender that waits for this process, which has failed.
    """
    signal.signal(signal.SIGALRM, _out_of_patience)
    gc.collect()
    gc.freeze()  # as in the timed process: see worker.measure
    try:
        while order := os.read(0, _ORDER.size):
            steps, every = _ORDER.unpack(order)
            signal.alarm(PATIENCE)  # the sender may be dead
            for number in range(1, steps + 1):
                step = receive()
                if number % every == 0:
                    os.write(1, b"=" if right(step, number == steps) else b"!")
            signal.alarm(0)
    except BaseException:
        give_up()
        raise


def _out_of_patience(*_: object) -> None:
    raise TimeoutError(f"no step for {PATIENCE} s")


def back_to_back(peer: Peer, send: Callable[[], Any]) -> TimeFunction:
    """Time until all steps have arrived; the sender runs ahead."""

    def run(loops: int) -> float:
        began = perf_counter()
        peer.expect(loops, loops)
        for _ in range(loops):
            send()
        check(peer.answer(), "another step came out")
        return perf_counter() - began

    return run


def each_awaited(peer: Peer, send: Callable[[], Any]) -> TimeFunction:
    """Time of steps of which each is answered before the next is sent."""

    def run(loops: int) -> float:
        answer, right = peer.answer, True
        peer.expect(loops, 1)
        began = perf_counter()
        for _ in range(loops):
            send()
            right &= answer()
        took = perf_counter() - began
        check(right, "another step came out")
        return took

    return run

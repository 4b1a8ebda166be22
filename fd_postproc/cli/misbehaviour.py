"""What ``fd-postproc worker-sim`` can do wrong, each begun before a step that the user names."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .terminal import CommandError

if TYPE_CHECKING:
    from .._core import Step
    from ..layout import Dialect
    from .simulated import Message, SimulatedWorker

_STRANGE_TYPE = 9  # neither a message of FastDeploy's nor a frame
_SLOWER = 1.02  # each step takes so many times as long as the one before it
_LOWERED = 256  # bytes; fewer than any message of a usual batch, more than the least fragment


def _anything(_worker: SimulatedWorker, _args: argparse.Namespace, _step: Step) -> None:
    """Check nothing, because nothing has to be given."""


@dataclass(frozen=True)
class Mishap:
    """One kind of misbehaviour.

    Parameters
    ----------
    name, help : str
    begin : function
        Called with the worker, the arguments and the step that is due; that step is sent afterwards.
    check : function
        Called with the same before anything is sent; raises a CommandError if the fault cannot be made so.
    """

    name: str
    help: str
    begin: Callable[[SimulatedWorker, argparse.Namespace, Step], None]
    check: Callable[[SimulatedWorker, argparse.Namespace, Step], None] = _anything


def _silence(_worker: SimulatedWorker, args: argparse.Namespace, _step: Step) -> None:
    if args.seconds is not None:
        time.sleep(args.seconds)
        return
    while True:
        time.sleep(3600.0)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _in_pieces(worker: SimulatedWorker, _args: argparse.Namespace, step: Step) -> None:
    messages = worker.messages(step)
    if len(messages) == 1:
        raise CommandError(
            f"a step of this load is one message of {len(messages[0][1]):,} bytes; a frame in pieces takes "
            "more: --dialect compact --load 256,1,21 --channel topk, or lower limits"
        )


def _die_in_a_frame(worker: SimulatedWorker, _args: argparse.Namespace, step: Step) -> None:
    messages = worker.messages(step)
    for mtype, payload in messages[: (len(messages) + 1) // 2]:
        worker.put(mtype, payload)
    _die()


def _malformed(worker: SimulatedWorker, args: argparse.Namespace, step: Step) -> None:
    """Make one malformed message of each kind."""
    import random

    mtype, payload = worker.messages(step)[0]
    noise = random.Random(args.seed).randbytes(len(payload))
    worker.put(mtype, payload[: len(payload) // 2])
    worker.put(mtype, payload[:-1])
    worker.put(mtype, b"")
    worker.put(mtype, noise)
    worker.put(_STRANGE_TYPE, payload)


def _corrupt(worker: SimulatedWorker, _args: argparse.Namespace, step: Step) -> None:
    """Make the step with one wrong bit in its last number, which only a checksum shows."""
    *before, (mtype, payload) = worker.messages(step)
    for message in [*before, (mtype, payload[:-4] + bytes([payload[-4] ^ 1]) + payload[-3:])]:
        worker.put(*message)


def _other_build(worker: SimulatedWorker, _args: argparse.Namespace, _step: Step) -> None:
    """Make FastDeploy's full-size messages of a build with twice as many slots."""

    def of_that_build(step: Step, _messages: list[Message]) -> list[Message]:
        from dataclasses import replace

        from .._core import encode, payload_size

        layout = worker.layout
        other = replace(layout, max_batch=2 * layout.max_batch, spec_batch=2 * layout.spec_batch)
        return [(1, encode(step, layout=other).ljust(payload_size(worker.channel, other), b"\0"))]

    worker.change = of_that_build


def _full_size(worker: SimulatedWorker, _args: argparse.Namespace, _step: Step) -> None:
    def full_size(step: Step, _messages: list[Message]) -> list[Message]:
        from .._core import encode, payload_size

        dialect: Dialect = "legacy" if worker.dialect == "legacy" else "packed"
        payload = encode(step, dialect, layout=worker.layout)
        return [(1, payload.ljust(payload_size(worker.channel, worker.layout), b"\0"))]

    worker.change = full_size


def _lowered_limits(worker: SimulatedWorker, _args: argparse.Namespace, _step: Step) -> None:
    worker.queue.lower(_LOWERED)


def _burst(worker: SimulatedWorker, args: argparse.Namespace, step: Step) -> None:
    for _ in range(args.times):
        worker.send(step)


def _drift(worker: SimulatedWorker, _args: argparse.Namespace, _step: Step) -> None:
    worker.growth = _SLOWER


def _paced(_worker: SimulatedWorker, args: argparse.Namespace, _step: Step) -> None:
    if args.full_speed:
        raise CommandError("a worker without pauses cannot become slower; leave --full-speed out")


def _removed(worker: SimulatedWorker, *_: object) -> None:
    worker.remove_queue()


def _lost(worker: SimulatedWorker, _args: argparse.Namespace, step: Step) -> None:
    worker.messages(step)


def _doubled(worker: SimulatedWorker, _args: argparse.Namespace, step: Step) -> None:
    for mtype, payload in 2 * worker.messages(step):
        worker.put(mtype, payload)


def _reordered(worker: SimulatedWorker, _args: argparse.Namespace, step: Step) -> None:
    first, second = worker.messages(step), worker.messages(step)
    for mtype, payload in second + first:
        worker.put(mtype, payload)


def _restart(worker: SimulatedWorker, *_: object) -> None:
    worker.restart()


MISHAPS = {
    fault.name: fault
    for fault in (
        Mishap("silence", "nothing is sent, for --seconds or until interrupted", _silence),
        Mishap("drift", "each step takes 2 % longer than the one before, up to 2 s", _drift, _paced),
        Mishap("burst", "--times steps more at once, without a pause", _burst),
        Mishap("death", "the process kills itself (SIGKILL) between two steps", _die),
        Mishap("death-in-frame", "the same when half of a frame is sent", _die_in_a_frame, _in_pieces),
        Mishap("restart", "frames come from another sender, numbered from 0", _restart),
        Mishap("lost", "a step is left out, as if the queue had lost it", _lost),
        Mishap("doubled", "a step comes twice", _doubled),
        Mishap("reordered", "two steps change places", _reordered),
        Mishap("malformed", "five messages that do not add up: cut, empty, noise, a wrong type", _malformed),
        Mishap("corrupt", "a step comes with one wrong bit, and once more without", _corrupt),
        Mishap("other-build", "messages of a build with twice as many slots", _other_build),
        Mishap("full-size", "FastDeploy's full-size messages; what the kernel refuses is lost", _full_size),
        Mishap("lowered-limit", f"the queue may hold {_LOWERED} bytes from now on", _lowered_limits),
        Mishap("removed", "the queue is removed (ipcrm); a new one is waited for", _removed),
    )
}  # fmt: skip
"""All faults by name."""

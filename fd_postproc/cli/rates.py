"""Measurements of ``fd-postproc bench`` on this package alone: queue, save, decode and lists.

Queue and save need a reader or writer at the other end of a real queue: a second process (`bench_peer`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from statistics import quantiles
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sysv_ipc

from .. import ops
from .._core import Receiver, Step, decode, encode, has_logprobs
from ..environment import COMPACT
from ..errors import QueueError, QueueRemoved
from ..layout import Channel
from ..ops.table import SAVE_OPS
from ..queues import CHANNEL_PATHS, inspect_queue, not_made, queue_key
from ..subprocess_json import python_command
from .terminal import CommandError, undisturbed
from .workload import synthetic_step

if TYPE_CHECKING:
    from ..needed_limits import Load

# What a worker calls at every step, by channel; the others are for the first token of a prefill node.
_SAVE_OP_OF = {spec.channel: name for name, spec in SAVE_OPS.items() if not spec.every_rank}
_START_WAIT_S = 30.0  # seconds for the second process to start


class Spread(NamedTuple):
    """Spread of a call's time in seconds, over several passes.

    Attributes
    ----------
    median : float
    low, high : float
        The ends of the middle half of the passes.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, times: list[float]) -> Spread:
        """Compute the spread of at least two passes."""
        low, middle, high = quantiles(times, n=4, method="inclusive")
        return cls(middle, low, high)

    @property
    def is_wide(self) -> bool:
        """Whether the middle half is wider than a third of the median, as on a busy machine."""
        return self.high - self.low > self.median / 3


class Rate(NamedTuple):
    """Time of one step.

    Attributes
    ----------
    what : str
    batch : int
    seconds : Spread
    """

    what: str
    batch: int
    seconds: Spread


def rates(channel: Channel, loads: list[Load], seconds: float) -> Iterator[Rate]:
    """Measure each load for about `seconds` with each of the four questions.

    Raises
    ------
    CommandError
        If no queue can be made, or the second process ends.
    ValueError
        If the channel cannot carry a load.
    """
    steps = [synthetic_step(channel, load.batch, load.accepted, load.columns) for load in loads]
    for name, measure in _QUESTIONS.items():
        for load, step in zip(loads, steps, strict=True):
            yield Rate(name, load.batch, measure(step, load, seconds))


def timed(call: Callable[[], Any], loops: int) -> float:
    """Seconds that a number of calls takes."""
    began = perf_counter()
    for _ in repeat(None, loops):
        call()
    return perf_counter() - began


def loops_for(call: Callable[[], Any], seconds: float) -> int:
    """Number of calls that take about that long."""
    loops = 1
    while (took := timed(call, loops)) < seconds / 2:
        loops *= 2 if took < seconds / 8 else max(2, round(seconds / took))
    return loops


def per_call(call: Callable[[], Any], seconds: float) -> Spread:
    """Seconds of one call, from at least five passes."""
    loops = loops_for(call, seconds / 10)
    end = perf_counter() + seconds
    passes = [timed(call, loops) for _ in range(5)]
    while perf_counter() < end:
        passes.append(timed(call, loops))
    return Spread.of([took / loops for took in passes])


def _decode(step: Step, load: Load, seconds: float) -> Spread:
    return per_call(partial(decode, encode(step), step.channel), seconds)


def _lists(step: Step, load: Load, seconds: float) -> Spread:
    return per_call(step.tolists, seconds)


def _queue(step: Step, load: Load, seconds: float) -> Spread:
    with _other_end("send", step, load) as (_, receiver):
        arrived = receiver.receive(_START_WAIT_S)
        if arrived is None:
            raise CommandError(f"nothing came from the second process for {_START_WAIT_S:.0f} s")
        if arrived != step:
            raise CommandError("the step that arrived is not the one that was sent")
        return per_call(receiver.receive, seconds)


def _save(step: Step, load: Load, seconds: float) -> Spread:
    with _other_end("receive", step, load) as (queue_id, receiver):
        settings = {"INFERENCE_MSG_QUEUE_ID": str(queue_id), "FD_POSTPROC_PEER": COMPACT}
        before = {name: os.environ.get(name) for name in (*settings, "FD_POSTPROC_DIALECT")}
        os.environ.pop("FD_POSTPROC_DIALECT", None)
        os.environ.update(settings)
        save = _save_call(step, load)
        try:
            save()
            while inspect_queue(receiver.msqid).messages:  # until the second process has started
                sleep(0.01)
            return per_call(save, seconds)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


_QUESTIONS: dict[str, Callable[[Step, Load, float], Spread]] = {
    "save op, to another process": _save,
    "receive, from another process": _queue,
    "decode a message": _decode,
    "step as nested lists": _lists,
}


def _save_call(step: Step, load: Load) -> Callable[[], Any]:
    """The channel's save op on NumPy arrays with the sampler's dtypes; no request is preempted."""
    batch, op = load.batch, _SAVE_OP_OF[step.channel]
    tensors: dict[str, Any] = {
        "ids": np.array(step.ids, np.int64),
        "counts": np.array(step.counts, np.int32),
        "offsets": np.array(step.offsets, np.int32),
        "decoded": np.full(batch, 200, np.int32),
        "prompts": np.full(batch, 100, np.int64),
        "preempted": np.zeros((batch, 1), np.int32),
    }
    tensors["tokens"] = tensors["ids"][:, 0].reshape(batch, load.accepted).copy()
    if has_logprobs(step.channel):
        tensors["scores"], tensors["ranks"] = np.array(step.scores), np.array(step.ranks, np.int64)
    given = {name: tensors[role] for role, name in SAVE_OPS[op].roles.items()}
    given |= {"not_need_stop": np.array([True]), "rank_id": 0, "save_each_rank": False}
    given |= {"skip_prefill": True, "message_flag": step.flag}
    return partial(getattr(ops, op), **{name: given[name] for name in SAVE_OPS[op].parameters})


@contextlib.contextmanager
def _other_end(role: str, step: Step, load: Load) -> Iterator[tuple[int, Receiver]]:
    """A private queue, its id and a Receiver, with the second process at its other end."""
    queue_id, queue = _new_queue(step.channel)
    receiver = Receiver(step.channel, key=queue.key)
    numbers = (queue.key, load.batch, load.accepted, load.columns)
    command = python_command(f"{__package__}.bench_peer", role, step.channel, *map(str, numbers))
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            threading.Thread(target=_end_with, args=(process, queue), daemon=True).start()
            try:
                yield queue_id, receiver
            except QueueRemoved:
                process.wait()
                last = process.stderr.read().strip().splitlines()[-1:] if process.stderr else []
                raise CommandError(f"the second process has ended: {''.join(last) or 'killed'}") from None
            finally:
                process.kill()
    except QueueError as error:
        raise CommandError(str(error)) from None
    finally:
        _remove(queue)


def _end_with(process: subprocess.Popen[str], queue: sysv_ipc.MessageQueue) -> None:
    """Wake the thread that waits at the queue when the process at its other end has ended."""
    process.wait()
    _remove(queue)


def _remove(queue: sysv_ipc.MessageQueue) -> None:
    with undisturbed(), contextlib.suppress(sysv_ipc.ExistentialError):
        queue.remove()


def _new_queue(channel: Channel) -> tuple[int, sysv_ipc.MessageQueue]:
    """A new queue with an unused id."""
    while True:
        queue_id = int.from_bytes(os.urandom(2), "little") | 1 << 16  # no port has such a number
        key = queue_key(queue_id, CHANNEL_PATHS[channel])
        try:
            return queue_id, sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600)
        except sysv_ipc.ExistentialError:
            continue
        except OSError as error:
            raise not_made(error, "making a private queue") from None

"""A worker without a GPU: it sends made-up steps to a queue, and does what workers do wrong.

    python -m tests.lib.simulated_worker QUEUE --channel plain [--fault NAME]

An engine gives a step's tokens to the requests in its first slots.  Stop the engine's own worker (kill -STOP)
while this one sends.
"""

import argparse
import os
import random
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc._core import CHANNELS, payload_size
from fd_postproc.cli.queue_io import find, queue_name
from tests.reference import COMPACT_MTYPE, MTYPE, ReferenceStep, encode_frame, split

SLOWER = 1.02  # each step takes so many times as long as the one before it
SLOWEST = 2.0  # seconds
LOWERED = 256  # bytes; fewer than any message of a usual batch, more than the least fragment
BURST = 200  # steps
STRANGE_TYPE = 9  # neither a message of FastDeploy's nor a frame


def note(text):
    print(text, file=sys.stderr, flush=True)


class Worker:
    """Sends steps to a queue, and loses refused ones, as FastDeploy's save ops do."""

    def __init__(self, channel, key, dialect="packed"):
        self.channel, self.key, self.dialect = channel, key, dialect
        self.pace, self.growth, self.change = 0.0, 1.0, None
        self.restart()
        self.connect()

    def connect(self):
        self.queue = sysv_ipc.MessageQueue(self.key, max_message_size=1 << 26)

    def restart(self):
        """As a new process: another sender, frames from 0."""
        self.sender, self.seq = random.SystemRandom().getrandbits(63), 0

    def limit(self):
        return min(queues.kernel_limits().msgmax, self.queue.max_size)

    def messages(self, step):
        """The messages of a step, (mtype, payload), which take a frame's number."""
        if self.dialect != "compact":
            return [(MTYPE, fp.encode(step, self.dialect))]
        frame = encode_frame(ReferenceStep.from_step(step), sender=self.sender, seq=self.seq)
        self.seq += 1
        pieces = split(frame, min(self.limit(), payload_size(self.channel, fp.GPU)))
        return [(COMPACT_MTYPE, piece) for piece in pieces]

    def send(self, step):
        messages = self.messages(step)
        if self.change is not None:
            messages = self.change(step)
        try:
            self.put(messages)
        except sysv_ipc.ExistentialError:
            note(f"Queue {self.queue.id} was removed; waiting for its reader to make a new one.")
            while True:
                time.sleep(0.02)
                try:
                    self.connect()
                except sysv_ipc.ExistentialError:
                    continue
                return self.put(messages)

    def put(self, messages):
        for mtype, payload in messages:
            limit = self.limit()
            if len(payload) > limit:  # the queue's own limit would be waited for, as if it were full
                note(f"A step was lost: a message of {len(payload)} bytes was refused: one may have {limit}")
                return
            began, told = time.monotonic(), False
            while not self._put(mtype, payload):
                if not told and time.monotonic() > began + 1:
                    note(f"Queue {self.queue.id} is full; waiting for its reader.")
                    told = True
                time.sleep(0.0005)

    def _put(self, mtype, payload):
        try:
            self.queue.send(payload, block=False, type=mtype)
        except sysv_ipc.BusyError:
            return False
        return True


# ---- faults, each begun before the step that is due; that step is sent afterwards --------------------


def silence(_worker, _step):
    while True:
        time.sleep(3600.0)


def death(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def death_in_frame(worker, step):
    messages = worker.messages(step)
    assert len(messages) > 1, "a frame in one piece"
    worker.put(messages[: (len(messages) + 1) // 2])
    death()


def drift(worker, _step):
    worker.growth = SLOWER


def burst(worker, step):
    for _ in range(BURST):
        worker.send(step)


def restart(worker, _step):
    worker.restart()


def lost(worker, step):
    worker.messages(step)


def doubled(worker, step):
    worker.put(2 * worker.messages(step))


def reordered(worker, step):
    first, second = worker.messages(step), worker.messages(step)
    worker.put(second + first)


def malformed(worker, step):
    """One malformed message of each kind."""
    mtype, payload = worker.messages(step)[0]
    noise = random.Random(0).randbytes(len(payload))
    wrong = [payload[: len(payload) // 2], payload[:-1], b"", noise]
    worker.put([*((mtype, one) for one in wrong), (STRANGE_TYPE, payload)])


def corrupt(worker, step):
    """The step with one wrong bit in its last number, which only a checksum shows."""
    *before, (mtype, payload) = worker.messages(step)
    worker.put([*before, (mtype, payload[:-4] + bytes([payload[-4] ^ 1]) + payload[-3:])])


def other_build(worker, _step):
    """FastDeploy's full-size messages of a build with twice as many slots."""
    layout = replace(fp.GPU, max_batch=2 * fp.GPU.max_batch, spec_batch=2 * fp.GPU.spec_batch)
    _full_size(worker, layout)


def full_size(worker, _step):
    _full_size(worker, fp.GPU)


def _full_size(worker, layout):
    size = payload_size(worker.channel, layout)
    worker.change = lambda step: [(MTYPE, fp.encode(step, layout=layout).ljust(size, b"\0"))]


def lowered_limit(worker, _step):
    worker.queue.max_size = LOWERED


def removed(worker, _step):
    worker.queue.remove()


FAULTS = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        silence, drift, burst, death, death_in_frame, restart, lost, doubled, reordered, malformed, corrupt,
        other_build, full_size, lowered_limit, removed,
    )
}  # fmt: skip


def made_up(channel, batch, accepted, columns):
    """Sixteen steps, seeded, with `accepted` tokens of every request."""
    random, rows = np.random.default_rng(0), batch * accepted
    for _ in range(16):
        ids = random.integers(1000, 2000, (rows, columns))
        logprobs = (-random.exponential(2.0, ids.shape).cumsum(axis=1), np.ones(rows, int))
        logprobs = logprobs if channel.endswith("topk") else ()
        yield fp.Step.from_arrays(channel, [accepted] * batch, ids, *logprobs)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("queue", type=queue_name)
    parser.add_argument("--channel", choices=CHANNELS, required=True)
    parser.add_argument("--load", default="8,1,1", metavar="BATCH,ACCEPTED,COLUMNS")
    parser.add_argument("--dialect", choices=("packed", "legacy", "compact"), default="packed")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds of a step")
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--at", type=int, default=100, help="the step at which the fault begins")
    options = parser.parse_args(arguments)
    key = find(options.queue, options.channel, None, "custom").key
    worker = Worker(options.channel, key, options.dialect)
    worker.pace = options.pace
    steps = [*made_up(options.channel, *map(int, options.load.split(",")))]
    number, due = 0, time.monotonic()
    while True:
        step = steps[number % len(steps)]
        if number == options.at and options.fault:
            note(f"Step {number}: {options.fault}.")
            FAULTS[options.fault](worker, step)
            due = time.monotonic()  # what the fault took is not caught up with
        worker.send(step)
        due += worker.pace
        worker.pace = min(worker.pace * worker.growth, max(SLOWEST, worker.pace))
        time.sleep(max(due - time.monotonic(), 0))
        number += 1


if __name__ == "__main__":
    main()

"""Run in a fresh interpreter: many steps through a queue must leave memory where it was.

Usage: leak.py STEPS KEY.  Prints how many KiB the second half of the steps added.
"""

import pickle
import sys
from pathlib import Path

import sysv_ipc

sys.path.append(str(Path(__file__).parents[2]))

import fd_postproc as fp
from tests.lib.random_steps import random_step

LAYOUT = fp.Layout(max_batch=4, top_k=2)


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def messages():
    """One message of every channel and dialect, and some that are refused."""
    for channel in fp._core.CHANNELS:
        step = random_step(channel, 5, batch=4, cols=None, layout=LAYOUT)
        for dialect, mtype in ("packed", 1), ("legacy", 1), ("compact", 2):
            yield channel, fp.encode(step, dialect, layout=LAYOUT), mtype
    yield "plain", b"\1\0\0\0\xff\xff\xff\xff", 1  # refused
    yield "plain", bytes(3000), 1  # too long


def use(step):
    step.tolists()
    for i in range(step.batch):
        step.token_ids(i)
        if step.scores is not None:
            view = step.logprobs(i).slice_columns(0, 2)
            assert pickle.loads(pickle.dumps(view)) == view
    assert pickle.loads(pickle.dumps(step)) == step
    memoryview(step.ids).tolist()
    repr(step)


def run(steps, receivers, queue, sent):
    for n in range(steps):
        channel, payload, mtype = sent[n % len(sent)]
        queue.send(payload, type=mtype)
        try:
            use(receivers[channel].receive(0))
        except fp.MalformedMessage as error:
            str(error)


def main():
    steps, key = map(int, sys.argv[1:])
    receivers = {channel: fp.Receiver(channel, key=key, layout=LAYOUT) for channel in fp._core.CHANNELS}
    queue = sysv_ipc.MessageQueue(key, max_message_size=8192)
    try:
        sent = list(messages())
        run(steps // 2, receivers, queue, sent)
        before = resident_kib()
        run(steps // 2, receivers, queue, sent)
        print(resident_kib() - before)
    finally:
        queue.remove()


main()

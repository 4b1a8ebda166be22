"""Run in a fresh interpreter: many steps through a queue must leave memory where it was.

Usage: leak.py STEPS KEY.  Prints how many KiB the second half of the steps added.
"""

import pickle
import sys

import sysv_ipc

import fd_postproc as fp


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def messages():
    """One message of every channel and dialect, and some that are refused."""
    logprobs = fp.Step.from_arrays(
        "spec_topk", [2, 0, -9, 1], [[n, n + 1, n + 2] for n in range(3)], [[-1.5, -2.5, -3.5]] * 3, [1, 2, 3]
    )
    topk = fp.Step.from_arrays("topk", [1, -1], [[5, 6]], [[-0.5, -0.25]], [1])
    spec = fp.Step.from_arrays("spec", [3, -3], [7, 8, 9])
    plain = fp.Step.from_arrays("plain", [1, -1, 1], [3, 4])
    for step in (plain, spec, logprobs):
        yield step.channel, fp.encode(step)
    yield "spec_topk", fp.encode(logprobs, "legacy")
    yield "plain", b"\1\0\0\0\xff\xff\xff\xff"  # refused
    yield "plain", bytes(3000)  # too long
    yield "topk", fp.encode(topk, layout=fp.Layout(max_batch=4, top_k=2))


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
        channel, payload = sent[n % len(sent)]
        queue.send(payload)
        try:
            use(receivers[channel].receive(0))
        except fp.MalformedMessage as error:
            str(error)


def main():
    steps, key = map(int, sys.argv[1:])
    layouts = {"topk": fp.Layout(max_batch=4, top_k=2)}
    receivers = {
        channel: fp.Receiver(channel, key=key, layout=layouts.get(channel, fp.GPU))
        for channel in ("plain", "topk", "spec", "spec_topk")
    }
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

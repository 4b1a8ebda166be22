"""Run with lib/set_clock.c preloaded: services whose clock is set while they run.

Usage: set_clock.py MOMENTS SECONDS ..., MOMENTS being some of "start,middle,end".  For each of them, and each
number of seconds, an engine's and a worker's process deliver steps on the double, with recorders.  A third
process asks the doctor and explain, with both of them alive and after their end.  Prints a line of JSON for
each, with what was wrong.
"""

import contextlib
import io
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent)]

CHANNELS = {"start": "spec_topk", "middle": "topk", "end": "plain"}
STEPS, STALE, END = 15, 3, 2
NAMES = ("chat-1_0", "chat-2_0")


class Clock:
    """The clock of all processes here."""

    def __init__(self):
        with open(os.environ["SET_CLOCK"], "r+b") as file:
            self._sets = mmap.mmap(file.fileno(), 4096)
        self.off_ns = 0

    def set(self, seconds):
        (n,) = struct.unpack_from("<q", self._sets)
        time.sleep(1 - time.time() % 1)  # the kernel's stamps are whole seconds: none of before is of after
        real_ns = time.time_ns() - self.off_ns
        before = time.time()
        self.off_ns += seconds * 10**9
        struct.pack_into("<qq", self._sets, 8 + 16 * n, real_ns, self.off_ns)
        struct.pack_into("<q", self._sets, 0, n + 1)
        assert abs(time.time() - before - seconds) < 0.5, "the clock was not set"


class Line:
    """One end of a line to another process: values as JSON, one after the other."""

    def __init__(self, end):
        self._end, self._file = end, end.makefile("r")

    def say(self, what):
        self._end.sendall(json.dumps(what).encode() + b"\n")

    def hear(self):
        line = self._file.readline()
        assert line, "the other process has ended"
        return json.loads(line)

    def is_called(self, seconds):
        return bool(select.select([self._end], [], [], seconds)[0])

    def ask(self, question):
        self.say(question)
        return self.hear()


class Child(Line):
    """A forked process at the other end of a line."""

    def __init__(self, run, *arguments):
        ours, its = socket.socketpair()
        ours.settimeout(300)
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            try:
                run(Line(its), *arguments)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        its.close()
        super().__init__(ours)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._file.close()
        self._end.close()


# ---- what an operator asks


def operator(line):
    """Answers of ``fd-postproc``, as JSON."""
    from fd_postproc.cli import main

    while True:
        arguments = line.hear()
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            main(arguments)
        assert out.getvalue(), errors.getvalue()
        line.say(json.loads(out.getvalue()))


# ---- the service


def engine(line, channel):
    """A token processor; its health is asked all the time."""
    from tests.lib.rig import Rig

    rig = Rig(channel, NAMES)
    line.say("constructed")
    line.hear()
    rig.start()
    line.say("runs")
    alarms, asked, deadline = set(), False, time.monotonic() + 60

    def ended():
        return {one.request_id for put in tuple(rig.sink.puts) for one in put if one.finished}

    while not asked or len(ended()) < len(NAMES):
        if (alarm := rig.processor.health()) is not None:
            alarms.add(str(alarm))
        asked = asked or line.is_called(0.005)
        if time.monotonic() > deadline:
            break
    tokens = {name: [] for name in NAMES}
    for result in (result for put in rig.sink.puts for result in put):
        tokens[result.request_id] += [int(token) for token in result.outputs.token_ids]
    counters = rig.processor.counters
    rig.close()
    line.say({"tokens": tokens, "alarms": sorted(alarms), "stale": counters.stale})


def worker(line, channel, seed):
    """A worker with the plug-in: a third of its steps each time that it is asked."""
    import numpy as np

    from fd_postproc.fastdeploy.worker import entry
    from tests.lib.quiet import Double
    from tests.lib.sampled_steps import Requests
    from tests.lib.worker_side import save

    os.environ["FD_POSTPROC_PEER"] = "compact/1"
    entry.register()
    rng, double, sent = np.random.default_rng(seed), Double(), {name: [] for name in NAMES}
    for number in range(STEPS):
        if number % (STEPS // 3) == 0:
            if number:
                line.say(sent)
            line.hear()
        requests = Requests(rng, len(NAMES), 3, 5)
        requests.counts[:] = np.maximum(requests.counts, 1) if channel.startswith("spec") else 1
        if number == STEPS - 1:
            requests.counts[:] = 1
            requests.ids[:, 0, 0] = END
        save(double, channel, requests)
        for slot, name in enumerate(NAMES):
            sent[name] += requests.ids[slot, : requests.counts[slot], 0].tolist()
    line.say(sent)
    line.hear()


def earlier_worker(line, channel):
    """Leave messages in the queue, as a run that was killed does."""
    import fd_postproc as fp

    logprobs = () if channel == "plain" else ([[-1.0], [-1.0]], [1, 1])
    with fp.Sender(channel, dialect="compact") as sender:
        for _ in range(STALE):
            sender.send(fp.Step.from_arrays(channel, [1, 1], [[11], [13]], *logprobs))
    line.say("sent")


def serve(clock, answers, seconds, moment):
    """Run one service; what was wrong."""
    import sysv_ipc

    from fd_postproc import queues

    channel = CHANNELS[moment]
    key = queues.locate(channel)
    wrong, children = [], []

    def check(what, found, right):
        if found != right:
            wrong.append(f"{what}: {found}, not {right}")

    def look(when):
        told = answers.ask(["doctor", "--json", "--queue-id", os.environ["INFERENCE_MSG_QUEUE_ID"]])
        its = [one for one in told["findings"] if one["group"] == "queues" and one["severity"] != "info"]
        check(f"doctor {when}", [one["code"] for one in its if one["severity"] != "ok"], [])
        check(f"queues {when}", sum(one["msqid"] is not None for one in its), when == "during")
        told = answers.ask(["explain", "--json"])
        check(f"explain {when}", told["pid"], pid)
        check(f"explain {when}", [one["text"] for one in told["findings"]], [])
        story = answers.ask(["explain", "--json", NAMES[0].removesuffix("_0")])["request"]
        check(f"story {when}", story["end"], None if when == "during" else "ended")

    try:
        earlier = Child(earlier_worker, channel)
        assert earlier.hear() == "sent"
        earlier.end()
        children.append(Child(engine, channel))
        pid = children[0].pid
        assert children[0].hear() == "constructed"
        children.append(Child(worker, channel, seconds % 97))
        children[1].ask("go")
        if moment == "start":
            clock.set(seconds)
        assert children[0].ask("run") == "runs"
        children[1].ask("go")
        if moment == "middle":
            clock.set(seconds)
        look("during")
        sent = children[1].ask("go")
        if moment == "end":
            clock.set(seconds)
        told = children[0].ask("end")
        check("tokens", told["tokens"], sent)
        check("health", told["alarms"], [])
        check("stale", told["stale"], STALE)
        while children:
            children.pop().end()
        look("after")
    finally:
        for child in children:
            child.end()
        with contextlib.suppress(sysv_ipc.ExistentialError):
            sysv_ipc.MessageQueue(key).remove()
    return wrong


def main():
    answers = Child(operator)  # before the double is found: the doctor would try it every time
    sys.path.insert(0, str(TESTS / "fastdeploy_double"))
    import paddle  # noqa: F401, for all services

    import tests.lib.rig
    import tests.lib.worker_side  # noqa: F401

    clock = Clock()
    try:
        for moment in sys.argv[1].split(","):
            for seconds in map(int, sys.argv[2:]):
                print(json.dumps([moment, seconds, serve(clock, answers, seconds, moment)]), flush=True)
    finally:
        answers.end()


if __name__ == "__main__":
    main()

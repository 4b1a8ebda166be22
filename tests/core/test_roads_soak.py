"""Many steps over ipc and tcp, while senders are killed: the Receiver lives, and nothing else is lost.

Of a sender that was killed, what comes is its beginning.
"""

import collections
import mmap
import random
import signal
import struct
import subprocess
import time

import numpy as np
import pytest

from tests.lib.children import python
from tests.lib.roads import Road
from tests.lib.waiting import until

HWM = 64

SENDER = """
import mmap, struct
import fd_postproc as fp
who, count, counter, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
with open(counter, "r+b") as file:
    sent = mmap.mmap(file.fileno(), 8)
with fp.Sender("plain", address=address, hwm=int(sys.argv[5]), linger=120) as sender:
    for k in range(count):
        sender.send_arrays([1, 1], [who, k])
        sent[:] = struct.pack("<q", k + 1)
"""

RECEIVER = """
import os, signal
import fd_postproc as fp
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
print("ready", flush=True)
came = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
with fp.Receiver("plain", address=sys.argv[2]) as receiver:
    while not stopped:
        step = receiver.receive(0.1)
        if step is not None:
            os.write(came, step.ids)
stats = receiver.stats
assert not any(stats[name] for name in ("missing", "doubled", "reordered", "malformed")), stats
"""


class Soak:
    """Senders and one receiver, as processes, and what they wrote down."""

    def __init__(self, folder, address, seed):
        self.folder, self.address = folder, address
        self.random = random.Random(seed)
        self.came = folder / "came"
        self.senders = {}
        self.killed, self.planned = set(), {}
        self.receiver = None

    def start_receiver(self):
        self.receiver = subprocess.Popen(
            python(RECEIVER, self.came, self.address), stdout=subprocess.PIPE, text=True
        )
        assert self.receiver.stdout.readline() == "ready\n"

    def stop_receiver(self):
        self.receiver.send_signal(signal.SIGTERM)
        assert self.receiver.wait(60) == 0
        self.receiver.stdout.close()

    def start_sender(self, count):
        who = len(self.planned)
        self.planned[who] = count
        (self.folder / f"sent{who}").write_bytes(bytes(8))
        command = python(SENDER, who, count, self.folder / f"sent{who}", self.address, HWM)
        self.senders[who] = subprocess.Popen(command)

    def kill_sender(self):
        if self.senders:
            who, process = self.senders.popitem()
            process.kill()
            if process.wait() == -signal.SIGKILL:
                self.killed.add(who)

    def reap(self):
        """Forget the senders that have ended."""
        for who, process in list(self.senders.items()):
            if process.poll() is not None:
                assert process.wait() == 0
                del self.senders[who]

    def sent(self, who):
        with open(self.folder / f"sent{who}", "r+b") as file, mmap.mmap(file.fileno(), 8) as sent:
            return struct.unpack("<q", sent[:])[0]

    @property
    def arrived(self):
        return self.came.stat().st_size // 8

    def close(self):
        for process in (*self.senders.values(), self.receiver):
            if process.poll() is None:
                process.kill()
            process.wait()
        self.receiver.stdout.close()

    def run(self, total, at_a_time, each, nap):
        self.start_receiver()
        until(self.came.exists)
        while self.arrived < total or self.senders:
            self.reap()
            while self.arrived < total and len(self.senders) < at_a_time:
                self.start_sender(each)
            time.sleep(self.random.uniform(nap / 2, nap))
            if self.random.random() < 0.4 and self.arrived < total:
                self.kill_sender()
        time.sleep(0.5)  # what killed senders had in the kernel
        self.stop_receiver()

    def judge(self):
        """Lost steps of killed senders; fails if others are lost, or come in another order."""
        came = np.fromfile(self.came, np.int32).reshape(-1, 2)
        lost = 0
        for who, planned in self.planned.items():
            numbers = came[came[:, 0] == who, 1]
            assert (numbers == np.arange(len(numbers))).all()
            if who in self.killed:
                lost += max(self.sent(who) - len(numbers), 0)
            else:
                assert (len(numbers), self.sent(who)) == (planned, planned)
        return collections.Counter(came=len(came), lost=lost, killed_senders=len(self.killed))


@pytest.fixture(params=["ipc", pytest.param("tcp", marks=pytest.mark.nightly)])
def soak(request, queue_keys, tmp_path):
    road = Road(request.param, queue_keys)
    road.receiver().close()
    soak = Soak(tmp_path, road.end["address"], 5)
    yield soak
    soak.close()
    road.close()


def test_some_thousand_steps(soak):
    soak.run(total=3000, at_a_time=2, each=1000, nap=0.3)
    assert soak.judge()["came"] >= 3000


@pytest.mark.nightly
def test_a_million_steps(soak):
    soak.run(total=1_000_000, at_a_time=3, each=50_000, nap=1.5)
    found = soak.judge()
    print(dict(found))
    assert found["came"] >= 1_000_000

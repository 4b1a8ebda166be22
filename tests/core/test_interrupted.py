"""Signals at every system call, and a wall clock that jumps."""

import pytest

from tests.lib.interposed import disturbed
from tests.lib.rows import each

pytestmark = pytest.mark.realtime
TRAFFIC = """
import signal, sys, threading
import sysv_ipc
key, steps = int(sys.argv[1]), 100
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
def step(n):
    rows = 2 * n % 200
    ids, scores = [[n, n + 1]] * (2 * rows), [[-1, -2]] * (2 * rows)
    return fp.Step.from_arrays("spec_topk", [2] * rows, ids, scores, [n] * (2 * rows))
sender = fp.Sender("spec_topk", key=key, dialect="compact")
receiver = fp.Receiver("spec_topk", key=key)
"""

SENDING = """
got = []
other = threading.Thread(target=lambda: got.extend(receiver.receive(20) for _ in range(steps)))
other.start()
for n in range(steps):
    sender.send(step(n), TIMEOUT)
other.join()
"""

RECEIVING = """
other = threading.Thread(target=lambda: [sender.send(step(n), 20) for n in range(steps)])
other.start()
got = [receiver.receive(TIMEOUT) for _ in range(steps)]
other.join()
"""

CHECK = """
assert [s.seq for s in got] == list(range(steps))
assert got == [step(n) for n in range(steps)]
assert receiver.receive(0) is None
stats = receiver.stats
assert stats["fragments"] and not stats["incomplete"] and not stats["malformed"], stats
assert sender.stats["frames"] == steps
print(len(seen))
"""


@each("main_thread", [SENDING, RECEIVING])
@each("how, timeout", [("before", 20), ("after", 20), ("instead", None), ("instead", 20)])
def test_signals_at_every_system_call(main_thread, how, timeout, default_limits, new_queue):
    """Nothing is lost, doubled or mixed, and the handler runs."""
    script = TRAFFIC + main_thread.replace("TIMEOUT", repr(timeout)) + CHECK
    assert int(disturbed(how, script, new_queue().key)) > 0


def test_waits_do_not_follow_the_wall_clock(queue):
    script = """
import sys, time
receiver = fp.Receiver("plain", key=int(sys.argv[1]))
sender = fp.Sender("plain", key=receiver.key)
assert abs(time.time() - time.time()) > 1e8
assert receiver.receive(0.2) is None
step = fp.Step.from_arrays("plain", [1], [5])
try:
    while True:
        sender.send(step, 0)
except fp.QueueTimeout:
    pass
try:
    sender.send(step, 0.2)
except fp.QueueTimeout:
    print(receiver.stats["wait_seconds"], sender.stats["wait_seconds"])
"""
    waited = [float(word) for word in disturbed("clock", script, queue.key).split()]
    assert all(0.15 < seconds < 20 for seconds in waited), waited


def test_a_recording_does_not_follow_the_wall_clock(tmp_path):
    """Its times only ever rise: a replay sleeps for what lies between them."""
    script = """
import sys
from fd_postproc.recording import Recording, RecordingWriter
from tests.lib.rows import each
with RecordingWriter(sys.argv[1]) as recording:
    for _ in range(20):
        recording.write(b"message")
with Recording(sys.argv[1]) as recording:
    times = [message.time_ns for message in recording]
assert all(0 <= b - a < 1e9 for a, b in zip(times, times[1:])), times
print(len(times))
"""
    assert disturbed("clock", script, tmp_path / "jumps.fdrec") == "20\n"

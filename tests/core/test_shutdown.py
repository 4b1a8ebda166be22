"""The interpreter ends while threads wait in a queue: no hang, no crash, nothing on stderr."""

import subprocess

import pytest
import sysv_ipc

from tests.lib.children import python
from tests.lib.nursery import nursery
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE

pytestmark = pytest.mark.realtime
PRELUDE = """
import atexit, random, sys, threading, time
import fd_postproc as fp
key = int(sys.argv[1])
step = fp.Step.from_arrays("plain", [1], [5])

def until(condition):
    while not condition():
        time.sleep(0.001)
"""

WORK = """
def work():
    while True:
        try:
            receiver.receive({timeout}) if "{end}" == "receiver" else sender.send(step, {timeout})
        except fp.QueueError as error:
            if not isinstance(error, fp.QueueTimeout):
                return
receiver, sender = fp.Receiver("plain", key=key), fp.Sender("plain", key=key)
threading.Thread(target=work, daemon=True).start()
until(lambda: {end}.stats["waits"])
"""


def run(script, key):
    """In a process of its own."""
    done = nursery().run(PRELUDE + script, key)
    assert (done.returncode, done.stderr) == (0, "")


@each("end", ["receiver", "sender"])
@each("timeout", [None, 0.01])
def test_a_daemon_thread_that_waits(end, timeout, new_queue):
    run(WORK.format(end=end, timeout=timeout), new_queue().key)


@each("ending", ["", "sys.exit(0)", "threading.Thread(target=time.sleep, args=(0.05,)).start()"])
def test_messages_that_come_at_the_end(ending, new_queue):
    """The thread wakes up while the interpreter is being taken down."""
    script = """
def feed():
    for _ in range(50):
        sender.send(step, 0)
    time.sleep(random.random() * 0.01)
    for _ in range(50):
        sender.send(step, 0)
atexit.register(feed)
"""
    queue = new_queue()
    for _ in range(2):
        run(WORK.format(end="receiver", timeout=None) + script + ending, queue.key)


def test_a_queue_removed_at_the_end(queue):
    run(WORK.format(end="receiver", timeout=None) + "atexit.register(receiver.remove)", queue.key)
    with pytest.raises(sysv_ipc.ExistentialError):
        sysv_ipc.MessageQueue(queue.key)


def test_a_thread_that_is_no_daemon_is_waited_for(queue):
    """As Python does for all threads; remove() from an exit handler of `threading` ends the wait."""
    script = """
receiver = fp.Receiver("plain", key=key)
def work():
    for step in receiver:
        pass
threading.Thread(target=work).start()
until(lambda: receiver.stats["waits"])
threading._register_atexit(receiver.remove)
"""
    run(script, queue.key)


def test_ends_that_are_still_open_at_the_end(queue):
    """Module globals and reference cycles, with views of steps that outlive everything else."""
    script = """
receiver = fp.Receiver("plain", key=key)
sender = fp.Sender("plain", key=key)
sender.send(step)
cycle = [receiver, sender, receiver.receive(0).ids]
cycle.append(cycle)
sys.view_of_a_step = fp.decode(fp.encode(step), "plain").offsets
class Last:
    def __del__(self):
        assert sys is None or sys.view_of_a_step[0] == 0
last = Last()
"""
    command = python(PRELUDE + script, queue.key)  # not forked: what it imports is taken down as well
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_ops_keep_ends_open(ops_queue):
    script = """
import numpy as np
from fd_postproc.ops import get_output, save_output
save_output(np.array([[1]]), np.array([True]), np.zeros((1, 1), np.int32), 0, False)
x = np.zeros([514, 1], np.int64)
threading.Thread(target=lambda: [get_output(x, 0, True) for _ in range(9)], daemon=True).start()
until(lambda: x[1, 0] == 1)
"""
    run(script, 0)

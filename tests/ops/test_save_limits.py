"""Save ops where a message does not fit, and where the queue is full, old or gone."""

import re
import subprocess

import pytest

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.ops import host
from tests.lib.children import python
from tests.lib.marks import forks_beside_threads
from tests.lib.nursery import nursery
from tests.lib.rows import each
from tests.lib.save_cases import CHANNELS, arguments, random_inputs
from tests.lib.saving import saved, send
from tests.lib.sending import in_thread
from tests.lib.waiting import until


@each("op", [op for op in CHANNELS if CHANNELS[op].endswith("topk")])
def test_a_message_that_no_queue_can_hold(op, default_limits, ops_queue):
    args = arguments(op, random_inputs(op, 512, 3, 1))
    with pytest.raises(fp.MessageTooBig) as caught:
        send(op, *args)
    size = len(saved(op, *args).payload)
    assert (caught.value.size, caught.value.limit) == (size, 8192)
    for fragment in str(size), "8192", "msgmax", "sysctl", "compact":
        assert fragment in str(caught.value)
    assert ops_queue.waiting() == 0
    small = arguments("save_output", random_inputs("save_output", 512, 1, 1))
    ops.save_output(*small)  # and the next one goes through
    ops_queue.take("plain")


def test_a_removed_queue_is_made_again(ops_queue):
    args = arguments("save_output", random_inputs("save_output", 2, 1, 1))
    ops.save_output(*args)
    ops_queue.remove()
    with pytest.raises(fp.QueueRemoved):
        ops.save_output(*args)
    ops.save_output(*args)
    assert ops_queue.waiting() == 1


@pytest.mark.realtime
def test_a_wait_that_an_error_has_ended_is_over(default_limits, ops_queue):
    """Else the watchdog would log it again and again."""
    args = arguments("save_output", random_inputs("save_output", 300, 1, 1))
    ops.save_output(*args)
    queue = ops_queue.open("plain")
    queue.max_size = len(saved("save_output", *args).payload)  # no room for a second one

    def waits():
        return [sender.msqid for sender in host.senders.members if sender.waiting_seconds]

    with in_thread(ops.save_output, *args) as outcome:
        until(waits)
        assert waits() == [queue.id]
        queue.max_size = 1000
    assert isinstance(outcome[0], fp.MessageTooBig)
    assert waits() == []


@forks_beside_threads
def test_a_forked_child_watches_its_own_waits(ops_queue):
    """No thread but the caller survives a fork."""
    code = """
import os, sys, threading, warnings
import numpy as np
from fd_postproc import ops
def save():
    ops.save_output(np.array([[5]]), True, np.zeros(1, np.int32), 0, False)
    return "fd_postproc-watch" in [thread.name for thread in threading.enumerate()]
assert save()
warnings.simplefilter("ignore")  # Python 3.12 warns of forks with threads
child = os.fork()
if child == 0:
    os._exit(0 if save() else 9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert nursery().run(code).returncode == 0


WAITING = """
import logging, signal, sys
import numpy as np
from fd_postproc import ops
from fd_postproc.ops import watch
signal.alarm(60)  # ends it, should nothing be told
logging.basicConfig(format="%(message)s", stream=sys.stderr)
assert watch.WATCH_SECONDS == 10
watch.WATCH_SECONDS = float(sys.argv[1])
save = lambda: ops.save_output(np.array([[5]]), True, np.zeros(1, np.int32), 0, False)
while True:
    save()
"""


@pytest.mark.realtime
@pytest.mark.parametrize("seconds", [0.1, pytest.param(10.0, marks=pytest.mark.nightly)])
def test_every_so_many_seconds_of_a_full_queue_are_logged(seconds, default_limits, ops_queue):
    """H1: FastDeploy's op drops the step.  10 s unless a test cannot wait for so long."""
    process = subprocess.Popen(python(WAITING, seconds), stderr=subprocess.PIPE, text=True)
    try:
        lines = [process.stderr.readline() for _ in range(3)]
    finally:
        process.kill()
        process.communicate()
    text = re.compile(r"queue \d+ \(plain, key .*\) has been full for (\d+) s: .*\n")
    told = [text.fullmatch(line) for line in lines]
    assert all(told), lines
    waited = [int(line.group(1)) for line in told]
    for n, so_long in enumerate(waited):
        assert (n + 1) * seconds - 0.6 <= so_long <= (n + 2) * seconds + 5

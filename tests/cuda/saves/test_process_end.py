"""Saves under way when a process ends, forks or is killed, and when its receiver dies."""

import signal
import time

import pytest
import sysv_ipc

from fd_postproc import queues
from tests.lib.device_saves import received
from tests.lib.marks import forks_beside_threads
from tests.lib.waiting import PATIENCE


def test_what_is_under_way_is_sent_at_exit(fresh):
    fresh("for n in range(6): save(n)", STUB_CUDA_DELAY_US="50000")
    assert received(6) == list(range(6))


def test_what_went_wrong_is_told_at_exit(fresh):
    fresh("save(1 << 31)", STUB_CUDA_DELAY_US="50000")
    assert "does not fit the 32 bits" in fresh.stderr


@pytest.mark.realtime
def test_exit_with_a_full_queue(fresh):
    """It waits for a while, says how many messages are lost, and does not hang."""
    code = """
device.EXIT_SECONDS = 0.3
save(0); ops.flush(60)
import sysv_ipc
from fd_postproc import queues
sysv_ipc.MessageQueue(queues.locate("plain")).max_size = 40
for n in range(1, 8): save(n)
"""
    began = time.monotonic()
    fresh(code)
    assert time.monotonic() - began < PATIENCE
    assert "5 saved messages were not sent" in fresh.stderr
    assert received(3) == [0, 1, 2]


@pytest.mark.realtime
def test_a_killed_process_leaves_nothing_but_its_messages(start):
    worker = start("for n in range(3): save(n)\nops.flush(60)\nprint('ready', flush=True)\ntime.sleep(60)")
    assert worker.stdout.readline() == "ready\n"
    worker.send_signal(signal.SIGKILL)
    assert worker.wait(10) == -signal.SIGKILL
    assert received(3) == [0, 1, 2]


@forks_beside_threads
def test_fork(fresh):
    """A child must not use CUDA, and cannot; it may send host tensors, and ends without a word."""
    code = """
import warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forking with threads
save(1)
child = os.fork()
if child == 0:
    told = error_of(save, 2)
    why = fp.why_no_cuda()
    assert ops.flush(1) is True
    ops.save_output(np.array([[3]]), FLAG, ZERO, 0, False)
    ok = told.startswith("CudaError") and "forked" in told and "forked" in why
    sys.exit(0 if ok else 9)
print(os.waitpid(child, 0)[1])
save(4)
print(ops.flush(60))
"""
    assert fresh(code, STUB_CUDA_DELAY_US="20000") == "0\nTrue\n"
    assert sorted(received(3)) == [1, 3, 4]
    assert "Error" not in fresh.stderr


def test_multiprocessing(fresh):
    """A worker process of multiprocessing ends with everything sent."""
    code = """
import multiprocessing, warnings
warnings.simplefilter("ignore")
def work():
    for n in range(5): save(n)
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join(20)
print(process.exitcode)
"""
    assert fresh(code, STUB_CUDA_DELAY_US="30000") == "0\n"
    assert received(5) == list(range(5))


RECEIVER = """
receiver = fp.Receiver("plain")
for n in range(5):
    receiver.receive()
print("five", flush=True)
for step in receiver:
    pass
"""

WORKER = """
import signal, sysv_ipc
from fd_postproc import queues
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits it ignored
save(0); ops.flush(60)
sysv_ipc.MessageQueue(queues.locate("plain")).max_size = 120
print("ready", flush=True)
n = 1
try:
    while n < 100000:
        save(n)
        n += 1
        if n == 2000: print("many", flush=True)
except KeyboardInterrupt:
    print(n, flush=True)
print(ops.flush(20), flush=True)
"""


@pytest.mark.realtime
def test_killing_the_receiver_neither_hangs_nor_crashes_the_worker(start):
    worker = start(WORKER)
    assert worker.stdout.readline() == "ready\n"
    receiver = start(RECEIVER)
    assert receiver.stdout.readline() == "five\n"
    assert worker.stdout.readline() == "many\n"
    receiver.kill()
    receiver.wait()
    queue = sysv_ipc.MessageQueue(queues.locate("plain"))
    until = time.monotonic() + 20
    while queue.current_messages < 9 and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)
    assert worker.poll() is None  # it waits
    worker.send_signal(signal.SIGINT)
    saved = int(worker.stdout.readline())
    left = received(10 + 8)  # what the queue and the ring held: nothing is lost
    assert left == list(range(left[0], saved))
    assert worker.stdout.readline() == "True\n"
    assert worker.wait(10) == 0

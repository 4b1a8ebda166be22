"""Saves under way when a process ends, forks or is killed, and when its receiver dies."""

import signal
import time

import pytest

from tests.lib.device_saves import received
from tests.lib.marks import forks_beside_threads
from tests.lib.waiting import PATIENCE


def test_what_is_under_way_is_sent_at_exit(run):
    run("for n in range(6): save(n)", STUB_CUDA_DELAY_US="50000")
    assert received(6) == list(range(6))


def test_what_went_wrong_is_told_at_exit(run):
    run("save(1 << 31)", STUB_CUDA_DELAY_US="50000")
    assert "does not fit the 32 bits" in run.stderr


def test_signals_reach_a_process_that_has_saved(run):
    """The thread that sends blocks them all; the one that has started it must not."""
    code = """
import signal
signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR1])
save(0)
print(*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
"""
    assert run(code) == f"{int(signal.SIGUSR1)}\n"


def test_a_process_that_has_saved_watches_its_queues(run):
    """Else the log says nothing of one that stays full."""
    code = "save(0)\nimport threading\nprint(*sorted(one.name for one in threading.enumerate()))"
    assert run(code) == "MainThread fd_postproc-watch\n"


@pytest.mark.realtime
def test_exit_with_a_full_queue(run):
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
    run(code)
    assert time.monotonic() - began < PATIENCE
    assert "5 saved messages were not sent" in run.stderr
    assert received(3) == [0, 1, 2]


def test_a_killed_process_leaves_nothing_but_its_messages(run):
    run("for n in range(3): save(n)\nops.flush(60)\nos.kill(os.getpid(), 9)", status=-9)
    assert received(3) == [0, 1, 2]


@forks_beside_threads
def test_fork(run):
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
    assert run(code, STUB_CUDA_DELAY_US="20000") == "0\nTrue\n"
    assert sorted(received(3)) == [1, 3, 4]
    assert "Error" not in run.stderr


@pytest.mark.realtime
@forks_beside_threads
def test_a_forked_child_does_not_wait(run):
    """The queue of its parent's saves is full; its own watchdog must not say so for ever."""
    code = """
import sysv_ipc, warnings
from fd_postproc import queues
warnings.simplefilter("ignore")
def waits(): return any(lane.waiting_seconds for lane in device.saves.lanes)
save(0); ops.flush(60)
queue = sysv_ipc.MessageQueue(queues.locate("plain"))
queue.max_size = 40
for n in range(1, 5): save(n)
while not waits(): time.sleep(0.001)
child = os.fork()
if child == 0: os._exit(waits())
print(os.waitpid(child, 0)[1], waits())
queue.max_size = 16384
print(ops.flush(60))
"""
    assert run(code) == "0 True\nTrue\n"
    assert received(5) == list(range(5))


def test_multiprocessing(run):
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
    assert run(code, STUB_CUDA_DELAY_US="30000") == "0\n"
    assert received(5) == list(range(5))

"""Memory that runs out at every allocation in turn: MemoryError, nothing lost, nothing leaked, no crash.

Each script runs in a child process.  ``_testcapi.set_nomemory`` makes Python's own allocators fail, those
that the core uses for Steps and buffers among them; `setrlimit` the C library's, where frames in pieces live.
"""

import os
import subprocess

import pytest
import sysv_ipc

from tests.lib.children import python
from tests.lib.nursery import nursery
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE

pytest.importorskip("_testcapi", reason="needs CPython's own test module, to make allocations fail")

EVERY_ALLOCATION = """
import sys
import _testcapi
import numpy as np
import fd_postproc as fp

def starve(attempt, check, most=400):
    '''Fail the first allocation of an attempt, then the second, and so on, until it gets through.'''
    failures = 0
    for n in range(most):
        error = result = None
        _testcapi.set_nomemory(n, n + 1)
        try:
            result = attempt()
        except MemoryError as caught:
            error = caught
        finally:
            _testcapi.remove_mem_hooks()
        if error is None:
            check(result)
            if n > failures + 20:
                return failures
        else:
            failures += 1
            del error
    raise AssertionError(f"still failing after {most} allocations")

def equals(expected):
    def check(got):
        assert got == expected, got
    return check

payload = fp.encode(step := fp.Step.from_arrays(
    "spec_topk", [2, 0, -9, 1], [[n, n + 1, n + 2] for n in range(3)], [[-1.5, -2.5, -3.5]] * 3, [1, 2, 3]))
frame = fp.encode(step, "compact")
lists = step.tolists()
"""

ATTEMPTS = {
    "decode": "starve(lambda: fp.decode(payload, 'spec_topk'), equals(step))",
    "decode-frame": "starve(lambda: fp.decode(frame, 'spec_topk', mtype=2), equals(step))",
    "malformed": """
def refused():
    try:
        fp.decode(payload[:-1], "spec_topk")
    except fp.MalformedMessage as error:
        return str(error)
starve(refused, equals(refused()))""",
    "encode": "starve(lambda: fp.encode(step), equals(payload))",
    "encode-frame": "starve(lambda: fp.encode(step, 'compact'), equals(frame))",
    "tolists": "starve(step.tolists, equals(lists))",
    "token_ids": "starve(lambda: step.token_ids(0), equals([0, 1]))",
    "counts": "starve(lambda: step.counts, equals([2, 0, -9, 1]))",
    "logprobs": """
starve(lambda: step.logprobs(0).slice_columns(0, 2).tolists(),
       equals(([[0, 1], [1, 2]], [[-1.5, -2.5]] * 2, [1, 2])))""",
    "memoryviews": "starve(lambda: step.ids.tolist(), equals([[0, 1, 2], [1, 2, 3], [2, 3, 4]]))",
    "receivers": """
queue = fp.Receiver("plain", key=int(sys.argv[1]))
starve(lambda: fp.Receiver("plain", key=queue.key).msqid, equals(queue.msqid), 5000)""",
    "senders": """
queue = fp.Receiver("plain", key=int(sys.argv[1]))
starve(lambda: fp.Sender("plain", key=queue.key).msqid, equals(queue.msqid), 5000)""",
}


def run(script, *arguments):
    done = nursery().run(script, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]


@each("what", ATTEMPTS)
def test_every_allocation_may_fail(what, queue_key):
    run(EVERY_ALLOCATION + ATTEMPTS[what], queue_key)


def test_a_step_is_not_lost_for_lack_of_memory(queue_key):
    """The message is out of the queue by then; the next call returns it."""
    script = """
import sysv_ipc
receiver = fp.Receiver("spec_topk", key=int(sys.argv[1]))
queue = sysv_ipc.MessageQueue(receiver.key, max_message_size=8192)
got = 0
for dialect in "packed", "compact":
    sent = fp.encode(step, dialect)
    mtype = 2 if dialect == "compact" else 1
    for n in range(30):
        queue.send(sent, type=mtype)
        _testcapi.set_nomemory(n, n + 1)
        try:
            received = receiver.receive(0)
        except MemoryError:
            received = None
        finally:
            _testcapi.remove_mem_hooks()
        if received is None:
            got += 1
            received = receiver.receive(0)
        assert received == step
        assert receiver.receive(0) is None
assert got > 2
"""
    run(EVERY_ALLOCATION + script, queue_key)


def test_sending_without_memory(queue_key):
    """A send that raised sent nothing; one that did not sent all of it."""
    script = """
receiver = fp.Receiver("spec_topk", key=int(sys.argv[1]))
sender = fp.Sender("spec_topk", key=receiver.key, dialect="compact")
def send():
    sender.send(step, 0)
    return True
def check(_):
    assert receiver.receive(0) == step
    assert receiver.receive(0) is None
starve(send, check)
assert receiver.receive(0) is None
"""
    run(EVERY_ALLOCATION + script, queue_key)


@pytest.mark.resident_memory
def test_no_memory_for_a_frame(queue_key):
    """The C library refuses the frame's first piece: MemoryError, that frame is lost, the next one is not."""
    queue = sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=8192)
    script = """
import ctypes, resource
import sysv_ipc
from tests import reference
from tests.reference import ReferenceStep
ones = np.ones((3072, 21), np.int32)
big = np.full(512, 6), ones, -ones.astype(np.float32), ones[:, 0]
large = fp.Step.from_arrays("spec_topk", *big)
parts = reference.split(reference.encode_frame(ReferenceStep.from_step(large), sender=1, seq=1), 8192)
again = reference.split(reference.encode_frame(ReferenceStep.from_step(large), sender=1, seq=2), 8192)
queue = sysv_ipc.MessageQueue(int(sys.argv[1]), max_message_size=8192)
receiver = fp.Receiver("spec_topk", key=queue.key)

def push(part):
    queue.send(part, type=2)
    return receiver.receive(0)

def attempt():
    try:
        return push(parts[0])
    except MemoryError as error:
        return error

malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
malloc.argtypes = [ctypes.c_size_t]
used = int(open("/proc/self/statm").read().split()[0]) * 4096
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used // 2, before[1]))  # what Python frees meanwhile is not enough
for size in 65536, 4096, 128:
    while malloc(size):
        pass  # until no hole of the heap takes a piece of a frame
outcome = attempt()
resource.setrlimit(resource.RLIMIT_AS, before)
assert isinstance(outcome, MemoryError), outcome
for part in parts[1:]:
    assert push(part) is None
for part in again:
    got = push(part)
assert got == large
stats = receiver.stats
assert (stats["incomplete"], stats["malformed"]) == (1, 0), stats
print("well")
"""
    # Large blocks are mapped one by one: none comes out of what the heap happens to have left.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = python(EVERY_ALLOCATION + script, queue.key)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr

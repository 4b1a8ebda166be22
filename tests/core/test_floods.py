"""Floods: what honest senders, waits, signals, the log and memory have to do with them.

The honest step is a frame of three pieces, numbered by its sender; the queue is as small as a new kernel
makes it.
"""

import collections
import time

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from tests.lib.flooding import KINDS, flooding, honest
from tests.lib.rig import Rig
from tests.lib.waiting import PATIENCE, signalled, until
from tests.reference import FrameHeader

pytestmark = pytest.mark.realtime


def attempt(receiver, timeout):
    try:
        return receiver.receive(timeout)
    except fp.MalformedMessage:
        return None


@pytest.fixture
def full_of_pieces(raised_limits, queue_key):
    """A Receiver, and its queue of so many pieces that to take them takes far longer than a slice of time."""
    step = fp.Step.from_arrays("spec", [6] * 512, list(range(3072)))
    piece = FrameHeader.unpack(fp.encode(step, "compact"))._replace(fragment=1, fragments=3).pack()
    with fp.Receiver("spec", key=queue_key) as made:
        queue = sysv_ipc.MessageQueue(queue_key)
        for _ in range(250_000):
            queue.send(piece, type=2)
        yield made, queue


def test_a_timeout_and_a_handler_end_before_the_queue_does(full_of_pieces):
    receiver, queue = full_of_pieces
    for timeout in 0, 0.001:
        assert receiver.receive(timeout) is None
        assert receiver.stats["fragments"] > 0
        assert queue.current_messages > 0, receiver.stats
    taken = receiver.stats["fragments"]

    def ring(*_):
        raise InterruptedError

    with signalled(ring, lambda: receiver.stats["fragments"] > taken), pytest.raises(InterruptedError):
        receiver.receive(None)
    assert queue.current_messages > 0


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.nightly] if kind != "first" else []) for kind in KINDS]
)
def test_honest_frames_beside_a_flood(kind, default_limits, queue_keys):
    """All of them are delivered, in order."""
    got, steps, writers = [], 8, 1 if kind == "first" else 3
    receiver = fp.Receiver("spec", key=queue_keys())
    with flooding(receiver.key, kind, writers=writers, rate=(8000 if kind == "first" else 2000) / writers):
        until(lambda: attempt(receiver, 0.001) or receiver.stats["messages"] > 100)
        with honest(receiver.key, steps):
            end = time.monotonic() + PATIENCE
            while len(got) < steps:
                assert time.monotonic() < end
                step = attempt(receiver, 1)
                if step is not None and step.batch:
                    got.append(step.seq)
    assert got == list(range(steps))


@pytest.mark.framework
@pytest.mark.nightly
def test_a_token_thread_under_floods(default_limits, ops_queue, caplog):
    """It stays alive, healthy, and short of words."""
    rig, key = Rig("spec", ["a", "b"]), queues.locate("spec")
    try:
        rig.start()
        rig.sink.puts = collections.deque(maxlen=100)
        rig.send({0: [1], 1: [2]})
        until(lambda: rig.sink.puts)
        with flooding(key, *KINDS):
            until(lambda: rig.processor.parts.queue.receiver.stats["messages"] > 3_000)
            lines, began = len(caplog.records), time.monotonic()
            while time.monotonic() < began + 600:
                time.sleep(0.1)
                assert rig.processor.worker.is_alive()
                assert rig.processor.healthy()
            said = (len(caplog.records) - lines) / (time.monotonic() - began)
        until(lambda: not sysv_ipc.MessageQueue(key).current_messages)
        rig.sink.puts.clear()
        rig.send({0: [3], 1: [4]})
        until(lambda: any(results for results in list(rig.sink.puts)))
        assert rig.processor.counters.lost_steps == 0
        assert said < 10
    finally:
        rig.close()

"""Floods: what honest senders, waits, signals, the log and memory have to do with them.

The honest step is a frame of three pieces, numbered by its sender; the queue is as small as a new kernel
makes it.
"""

import collections
import contextlib
import signal
import time

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from tests.lib.flooding import KINDS, flooding, honest
from tests.lib.quiet import imported
from tests.lib.rig import Rig
from tests.lib.rows import each
from tests.lib.waiting import PATIENCE, until
from tests.reference import FrameHeader

pytestmark = pytest.mark.realtime


def attempt(receiver, timeout):
    try:
        return receiver.receive(timeout)
    except fp.MalformedMessage:
        return None


def flows(receiver):
    """Wait until a flood has begun to come."""
    taken = receiver.stats["messages"]
    end = time.monotonic() + PATIENCE
    while receiver.stats["messages"] < taken + 100:
        assert time.monotonic() < end
        attempt(receiver, 0.001)


@contextlib.contextmanager
def alarm(first, interval=0.0):
    """A timer whose signal raises InterruptedError."""

    def ring(*_):
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, first, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def full_of_pieces(raised_limits, queue_key):
    """A Receiver, and its queue of so many pieces that to take them takes far longer than a slice of time."""
    step = fp.Step.from_arrays("spec", [6] * 512, list(range(3072)))
    piece = FrameHeader.unpack(fp.encode(step, "compact"))._replace(fragment=1, fragments=3).pack()
    with fp.Receiver("spec", key=queue_key) as made:
        queue = sysv_ipc.MessageQueue(queue_key)
        for _ in range(120_000):
            queue.send(piece, type=2)
        yield made, queue


BETWEEN = {
    "malformed": (b"\1", 1),
    "wrong type": (b"\1\0\0\0", 9),
    "oversized": (bytes(7177), 1),
    "empty": (fp.encode(fp.Step.from_arrays("spec", [], [])), 1),
}


def test_a_timeout_and_a_handler_end_before_the_queue_does(full_of_pieces):
    receiver, queue = full_of_pieces
    for timeout in 0, 0.001:
        assert receiver.receive(timeout) is None
        assert receiver.stats["fragments"] > 0
        assert queue.current_messages > 0, receiver.stats
    with alarm(0.001, 1), pytest.raises(InterruptedError):
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
        flows(receiver)
        with honest(receiver.key, steps):
            end = time.monotonic() + PATIENCE
            while len(got) < steps:
                assert time.monotonic() < end
                step = attempt(receiver, 1)
                if step is not None and step.batch:
                    got.append(step.seq)
    assert got == list(range(steps))


@each("kind", BETWEEN)
def test_what_comes_between_the_pieces_of_a_frame(kind, default_limits, queue_keys):
    """Seldom so in a flood: the pieces of a frame mostly enter the queue together."""
    receiver = fp.Receiver("spec", key=queue_keys())
    step, payload, mtype = fp.Step.from_arrays("spec", [6] * 512, list(range(3072))), *BETWEEN[kind]
    queue = sysv_ipc.MessageQueue(receiver.key, max_message_size=8192)
    with fp.Sender("spec", key=queue_keys(), dialect="compact") as sender:
        pieces = sysv_ipc.MessageQueue(sender.key, max_message_size=8192)
        sender.send(step, 0)
        assert pieces.current_messages == 3
        got = []
        for _ in range(3):
            piece, piece_type = pieces.receive()
            queue.send(piece, type=piece_type)
            queue.send(payload, type=mtype)
            got += [attempt(receiver, 0), attempt(receiver, 0)]
        pieces.remove()
    assert [one for one in got if one is not None and one.batch] == [step]
    assert receiver.stats["incomplete"] == 0


@pytest.mark.framework
@pytest.mark.nightly
def test_a_token_thread_under_floods(default_limits, ops_queue, caplog):
    """It stays alive, healthy, and short of words."""
    logger = imported("logging").getLogger("fastdeploy")
    logger.addHandler(caplog.handler)
    rig, key = Rig("spec", ["a", "b"]), queues.locate("spec")
    try:
        rig.start()
        rig.sink.puts = collections.deque(maxlen=100)
        rig.send({0: [1], 1: [2]})
        until(lambda: rig.sink.puts)
        with flooding(key, *KINDS):
            until(lambda: rig.processor._receiver.stats["messages"] > 3_000)
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
        logger.removeHandler(caplog.handler)

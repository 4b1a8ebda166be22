"""Floods: what honest senders, waits, signals, the log and memory have to do with them.

The honest step is a frame of three pieces, numbered by its sender; the queue is as small as a new kernel
makes it.
"""

import collections
import signal
import sys
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


@pytest.fixture
def receiver(default_limits, queue_key):
    with fp.Receiver("spec", key=queue_key) as made:
        yield made


def flows(receiver):
    """Whether a flood has begun to come."""
    taken = receiver.stats["messages"]
    end = time.monotonic() + 20
    while receiver.stats["messages"] < taken + 100:
        assert time.monotonic() < end
        attempt(receiver, 0.001)


def attempt(receiver, timeout):
    try:
        return receiver.receive(timeout)
    except fp.MalformedMessage:
        return None


@each("kind", ["stray", "first"])
def test_a_timeout_ends_though_pieces_come_all_the_time(kind, receiver):
    """The median of some: other processes want the processor, too."""
    late = []
    with flooding(receiver.key, kind):
        flows(receiver)
        for _ in range(5):
            began = time.monotonic()
            assert receiver.receive(0.05) is None
            late.append(time.monotonic() - began - 0.05)
        assert receiver.stats["fragments"] > 100
    assert sorted(late)[2] < 5


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


def test_a_timeout_ends_before_the_queue_does(full_of_pieces):
    receiver, queue = full_of_pieces
    for timeout in 0, 0.001:
        assert receiver.receive(timeout) is None
        assert receiver.stats["fragments"] > 0
        assert queue.current_messages > 0, receiver.stats


def test_a_handler_runs_before_the_queue_ends(full_of_pieces):
    receiver, queue = full_of_pieces
    left = []

    def ring(*_):
        left.append(queue.current_messages)
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 1)
        with pytest.raises(InterruptedError):
            receiver.receive(None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert left[0] > 0


@each("timeout", [None, 30])
def test_a_signal_is_handled_though_pieces_come_all_the_time(timeout, receiver):
    if sys.gettrace() is not None:
        pytest.skip("coverage's tracer takes locks of its own, and swallows what a handler raises there")

    class Rang(Exception):
        pass

    def ring(*_):
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    late = []
    try:
        with flooding(receiver.key, "first"):
            flows(receiver)
            for _ in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                began = time.monotonic()
                with pytest.raises(Rang):
                    receiver.receive(timeout)
                late.append(time.monotonic() - began - 0.05)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sorted(late)[2] < 5


@pytest.fixture
def long_queue(default_limits):
    """A queue of 64 MiB, whose messages are as short as a new kernel makes them."""
    default_limits("msgmnb", 64 << 20)


RATES = {
    "first": 8000,
    "stray": 8000,
    "malformed": 2000,
    "wrong type": 2000,
    "oversized": 8000,
    "empty": 8000,
}


@pytest.mark.parametrize(
    ("limits", "steps", "writers"),
    [
        ("default_limits", 8, 1),
        *(
            pytest.param(limits, 30, writers, marks=pytest.mark.nightly)
            for limits, writers in (
                ("default_limits", 1),
                ("default_limits", 3),
                ("long_queue", 1),
                ("raised_limits", 1),
            )
        ),
    ],
)
@each("kind", RATES)
def test_honest_frames_beside_a_flood(kind, limits, steps, writers, request, queue_key):
    """All of them are delivered, in order; under the raised limits each is one message."""
    request.getfixturevalue(limits)
    with fp.Receiver("spec", key=queue_key) as receiver:
        beside_a_flood(receiver, kind, steps, writers)


def beside_a_flood(receiver, kind, steps, writers):
    got, rate = [], RATES[kind]
    with flooding(receiver.key, kind, writers=writers, rate=rate / writers):
        flows(receiver)
        with honest(receiver.key, steps):
            end = time.monotonic() + 60
            while len(got) < steps:
                assert time.monotonic() < end
                step = attempt(receiver, 1)
                if step is not None and step.batch:
                    got.append(step.seq)
    assert got == list(range(steps))


BETWEEN = {
    "malformed": (b"\1", 1),
    "wrong type": (b"\1\0\0\0", 9),
    "oversized": (bytes(7177), 1),
    "empty": (fp.encode(fp.Step.from_arrays("spec", [], [])), 1),
}


@each("kind", BETWEEN)
def test_what_comes_between_the_pieces_of_a_frame(kind, receiver, queue_keys):
    """Seldom so in a flood: the pieces of a frame mostly enter the queue together."""
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


@pytest.mark.parametrize("seconds", [0.4, pytest.param(2, marks=pytest.mark.nightly)])
@each("kind", ["first", "stray"])
def test_what_the_kernel_lets_through_beside_a_flood_at_full_speed_is_not_lost(kind, seconds, receiver):
    """However few of the honest pieces get into the queue: each frame that they make up arrives."""
    got = []
    with honest(receiver.key, 100_000):
        for _ in range(3):
            got.append(receiver.receive(20).seq)
        with flooding(receiver.key, kind):
            taken, began, flows_since = receiver.stats["messages"], time.monotonic(), None
            while flows_since is None or time.monotonic() < flows_since + seconds:
                step = receiver.receive(0.1)
                if step is not None:
                    got.append(step.seq)
                if flows_since is None and receiver.stats["messages"] > taken + 3000:
                    flows_since = time.monotonic()
                assert flows_since or time.monotonic() < began + PATIENCE
    assert got == list(range(len(got)))


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def rounds(rig, log, seconds, kinds, writers):
    """Flood a token thread: it stays alive, healthy, and short of words."""
    key = queues.locate("spec")
    rig.sink.puts = collections.deque(maxlen=100)  # else what grows is how much there is of empty steps
    rig.send({0: [1], 1: [2]})
    until(lambda: rig.sink.puts)
    with flooding(key, *kinds, writers=writers):
        until(lambda: rig.processor._receiver.stats["messages"] > 20_000, 60)  # beginnings fill their room
        before, lines = resident_kib(), len(log.records)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1)
            assert rig.processor.worker.is_alive()
            assert rig.processor.healthy()
        grown = resident_kib() - before
    until(lambda: not sysv_ipc.MessageQueue(key).current_messages)
    rig.sink.puts.clear()
    rig.send({0: [3], 1: [4]})
    until(lambda: any(results for results in list(rig.sink.puts)))
    assert rig.processor.counters.lost_steps == 0
    taken, said = rig.processor._receiver.stats, len(log.records) - lines
    print(f"{seconds} s, {writers} writers: {taken}, {said} lines, {grown} KiB more")
    assert said / seconds < 10
    assert grown < 1 << 10


@pytest.mark.framework
@pytest.mark.resident_memory
@pytest.mark.parametrize(
    ("seconds", "writers"),
    [(1, 1), *(pytest.param(600, writers, marks=pytest.mark.nightly) for writers in (1, 3))],
)
@pytest.mark.parametrize(
    "limits", ["default_limits", pytest.param("raised_limits", marks=pytest.mark.nightly)]
)
def test_a_token_thread_under_floods(seconds, writers, limits, request, ops_queue, caplog):
    request.getfixturevalue(limits)
    logger = imported("logging").getLogger("fastdeploy")
    logger.addHandler(caplog.handler)
    rig = Rig("spec", ["a", "b"])
    try:
        rig.start()
        rounds(rig, caplog, seconds, KINDS, writers)
    finally:
        rig.close()
        logger.removeHandler(caplog.handler)


@pytest.mark.nightly
@each("kind", KINDS)
def test_timeouts_beside_every_flood(kind, receiver):
    late = []
    with flooding(receiver.key, kind, writers=3):
        flows(receiver)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            began = time.monotonic()
            attempt(receiver, 0.05)
            late.append(time.monotonic() - began - 0.05)
    assert sorted(late)[len(late) * 99 // 100] < 0.1

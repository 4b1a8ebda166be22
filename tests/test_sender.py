"""Sender: every dialect through real queues, full queues, limits, and every way in which a send can fail."""

import os
import signal
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import sysv_ipc
from other_user import as_nobody
from random_steps import random_step

import fd_postproc as fp
from fd_postproc import reference
from fd_postproc.reference import FrameHeader, ReferenceStep

CHANNELS = ("plain", "topk", "spec", "spec_topk")
DIALECTS = ("packed", "legacy", "compact")
LARGEST = {"channel": "spec_topk", "seed": 1, "batch": 512, "cols": 21, "accepted": 6}


@pytest.fixture
def queue(queue_key):
    """A private queue, through an independent library."""
    return sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=1 << 20)


@pytest.fixture
def plain(queue):
    with fp.Sender("plain", key=queue.key) as sender:
        yield sender


@pytest.fixture
def step():
    return fp.Step.from_arrays("plain", [1, -9, 1], [11, 13])


def fill(sender, step):
    """Send until the queue is full; how many fitted."""
    for n in range(100_000):
        try:
            sender.send(step, 0)
        except fp.QueueTimeout:
            return n
    raise AssertionError("the queue never filled up")


def drain(queue):
    """Everything in the queue: (payload, type)."""
    messages = []
    while queue.current_messages:
        messages.append(queue.receive(block=False))
    return messages


@contextmanager
def in_thread(call, *args, **keywords):
    """Run a call beside the test; what it returned or raised, in a list, is there at the end."""
    outcome = []

    def run():
        try:
            outcome.append(call(*args, **keywords))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield outcome
    thread.join(30)
    assert not thread.is_alive(), "it hangs"


@contextmanager
def alarm(handler, first, interval=0.0):
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, first, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def same(got, sent):
    """The step that came is the one that was sent, whatever its number."""
    return replace(ReferenceStep.from_step(got), dialect=None, seq=None) == replace(
        ReferenceStep.from_step(sent), dialect=None, seq=None
    )


# ---- What arrives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("channel", CHANNELS)
def test_every_dialect_arrives(channel, dialect, raised_limits, queue):
    with (
        fp.Sender(channel, key=queue.key, dialect=dialect) as sender,
        fp.Receiver(channel, key=queue.key) as receiver,
    ):
        for seed in range(20):
            sent = random_step(channel, seed, batch=seed * 5, cols=21 if dialect == "legacy" else None)
            assert sender.send(sent) is None
            got = receiver.receive(0)
            assert same(got, sent)
            assert got.seq == (seed if dialect == "compact" else None)
            assert receiver.receive(0) is None
        stats, taken = sender.stats, receiver.stats
        assert stats["frames"] == 20
        assert (stats["messages"], stats["bytes"]) == (taken["messages"], taken["bytes"])
        assert stats["fragments"] == taken["fragments"] == 0
        assert (stats["waits"], stats["wait_seconds"]) == (0, 0)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("channel", CHANNELS)
def test_what_is_sent_is_what_encode_makes(channel, dialect, raised_limits, queue):
    sent = random_step(channel, 2, batch=50)
    fp.Sender(channel, key=queue.key, dialect=dialect).send(sent)
    payload, mtype = queue.receive()
    assert mtype == (2 if dialect == "compact" else 1)
    if dialect == "compact":
        header = FrameHeader.unpack(payload)
        payload = header._replace(sender=0, seq=0).pack() + payload[64:]
    assert payload == fp.encode(sent, dialect)


def test_senders_have_numbers_of_their_own(queue, step):
    senders = [fp.Sender("plain", key=queue.key, dialect="compact") for _ in range(20)]
    for sender in senders:
        for _ in range(3):
            sender.send(step)
    headers = [FrameHeader.unpack(payload) for payload, _ in drain(queue)]
    assert [header.seq for header in headers] == [0, 1, 2] * 20
    assert len({header.sender for header in headers}) == 20


def test_send_arrays(queue):
    with fp.Sender("spec_topk", key=queue.key) as sender, fp.Receiver("spec_topk", key=queue.key) as receiver:
        sender.send_arrays(
            [2, -9], [[1, 2], [3, 4]], [[-1, -2], [-3, -4]], [5, 6], flag=4, stop_flag=-1, timeout=1
        )
        got = receiver.receive(0)
    assert (got.flag, got.stop_flag, got.counts) == (4, -1, [2, -9])
    assert got.tolists() == ([[[1, 2], [3, 4]], []], [[[-1, -2], [-3, -4]], []], [[5, 6], []])
    with fp.Sender("plain", key=queue.key) as sender:
        sender.send_arrays([1], [7])
        assert queue.receive()[0] == struct.pack("<3i", 1, 1, 7)


@pytest.mark.parametrize("dialect", ["packed", "compact"])
def test_what_one_message_left_is_not_in_the_next(dialect, raised_limits, queue):
    with fp.Sender("spec_topk", key=queue.key, dialect=dialect) as sender:
        for seed, batch in enumerate([300, 2, 100, 0, 1]):
            sent = random_step("spec_topk", seed, batch=batch)
            sender.send(sent)
            payload = queue.receive()[0]
            assert payload[64:] == fp.encode(sent, dialect)[64:]


def test_the_largest_step_in_thread(default_limits, queue):
    """Batch 512, 6 accepted, 21 columns, under a new kernel's limits."""
    sent = random_step(**LARGEST)
    with (
        fp.Sender("spec_topk", key=queue.key, dialect="compact") as sender,
        fp.Receiver("spec_topk", key=queue.key) as receiver,
    ):
        for _ in range(3):
            with in_thread(sender.send, sent, 20) as outcome:
                assert same(receiver.receive(20), sent)
            assert outcome == [None]
        stats = sender.stats
        pieces = -(-(len(fp.encode(sent, "compact")) - 64) // (8192 - 64))
        assert (stats["frames"], stats["messages"], stats["fragments"]) == (3, 3 * pieces, 3 * pieces)
        assert stats["waits"] > 0
        assert stats["wait_seconds"] > 0
        assert receiver.stats["fragments"] == 3 * pieces
        assert receiver.stats["incomplete"] == 0


def test_the_largest_step_between_processes(default_limits, queue):
    sent = random_step(**LARGEST)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with fp.Sender("spec_topk", key=queue.key, dialect="compact") as sender:
                for _ in range(5):
                    sender.send(sent, 20)
            status = 0
        finally:
            os._exit(status)
    with fp.Receiver("spec_topk", key=queue.key) as receiver:
        for seq in range(5):
            got = receiver.receive(20)
            assert same(got, sent)
            assert got.seq == seq
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_after_a_fork_both_processes_send(default_limits, queue):
    """They have the same Sender, and must not have the same frames."""
    steps = [random_step("spec_topk", seed, batch=64, cols=21, accepted=6) for seed in range(2)]
    sender = fp.Sender("spec_topk", key=queue.key, dialect="compact")
    receiver = fp.Receiver("spec_topk", key=queue.key)
    children = []
    for which in range(2):
        children.append(os.fork())
        if children[-1] == 0:
            status = 1
            try:
                for _ in range(20):
                    sender.send(steps[which], 20)
                status = 0
            finally:
                os._exit(status)
    got = []
    while len(got) < 40 and (step := receiver.receive(3)) is not None:
        got.append(step)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert receiver.stats["incomplete"] == 0
    assert [sum(same(step, sent) for step in got) for sent in steps] == [20, 20]


# ---- Limits ----------------------------------------------------------------------------------------------


def test_the_limit(default_limits, queue_keys):
    assert fp.Sender("spec_topk", key=queue_keys()).limit == 8192
    assert fp.Sender("plain", key=queue_keys()).limit == 2056  # of FastDeploy's own message
    sender = fp.Sender("topk", key=queue_keys())
    queue = sysv_ipc.MessageQueue(sender.key)
    for name, value, limit in ("msgmax", 10_000, 10_000), ("msgmax", 100_000, 16_384), ("msgmax", 500, 500):
        default_limits(name, value)
        assert sender.limit == limit
    queue.max_size = 300
    assert sender.limit == 300
    default_limits("msgmnb", 1 << 20)
    assert sender.limit == 300  # a queue's own is fixed when it is made
    assert fp.Sender("topk", key=queue_keys()).limit == 500


@pytest.mark.parametrize("dialect", ["packed", "legacy"])
def test_too_big(dialect, default_limits, queue):
    sent = random_step("spec_topk", 1, batch=8, cols=3, accepted=2)
    sender = fp.Sender("spec_topk", key=queue.key, dialect=dialect)
    with pytest.raises(fp.MessageTooBig) as caught:
        sender.send(sent)
    size = len(fp.encode(sent, dialect))
    assert (caught.value.size, caught.value.limit) == (size, 8192)
    for fragment in str(size), "kernel.msgmax = 8192", "sysctl", "docker", "compact", f"queue {queue.id}":
        assert fragment in str(caught.value)
    assert sender.stats["frames"] == sender.stats["messages"] == queue.current_messages == 0
    small = random_step("spec_topk", 1, batch=3, cols=3, accepted=2)
    sender.send(small)
    assert queue.receive()[0] == fp.encode(small, dialect)


def test_a_queue_that_is_too_small(raised_limits, queue):
    queue.max_size = 5000
    sent = random_step("spec_topk", 1, batch=8, cols=21, accepted=6)
    with pytest.raises(fp.MessageTooBig, match=r"msg_qbytes|what this queue may hold \(5000") as caught:
        fp.Sender("spec_topk", key=queue.key).send(sent)
    assert caught.value.limit == 5000
    with (
        fp.Sender("spec_topk", key=queue.key, dialect="compact") as sender,
        fp.Receiver("spec_topk", key=queue.key) as receiver,
        in_thread(sender.send, sent, 20),
    ):
        assert same(receiver.receive(20), sent)


def test_frames_are_cut_to_the_limit_of_the_moment(default_limits, queue):
    sent = random_step("spec_topk", 1, batch=10, cols=3, accepted=6)
    size = len(fp.encode(sent, "compact"))
    with (
        fp.Sender("spec_topk", key=queue.key, dialect="compact") as sender,
        fp.Receiver("spec_topk", key=queue.key) as receiver,
    ):
        for name, limit in (
            ("msgmax", 8192),
            ("msgmax", 512),
            ("msgmax", 1000),
            ("qbytes", 700),
            ("msgmax", 300),
        ):
            if name == "msgmax":
                default_limits("msgmax", limit)
            else:
                queue.max_size = limit
                default_limits("msgmax", 8192)
            with in_thread(sender.send, sent, 20):
                assert same(receiver.receive(20), sent)
        pieces = [1] + [-(-(size - 64) // (limit - 64)) for limit in (512, 1000, 700, 300)]
        assert sender.stats["messages"] == sum(pieces)


@pytest.mark.parametrize("limit", [65, 68, 72, 100, 128, 135, 136, 137, 150])
def test_tiny_limits(limit, default_limits, queue):
    sent = random_step("spec_topk", 1, batch=4, cols=2, accepted=3)
    default_limits("msgmax", limit)
    with (
        fp.Sender("spec_topk", key=queue.key, dialect="compact") as sender,
        fp.Receiver("spec_topk", key=queue.key) as receiver,
    ):
        try:
            with in_thread(sender.send, sent, 20) as outcome:
                got = receiver.receive(5 if limit >= 136 else 0.1)
        finally:
            default_limits("msgmax", 8192)
        if outcome == [None]:
            assert same(got, sent)
        else:  # too small to be worth it, but then it says so
            assert isinstance(outcome[0], fp.MessageTooBig)
            assert limit < 136
            assert queue.current_messages == 0


@pytest.mark.parametrize("dialect", ["packed", "compact"])
def test_a_limit_below_the_header(dialect, default_limits, queue):
    sender = fp.Sender("spec_topk", key=queue.key, dialect=dialect)
    default_limits("msgmax", 64)
    with pytest.raises(fp.MessageTooBig, match="64"):
        sender.send(random_step("spec_topk", 1, batch=40, cols=2))
    default_limits("msgmax", 8192)
    sender.send(random_step("spec_topk", 1, batch=3, cols=2))
    assert queue.current_messages == 1


def test_limits_lowered_in_the_middle_of_a_frame(default_limits, queue):
    """What is left of it cannot be sent; it costs that frame, and says so."""
    sent, after = random_step(**LARGEST), random_step("spec_topk", 2, batch=100, cols=21, accepted=6)
    with (
        fp.Sender("spec_topk", key=queue.key, dialect="compact") as sender,
        fp.Receiver("spec_topk", key=queue.key) as receiver,
    ):
        with in_thread(sender.send, sent, 20) as outcome:
            deadline = time.monotonic() + 20
            while not sender.stats["waits"] and time.monotonic() < deadline:
                time.sleep(0.001)
            default_limits("msgmax", 1000)
            got = receiver.receive(1)
        if outcome == [None]:
            assert same(got, sent)
        else:
            assert isinstance(outcome[0], fp.MessageTooBig)
            assert "1000" in str(outcome[0])
            assert got is None
        with in_thread(sender.send, after, 20) as outcome:
            assert same(receiver.receive(20), after)
        assert outcome == [None]


# ---- A full queue ----------------------------------------------------------------------------------------


def test_a_full_queue(plain, queue, step):
    fitted = fill(plain, step)
    assert fitted == queue.current_messages > 100
    assert plain.stats["frames"] == fitted
    began = time.monotonic()
    with pytest.raises(fp.QueueTimeout, match=f"queue {queue.id}") as caught:
        plain.send(step, timeout=0.05)
    assert 0.05 <= time.monotonic() - began < 5
    assert "the other side is not reading" in str(caught.value)
    assert queue.current_messages == plain.stats["frames"] == fitted
    assert plain.stats["waits"] >= 1
    assert plain.stats["wait_seconds"] >= 0.04  # what passes between two waits is not counted
    queue.receive()
    plain.send(step, 0)
    assert queue.current_messages == fitted


@pytest.mark.parametrize("timeout", [None, 20])
def test_waits_without_the_gil(plain, queue, step, timeout):
    fill(plain, step)
    timer = threading.Timer(0.05, queue.receive)  # needs the GIL while the sender waits
    timer.start()
    before = plain.stats["waits"]
    plain.send(step, timeout)
    timer.join()
    assert plain.stats["waits"] == before + 1
    assert plain.stats["wait_seconds"] > 0.02


@pytest.mark.parametrize("timeout", [None, 20])
def test_a_signal_runs_its_handler_and_the_wait_goes_on(plain, queue, step, timeout):
    fitted = fill(plain, step)
    seen = []

    def handler(*_):
        seen.append(plain.stats["frames"])
        if len(seen) == 3:
            queue.receive()

    with alarm(handler, 0.02, 0.02):
        plain.send(step, timeout)
    assert seen[:3] == [fitted] * 3
    assert queue.current_messages == fitted


@pytest.mark.parametrize("timeout", [None, 20])
def test_a_handler_that_raises_ends_the_wait(plain, queue, step, timeout):
    class Stop(Exception):
        pass

    def handler(*_):
        raise Stop

    fitted = fill(plain, step)
    with alarm(handler, 0.02), pytest.raises(Stop):
        plain.send(step, timeout)
    assert queue.current_messages == plain.stats["frames"] == fitted
    queue.receive()
    plain.send(step, 0)  # usable as before


def test_signals_do_not_make_a_wait_longer(plain, step):
    fill(plain, step)
    began = time.monotonic()
    with alarm(lambda *_: None, 0.01, 0.01), pytest.raises(fp.QueueTimeout):
        plain.send(step, 0.2)
    assert 0.2 <= time.monotonic() - began < 5


def test_a_timeout_in_the_middle_of_a_frame(default_limits, queue):
    """The frame is lost, and counted by the receiver; the next one is whole."""
    sent, after = random_step(**LARGEST), random_step("spec_topk", 2, batch=9, cols=21, accepted=2)
    with (
        fp.Sender("spec_topk", key=queue.key, dialect="compact") as sender,
        fp.Receiver("spec_topk", key=queue.key) as receiver,
    ):
        for timeout in 0, 0.05:
            with pytest.raises(fp.QueueTimeout):
                sender.send(sent, timeout)
            assert receiver.receive(0) is None
        sender.send(after, 0)
        got = receiver.receive(0)
        assert same(got, after)
        assert got.seq == 2
        assert receiver.stats["incomplete"] == 2
        assert sender.stats["frames"] == 1


@pytest.mark.parametrize("timeout", [-1, float("nan"), -0.001])
def test_timeout_must_be_a_number_of_seconds(plain, step, timeout):
    with pytest.raises(ValueError, match="timeout"):
        plain.send(step, timeout)


# ---- What else can go wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 20])
def test_queue_removed_while_waiting(plain, queue, step, timeout):
    fill(plain, step)
    timer = threading.Timer(0.05, queue.remove)
    timer.start()
    with pytest.raises(fp.QueueRemoved, match=f"queue {plain.msqid}"):
        plain.send(step, timeout)
    timer.join()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_queue_removed_before(queue, step, dialect):
    sender = fp.Sender("plain", key=queue.key, dialect=dialect)
    queue.remove()
    for _ in range(2):
        with pytest.raises(fp.QueueRemoved):
            sender.send(step)
    assert sender.stats["frames"] == 0


def test_no_permission(queue):
    done = as_nobody(f"fp.Sender('plain', key={queue.key})")
    assert "fd_postproc.errors.QueuePermission" in done.stderr
    assert "run both sides as the same user" in done.stderr


def test_permission_taken_away_while_open(queue_key):
    script = (
        f"import sysv_ipc; s = fp.Sender('plain', key={queue_key})\n"
        f"q = sysv_ipc.MessageQueue({queue_key}); q.mode = 0o400\n"
        "step = fp.decode(bytes(8), 'plain')\n"
        "try:\n s.send(step, 1)\nexcept fp.QueuePermission as e: print('refused', e.errno)\nq.remove()"
    )
    done = as_nobody(script)
    assert done.stdout == "refused 13\n", done.stderr


def test_a_queue_that_may_only_be_written(queue_key, step):
    """A sender needs no permission to read."""
    sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=0o622)
    script = f"fp.Sender('plain', key={queue_key}).send(fp.decode(bytes(8), 'plain'), 1)"
    done = as_nobody(script)
    if done.returncode:  # the limits are read with IPC_STAT, which asks for permission to read
        assert "QueuePermission" in done.stderr


def test_one_thread_at_a_time(plain, queue, step):
    fill(plain, step)
    with in_thread(plain.send, step) as outcome:
        deadline = time.monotonic() + 20
        waits = plain.stats["waits"]
        while plain.stats["waits"] == waits - 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        with pytest.raises(fp.SenderBusy, match="one thread at a time"):
            plain.send(step, 0)
        queue.receive()
    assert outcome == [None]
    queue.receive()
    plain.send(step, 0)


def test_a_handler_must_not_use_the_sender_that_waits(plain, queue, step):
    fill(plain, step)
    caught = []

    def handler(*_):
        with pytest.raises(fp.SenderBusy):
            plain.send(step, 0)
        caught.append(1)
        queue.receive()

    with alarm(handler, 0.02):
        plain.send(step)
    assert caught


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"channel": "speck"}, "channel 'speck' is not one of"),
        ({"channel": "plain", "dialect": "dense"}, "dialect 'dense' is not one of"),
        ({"channel": "plain", "key": 0}, "key 0"),
        ({"channel": "plain", "key": 5, "queue_id": 5}, "not both"),
        ({"channel": "plain", "queue_id": 1, "ftok": "mine"}, "ftok 'mine'"),
    ],
)
def test_bad_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        fp.Sender(**arguments)


def test_a_step_of_another_channel(plain, queue):
    with pytest.raises(ValueError, match=r"'spec'.*'plain'"):
        plain.send(fp.Step.from_arrays("spec", [1], [5]))
    with pytest.raises(TypeError):
        plain.send(b"step")
    assert queue.current_messages == 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_step_that_the_layout_cannot_carry(queue, dialect):
    sender = fp.Sender("spec", key=queue.key, dialect=dialect, layout=fp.Layout(60, 1, 2, 50))
    for counts in [1] * 61, [3]:
        with pytest.raises(ValueError, match="cannot carry the step"):
            sender.send(fp.Step.from_arrays("spec", counts, range(sum(counts))))
    assert queue.current_messages == 0
    sender.send(fp.Step.from_arrays("spec", [2, 0, -9, 1], [1, 2, 3]))


def test_closing(queue, step):
    with fp.Sender("plain", key=queue.key) as sender:
        sender.send(step)
    with pytest.raises(ValueError, match="closed"):
        sender.send(step)
    assert queue.current_messages == 1
    assert "closed" in repr(sender)
    with pytest.raises(RuntimeError):
        sender.__init__("plain", key=queue.key)
    with pytest.raises(ValueError, match="closed"):
        fp.Sender.__new__(fp.Sender).send(step)


def test_attributes(queue_key):
    with fp.Sender("spec", key=queue_key, layout=fp.XPU, dialect="compact", mode=0o640) as sender:
        queue = sysv_ipc.MessageQueue(queue_key)
        assert (sender.msqid, sender.key, queue.mode & 0o777) == (queue.id, queue_key, 0o640)
        assert (sender.channel, sender.layout, sender.dialect) == ("spec", fp.XPU, "compact")


def test_a_recorded_message_sent_again(golden, raised_limits, queue):
    """Decoded, and sent as it came: it ends earlier, and says the same."""
    recorded = fp.decode(golden.payload, golden.channel)
    fp.Sender(golden.channel, key=queue.key, dialect=golden.dialect).send(recorded)
    payload, mtype = queue.receive()
    assert mtype == 1
    assert fp.decode(payload, golden.channel) == recorded
    assert len(payload) == reference.claimed(golden.payload, golden.channel)

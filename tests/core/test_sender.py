"""Sender: every dialect through real queues, and every way in which a send can fail."""

import errno
import os
import struct
import subprocess
import threading

import pytest
import sysv_ipc

import fd_postproc as fp
from tests import reference
from tests.lib.children import python
from tests.lib.marks import forks_beside_threads
from tests.lib.other_user import as_nobody
from tests.lib.random_steps import random_step
from tests.lib.sending import DIALECTS, LARGEST, fill, in_thread, same
from tests.lib.waiting import signalled, until, when
from tests.reference import FrameHeader

CHANNELS = ("plain", "topk", "spec", "spec_topk")


def drain(queue):
    """Everything in the queue: (payload, type)."""
    messages = []
    while queue.current_messages:
        messages.append(queue.receive(block=False))
    return messages


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
        payload = reference.seal(header._replace(sender=0, seq=0).pack() + payload[64:])
    assert payload == fp.encode(sent, dialect)


def test_senders_have_numbers_of_their_own(queue, plain_step):
    senders = [fp.Sender("plain", key=queue.key, dialect="compact") for _ in range(20)]
    for sender in senders:
        for _ in range(3):
            sender.send(plain_step)
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


@pytest.mark.parametrize(("over", "pieces"), [(0, 1), (1, 2)])
def test_a_frame_of_exactly_the_limit_goes_whole(default_limits, queue, over, pieces):
    sent = random_step("spec_topk", 3, batch=8, cols=5, accepted=2)
    default_limits("msgmax", len(fp.encode(sent, "compact")) - over)
    with (
        fp.Sender("spec_topk", key=queue.key, dialect="compact") as sender,
        fp.Receiver("spec_topk", key=queue.key) as receiver,
    ):
        sender.send(sent)
        assert same(receiver.receive(5), sent)
        fragments = pieces if pieces > 1 else 0
        assert (sender.stats["messages"], sender.stats["fragments"]) == (pieces, fragments)


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
    while len(got) < 40 and (step := receiver.receive(20)) is not None:
        got.append(step)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert receiver.stats["incomplete"] == 0
    assert [sum(same(step, sent) for step in got) for sent in steps] == [20, 20]


def test_a_child_numbers_its_frames_anew(queue):
    """Under a number of its own: to a receiver it is another sender."""
    with (
        fp.Sender("plain", key=queue.key, dialect="compact") as sender,
        fp.Receiver("plain", key=queue.key) as receiver,
    ):
        step = fp.Step.from_arrays("plain", [1], [5])
        for _ in range(3):
            sender.send(step)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                sender.send(step)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        sender.send(step)
        assert [receiver.receive(20).seq for _ in range(5)] == [0, 1, 2, 0, 3]
        assert sorted(one["frames"] for one in receiver.senders.values()) == [1, 4]
        assert (receiver.stats["doubled"], receiver.stats["missing"]) == (0, 0)


@forks_beside_threads
def test_a_signal_handler_that_forks_in_the_middle_of_a_send(default_limits, queue):
    """Half of the frame is in the queue; the parent sends the rest, and only the parent."""
    step = random_step("spec_topk", 1, batch=64, cols=21, accepted=6)
    sender = fp.Sender("spec_topk", key=queue.key, dialect="compact")
    receiver = fp.Receiver("spec_topk", key=queue.key)
    child = None

    def fork(*_):
        nonlocal child
        if child is None:
            child = os.fork()

    got = []
    reader = threading.Thread(target=lambda: (until(lambda: child), got.append(receiver.receive(20))))
    reader.start()
    status = 1
    try:
        with signalled(fork, lambda: sender.waiting_seconds):
            sender.send(step, 20)
    except fp.QueueError as error:
        status = 0 if error.errno == errno.EINTR and "forked" in str(error) else 2
    finally:
        if child == 0:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reader.join()
    assert got == [step]
    assert receiver.stats["incomplete"] == 0
    assert queue.current_messages == 0


# ---- What else can go wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 20])
def test_queue_removed_while_waiting(plain_sender, queue, plain_step, timeout):
    fill(plain_sender, plain_step)
    other = when(lambda: plain_sender.waiting_seconds, queue.remove)
    with pytest.raises(fp.QueueRemoved, match=f"queue {plain_sender.msqid}"):
        plain_sender.send(plain_step, timeout)
    other.join()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_queue_removed_before(queue, plain_step, dialect):
    sender = fp.Sender("plain", key=queue.key, dialect=dialect)
    queue.remove()
    for _ in range(2):
        with pytest.raises(fp.QueueRemoved):
            sender.send(plain_step)
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


def test_a_queue_that_may_only_be_written(queue_key, plain_step):
    """A sender needs no permission to read."""
    sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=0o622)
    script = f"fp.Sender('plain', key={queue_key}).send(fp.decode(bytes(8), 'plain'), 1)"
    done = as_nobody(script)
    if done.returncode:  # the limits are read with IPC_STAT, which asks for permission to read
        assert "QueuePermission" in done.stderr


def test_one_thread_at_a_time(plain_sender, queue, plain_step):
    fill(plain_sender, plain_step)
    with in_thread(plain_sender.send, plain_step) as outcome:
        until(lambda: plain_sender.waiting_seconds)
        with pytest.raises(fp.SenderBusy, match="one thread at a time"):
            plain_sender.send(plain_step, 0)
        queue.receive()
    assert outcome == [None]
    queue.receive()
    plain_sender.send(plain_step, 0)


def test_a_handler_must_not_use_the_sender_that_waits(plain_sender, queue, plain_step):
    fill(plain_sender, plain_step)
    caught = []

    def handler(*_):
        with pytest.raises(fp.SenderBusy):
            plain_sender.send(plain_step, 0)
        caught.append(1)
        queue.receive()

    with signalled(handler, lambda: plain_sender.waiting_seconds):
        plain_sender.send(plain_step)
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


def test_a_step_of_another_channel(plain_sender, queue):
    with pytest.raises(ValueError, match=r"'spec'.*'plain'"):
        plain_sender.send(fp.Step.from_arrays("spec", [1], [5]))
    with pytest.raises(TypeError):
        plain_sender.send(b"step")
    assert queue.current_messages == 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_step_that_the_layout_cannot_carry(queue, dialect):
    sender = fp.Sender("spec", key=queue.key, dialect=dialect, layout=fp.Layout(60, 1, 2, 50))
    for counts in [1] * 61, [3]:
        with pytest.raises(ValueError, match="cannot carry the step"):
            sender.send(fp.Step.from_arrays("spec", counts, range(sum(counts))))
    assert queue.current_messages == 0
    sender.send(fp.Step.from_arrays("spec", [2, 0, -9, 1], [1, 2, 3]))


def test_closing(queue, plain_step):
    with fp.Sender("plain", key=queue.key) as sender:
        sender.send(plain_step)
    with pytest.raises(fp.SenderClosed, match=r"is closed \(queue"):
        sender.send(plain_step)
    assert queue.current_messages == 1
    assert "closed" in repr(sender)
    with pytest.raises(RuntimeError):
        sender.__init__("plain", key=queue.key)
    with pytest.raises(ValueError, match="closed"):
        fp.Sender.__new__(fp.Sender).send(plain_step)


def test_attributes(queue_key):
    with fp.Sender(
        "spec", key=queue_key, layout=fp.Layout(128, 5, 6), dialect="compact", mode=0o640
    ) as sender:
        queue = sysv_ipc.MessageQueue(queue_key)
        assert (sender.msqid, sender.key, queue.mode & 0o777) == (queue.id, queue_key, 0o640)
        assert (sender.channel, sender.layout, sender.dialect) == ("spec", fp.Layout(128, 5, 6), "compact")


def test_a_recorded_message_sent_again(golden, raised_limits, queue):
    """Decoded, and sent as it came: it ends earlier, and says the same."""
    recorded = fp.decode(golden.payload, golden.channel)
    fp.Sender(golden.channel, key=queue.key, dialect=golden.dialect).send(recorded)
    payload, mtype = queue.receive()
    assert mtype == 1
    assert fp.decode(payload, golden.channel) == recorded
    assert len(payload) == reference.claimed(golden.payload, golden.channel)


@forks_beside_threads
def test_a_forked_child_of_a_process_whose_threads_send_for_the_first_time(queue):
    """An import on the way of a message, under way in a thread when the process forks, hangs the child."""
    code = """
import os, signal, sys, threading, time
import fd_postproc as fp
key = int(sys.argv[1])
go = threading.Barrier(9)
def send():
    go.wait()
    with fp.Sender("spec_topk", key=key, dialect="compact") as sender:
        sender.send(fp.Step.from_arrays("spec_topk", [1], [[7, 8]], [[-1.0, -2.0]], [1]))
threads = [threading.Thread(target=send) for _ in range(8)]
for thread in threads: thread.start()
receiver = fp.Receiver("spec_topk", key=key)
go.wait()
time.sleep(0.03)  # an import of NumPy is under way then
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    with fp.Sender("spec_topk", key=key, dialect="compact") as sender:
        sender.send(fp.Step.from_arrays("spec_topk", [1], [[7, 8]], [[-1.0, -2.0]], [1]))
    os._exit(0)
for thread in threads: thread.join()
assert os.waitpid(pid, 0)[1] == 0
for _ in range(9): receiver.receive(timeout=60)
"""
    subprocess.run(python(code, queue.key), cwd="/", check=True, timeout=200)

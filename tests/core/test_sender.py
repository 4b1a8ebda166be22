"""What a Sender alone does; what it has in common with a Receiver is in test_waiting.py."""

import errno
import os
import threading

import pytest
import sysv_ipc

import fd_postproc as fp
from tests import reference
from tests.lib.children import ended, forked, in_a_child
from tests.lib.marks import forks_beside_threads
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.sending import DIALECTS, pipe, same
from tests.lib.waiting import signalled, until
from tests.reference import FrameHeader

CHANNELS = ("plain", "topk", "spec", "spec_topk")


@each("dialect", DIALECTS)
@each("channel", CHANNELS)
def test_what_is_sent_is_what_encode_makes_and_what_arrives(channel, dialect, raised_limits, queue_keys):
    key = queue_keys()
    with pipe(key, channel, dialect) as (sender, receiver):
        assert (sender.channel, sender.layout, sender.dialect) == (channel, fp.GPU, dialect)
        queue = sysv_ipc.MessageQueue(key, max_message_size=1 << 20)
        # What one message left in the buffer is not in the next.
        for seed, batch in enumerate([60, 2, 30, 0, 1]):
            sent = random_step(channel, seed, batch=batch, cols=21 if dialect == "legacy" else None)
            assert sender.send(sent) is None
            payload, mtype = queue.receive()
            queue.send(payload, type=mtype)
            assert mtype == (2 if dialect == "compact" else 1)
            got = receiver.receive(0)
            assert same(got, sent)
            assert got.seq == (seed if dialect == "compact" else None)
            assert receiver.receive(0) is None
            if dialect == "compact":
                header = FrameHeader.unpack(payload)
                payload = reference.seal(header._replace(sender=0, seq=0).pack() + payload[64:])
            assert payload == fp.encode(sent, dialect)
        stats, taken = sender.stats, receiver.stats
        assert stats["frames"] == 5
        assert (stats["messages"], stats["bytes"]) == (taken["messages"], taken["bytes"])
        assert stats["fragments"] == taken["fragments"] == 0
        assert (stats["waits"], stats["wait_seconds"]) == (0, 0)


def test_send_arrays(queue):
    with fp.Sender("spec_topk", key=queue.key) as sender, fp.Receiver("spec_topk", key=queue.key) as receiver:
        sender.send_arrays(
            [2, -9], [[1, 2], [3, 4]], [[-1, -2], [-3, -4]], [5, 6], flag=4, stop_flag=-1, timeout=1
        )
        got = receiver.receive(0)
    assert (got.flag, got.stop_flag, got.counts) == (4, -1, [2, -9])
    assert got.tolists() == ([[[1, 2], [3, 4]], []], [[[-1, -2], [-3, -4]], []], [[5, 6], []])


@each("over, pieces", [(0, 1), (1, 2)])
def test_a_frame_of_exactly_the_limit_goes_whole(default_limits, queue, over, pieces):
    default_limits("msgmax", 8192)
    sent = random_step("spec_topk", 3, batch=8, cols=5, accepted=2)
    default_limits("msgmax", len(fp.encode(sent, "compact")) - over)
    with pipe(queue.key) as (sender, receiver):
        sender.send(sent)
        assert same(receiver.receive(5), sent)
        fragments = pieces if pieces > 1 else 0
        assert (sender.stats["messages"], sender.stats["fragments"]) == (pieces, fragments)


@pytest.mark.realtime
def test_after_a_fork_both_processes_send(default_limits, queue):
    """They have the same Sender, and must not have the same frames: to a receiver it is another sender."""
    steps = [random_step("spec_topk", seed, batch=64, cols=21, accepted=6) for seed in range(2)]
    sender = fp.Sender("spec_topk", key=queue.key, dialect="compact")
    receiver = fp.Receiver("spec_topk", key=queue.key)

    def work(step):
        for _ in range(20):
            sender.send(step, 20)

    children = [forked(lambda step=step: work(step)) for step in steps]
    got = []
    while len(got) < 40 and (step := receiver.receive(20)) is not None:
        got.append(step)
    assert [ended(child) for child in children] == [0, 0]
    assert receiver.stats["incomplete"] == receiver.stats["doubled"] == receiver.stats["missing"] == 0
    assert [sum(same(step, sent) for step in got) for sent in steps] == [20, 20]
    assert [one["frames"] for one in receiver.senders.values()] == [20, 20]


@pytest.mark.realtime
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
    assert ended(child) == 0
    reader.join()
    assert got == [step]
    assert receiver.stats["incomplete"] == 0
    assert queue.current_messages == 0


def test_a_forked_child_numbers_its_frames_from_the_start(queue, plain_step):
    with (
        fp.Sender("plain", key=queue.key, dialect="compact") as sender,
        fp.Receiver("plain", key=queue.key) as it,
    ):
        for _ in range(3):
            sender.send(plain_step)
        in_a_child(lambda: [sender.send(plain_step) for _ in range(2)])
        sender.send(plain_step)
        assert [it.receive(0).seq for _ in range(6)] == [0, 1, 2, 0, 1, 3]


def test_a_step_of_another_channel(plain_sender, queue):
    with pytest.raises(ValueError, match=r"'spec'.*'plain'"):
        plain_sender.send(fp.Step.from_arrays("spec", [1], [5]))
    with pytest.raises(TypeError):
        plain_sender.send(b"step")
    assert queue.current_messages == 0

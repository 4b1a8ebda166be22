"""Sender: what one message may hold, and limits that change while it waits."""

import time

import pytest
import sysv_ipc

import fd_postproc as fp
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.sending import LARGEST, fill, in_thread, pipe, same
from tests.lib.waiting import until


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


@each("dialect", ["packed", "legacy"])
def test_too_big(dialect, default_limits, new_queue):
    queue = new_queue()
    default_limits("msgmax", 8192)
    sent = random_step("spec_topk", 1, batch=8, cols=3, accepted=2)
    sender = fp.Sender("spec_topk", key=queue.key, dialect=dialect)
    with pytest.raises(fp.MessageTooBig) as caught:
        sender.send(sent)
    size = len(fp.encode(sent, dialect))
    assert (caught.value.size, caught.value.limit) == (size, 8192)
    for fragment in (
        str(size),
        "kernel.msgmax = 8192",
        "sysctl",
        "docker",
        "compact",
        f"queue msqid:{queue.id}",
    ):
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


@pytest.mark.realtime
def test_frames_are_cut_to_the_limit_of_the_moment(default_limits, queue):
    sent = random_step("spec_topk", 1, batch=10, cols=3, accepted=6)
    size = len(fp.encode(sent, "compact"))
    with pipe(queue.key) as (sender, receiver):
        for msgmax, qbytes in (8192, 16384), (512, 16384), (1000, 16384), (8192, 700), (300, 700):
            default_limits("msgmax", msgmax)
            queue.max_size = qbytes
            with in_thread(sender.send, sent, 20):
                assert same(receiver.receive(20), sent)
        pieces = [1] + [-(-(size - 64) // (limit - 64)) for limit in (512, 1000, 700, 300)]
        assert sender.stats["messages"] == sum(pieces)


@pytest.mark.realtime
@each("limit", [65, 100, 135, 136, 150])
def test_tiny_limits(limit, default_limits, new_queue):
    queue = new_queue()
    sent = random_step("spec_topk", 1, batch=4, cols=2, accepted=3)
    default_limits("msgmax", limit)
    with pipe(queue.key) as (sender, receiver):
        with in_thread(sender.send, sent, 20) as outcome:
            got = receiver.receive(5 if limit >= 136 else 0.1)
        if outcome == [None]:
            assert same(got, sent)
        else:  # too small to be worth it, but then it says so
            assert isinstance(outcome[0], fp.MessageTooBig)
            assert limit < 136
            assert queue.current_messages == 0


@pytest.mark.realtime
@each("limit", ["msgmax", "msg_qbytes"])
@each("timeout", [None, 20])
def test_limits_lowered_in_the_middle_of_a_frame(timeout, limit, default_limits, new_queue):
    """What is left of it cannot be sent; it costs that frame, and says so."""
    queue = new_queue()
    default_limits("msgmax", 8192)
    sent, after = random_step(**LARGEST), random_step("spec_topk", 2, batch=100, cols=21, accepted=6)
    with pipe(queue.key) as (sender, receiver):
        with in_thread(sender.send, sent, timeout) as outcome:
            until(lambda: sender.waiting_seconds)
            if limit == "msgmax":
                default_limits("msgmax", 1000)
            else:
                queue.max_size = 1000
            assert receiver.receive(0.3) is None
        assert isinstance(outcome[0], fp.MessageTooBig)
        assert (outcome[0].size, outcome[0].limit) == (8192, 1000)
        with in_thread(sender.send, after, 20) as outcome:
            assert same(receiver.receive(20), after)
        assert outcome == [None]
        assert receiver.stats["incomplete"] == 1


@pytest.mark.realtime
@each("dialect", ["packed", "compact"])
@each("timeout", [None, 20])
def test_a_queue_made_smaller_than_the_message_that_waits(timeout, dialect, default_limits, new_queue):
    """The kernel would let it wait forever, even on an empty queue."""
    queue = new_queue()
    default_limits("msgmax", 8192)
    step = fp.Step.from_arrays("plain", [1] * 300, range(300))
    with fp.Sender("plain", key=queue.key, dialect=dialect) as sender:
        fitted = fill(sender, step)
        with in_thread(sender.send, step, timeout) as outcome:
            until(lambda: sender.waiting_seconds)
            queue.max_size = 1000
        assert isinstance(outcome[0], fp.MessageTooBig)
        assert "msg_qbytes = 1000" in str(outcome[0])
        assert sender.waiting_seconds == 0.0
        assert sender.stats["frames"] == fitted
        while queue.current_messages:
            queue.receive(block=False)
        queue.max_size = 16384
        sender.send(step, 0)


@pytest.mark.realtime
def test_limits_lowered_and_raised_again_while_it_waits(default_limits, queue):
    """What matters is whether the message fits when there is room for it."""
    step = fp.Step.from_arrays("plain", [1], [5])
    with fp.Sender("plain", key=queue.key) as sender:
        fitted = fill(sender, step)
        with in_thread(sender.send, step) as outcome:
            until(lambda: sender.waiting_seconds)
            for size in (100, 16384, 12, 16384):
                queue.max_size = size
                time.sleep(0.03)
            queue.receive()
        assert outcome == [None]
        assert queue.current_messages == fitted


@pytest.mark.realtime
def test_a_timeout_in_the_middle_of_a_frame(default_limits, queue):
    """The frame is lost, and counted by the receiver; the next one is whole."""
    sent, after = random_step(**LARGEST), random_step("spec_topk", 2, batch=9, cols=21, accepted=2)
    with pipe(queue.key) as (sender, receiver):
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

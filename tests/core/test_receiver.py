"""What a Receiver alone does; what it has in common with a Sender is in test_waiting.py."""

import threading
import time

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from tests.lib.rows import each
from tests.lib.waiting import when


@pytest.fixture
def plain(plain_step):
    """The message of a small step."""
    return fp.encode(plain_step)


@pytest.fixture
def receiver(queue_key):
    with fp.Receiver("plain", key=queue_key) as receiver:
        yield receiver


@pytest.fixture
def queue(receiver):
    """The receiver's queue, through an independent library."""
    return sysv_ipc.MessageQueue(receiver.key, max_message_size=8192)


def test_a_full_size_message_of_every_channel(raised_limits, queue_key):
    for channel in ("plain", "topk", "spec", "spec_topk"):
        payload = bytes(fp._core.payload_size(channel))
        with fp.Receiver(channel, key=queue_key) as receiver:
            sysv_ipc.MessageQueue(queue_key, max_message_size=len(payload)).send(payload)
            step = receiver.receive(0)
            assert (step.channel, step.batch, step.rows) == (channel, 0, 0)


@pytest.mark.realtime
def test_iterates_until_it_is_removed(receiver, queue, plain):
    for _ in range(3):
        queue.send(plain)
    other = when(lambda: receiver.stats["waits"], receiver.remove)
    assert [step.batch for step in receiver] == [3, 3, 3]
    other.join()
    assert list(receiver) == []
    receiver.remove()  # gone already: no error


@pytest.mark.realtime
@each("timeout", [None, 10])
def test_close_wakes_who_waits_and_takes_nothing(queue_keys, plain, timeout):
    receiver = fp.Receiver("plain", key=queue_keys())
    queue = sysv_ipc.MessageQueue(receiver.key)
    other = when(lambda: receiver.stats["waits"], receiver.close)
    with pytest.raises(fp.ReceiverClosed, match=r"is closed \(queue"):
        receiver.receive(timeout)
    other.join()
    assert receiver.closed
    queue.send(plain)
    with pytest.raises(fp.ReceiverClosed):
        list(receiver)
    assert receiver.stats["messages"] == 0
    assert queue.receive()[0] == plain


def test_a_message_that_is_too_long_is_taken_out_of_the_way(receiver, queue, plain):
    queue.send(plain)
    queue.send(b"x" * 5000)
    queue.send(plain)
    assert receiver.receive(0).batch == 3
    with pytest.raises(fp.MalformedMessage, match="it has 5000 bytes, more than the 2056") as caught:
        receiver.receive(0)
    assert (caught.value.field, caught.value.value, caught.value.bound) == ("length", 5000, 2056)
    assert receiver.receive(0).batch == 3
    stats = receiver.stats
    assert (stats["messages"], stats["oversized"], stats["malformed"]) == (3, 1, 0)
    assert stats["bytes"] == 2 * len(plain) + 5000


def test_a_malformed_message_costs_only_itself(receiver, queue, plain):
    queue.send(plain)
    queue.send((1).to_bytes(4, "little") + (-5).to_bytes(4, "little", signed=True))
    queue.send(plain, type=7)
    queue.send(b"")
    queue.send(plain)
    assert receiver.receive(0).batch == 3
    for field, value in ("batch", -5), ("mtype", 7), ("length", 0):
        with pytest.raises(fp.MalformedMessage) as caught:
            receiver.receive(0)
        assert (caught.value.field, caught.value.value) == (field, value)
    assert receiver.receive(0).batch == 3
    assert receiver.stats["malformed"] == 3
    assert receiver.stats["messages"] == 5


@pytest.mark.realtime
def test_no_good_message_is_lost_when_two_receivers_meet_oversized_ones(queue_key, plain):
    good = 300
    got, oversized = [], []

    def take(receiver):
        while True:
            try:
                step = receiver.receive()
            except fp.MalformedMessage as error:
                oversized.append(error.value)
            except fp.QueueRemoved:
                return
            else:
                got.append(step.batch)

    with fp.Receiver("plain", key=queue_key) as one, fp.Receiver("plain", key=queue_key) as two:
        queue = sysv_ipc.MessageQueue(queue_key, max_message_size=8192)
        threads = [threading.Thread(target=take, args=(receiver,)) for receiver in (one, two)]
        for thread in threads:
            thread.start()
        for _ in range(good):
            queue.send(b"x" * 2057)
            queue.send(plain)
        deadline = time.monotonic() + 20
        while (len(got) < good or len(oversized) < good) and time.monotonic() < deadline:
            time.sleep(0.01)
        one.remove()
        for thread in threads:
            thread.join(20)
    assert (len(got), len(oversized)) == (good, good)
    assert one.stats["messages"] + two.stats["messages"] == 2 * good


@pytest.mark.realtime
def test_two_receivers_in_two_threads(queue_keys):
    """Each thread gets exactly its own queue's tokens."""
    keys = [queue_keys() for _ in range(2)]
    receivers = [fp.Receiver("spec", key=key) for key in keys]
    got = [[], []]

    def take(who):
        for step in receivers[who]:
            got[who].append(step.token_ids(0))
            if step.stop_flag < 0:
                return

    threads = [threading.Thread(target=take, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    senders = [sysv_ipc.MessageQueue(key, max_message_size=8192) for key in keys]
    for n in range(500):
        for who, sender in enumerate(senders):
            stop = -1 if n == 499 else 1
            sender.send(fp.encode(fp.Step.from_arrays("spec", [2], [n, who], stop_flag=stop)))
    for thread in threads:
        thread.join(20)
    assert got == [[[n, who] for n in range(500)] for who in range(2)]


def test_a_queue_survives_its_receiver(queue_key, plain):
    with fp.Receiver("plain", key=queue_key):
        sysv_ipc.MessageQueue(queue_key).send(plain)
    with fp.Receiver("plain", key=queue_key) as receiver:
        assert receiver.receive(0).batch == 3


def test_an_open_queue_is_reported_once(queue_key, caplog):
    sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=0o666)
    for _ in range(2):
        fp.Receiver("plain", key=queue_key).close()
    reports = [record.getMessage() for record in caplog.records if "mode 0666" in record.getMessage()]
    assert len(reports) == 1


def test_repr_says_what_it_is(receiver):
    where = f"queue {receiver.msqid}, key {queues.key_text(receiver.key)}"
    assert repr(receiver) == f"<Receiver plain: {where}, 0 received, 0 waiting>"
    receiver.close()
    assert repr(receiver).startswith("<Receiver plain closed: ")
    assert receiver.layout is fp.GPU

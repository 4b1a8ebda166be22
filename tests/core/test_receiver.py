"""What a Receiver alone does; what it has in common with a Sender is in test_waiting.py."""

import ctypes
import signal
import threading

import pytest
import sysv_ipc

import fd_postproc as fp
from tests import reference
from tests.lib.rows import each
from tests.lib.sending import in_thread
from tests.lib.waiting import until, when


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


class Sigaction(ctypes.Structure):
    """The struct sigaction of 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@pytest.mark.realtime
def test_the_wake_up_runs_on_the_thread_s_signal_stack(receiver):
    """In a program in Go, which embeds Python, another handler ends the process."""
    sa_onstack, now = 0x08000000, Sigaction()
    other = when(lambda: receiver.stats["waits"], receiver.close)
    with pytest.raises(fp.ReceiverClosed):
        receiver.receive()
    other.join()
    for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1):
        assert ctypes.CDLL(None).sigaction(number, None, ctypes.byref(now)) == 0
        if now.handler:
            break
    assert now.flags & sa_onstack


@pytest.mark.realtime
def test_close_says_that_it_could_not_wake_a_thread_that_blocks_signals(queue_keys, plain, plain_step):
    """The thread keeps the Receiver: it still gets the next message, or that the queue is removed."""
    for ends_by in "a message", "remove":
        receiver = fp.Receiver("plain", key=queue_keys())

        def wait(receiver=receiver):
            signal.pthread_sigmask(signal.SIG_BLOCK, range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
            return receiver.receive()

        with in_thread(wait) as outcome:
            until(lambda receiver=receiver: receiver.stats["waits"])
            with pytest.raises(fp.ReceiverBusy, match="but a thread blocks signals, and waits still"):
                receiver.close()
            assert receiver.closed
            if ends_by == "remove":
                receiver.remove()
            else:
                sysv_ipc.MessageQueue(receiver.key).send(plain)
        if ends_by == "remove":
            assert isinstance(outcome[0], fp.QueueRemoved)
        else:
            assert outcome == [plain_step]
            receiver.close()
            with pytest.raises(fp.ReceiverClosed):
                receiver.receive(0)


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


def test_a_malformed_message_costs_only_itself(receiver, queue, plain, plain_step):
    """Nor is a frame lost between whose pieces they come."""
    whole = reference.encode_frame(reference.ReferenceStep.from_step(plain_step))
    first, *rest = reference.split(whole, 72)
    queue.send(first, type=2)
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
    for piece in b"x" * 5000, *rest:
        queue.send(piece, type=2 if piece in rest else 1)
    with pytest.raises(fp.MalformedMessage):
        receiver.receive(0)
    assert receiver.receive(0) == plain_step
    stats = receiver.stats
    assert (stats["malformed"], stats["messages"], stats["incomplete"]) == (3, 7 + len(rest), 0)


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
        until(lambda: len(got) + len(oversized) >= 2 * good)
        one.remove()
        for thread in threads:
            thread.join(20)
    assert (len(got), len(oversized)) == (good, good)
    assert one.stats["messages"] + two.stats["messages"] == 2 * good

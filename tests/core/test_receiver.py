"""Receiver: waiting, being woken, and every way in which a receive can fail."""

import os
import threading
import time

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from tests.lib.other_user import as_nobody
from tests.lib.waiting import PATIENCE, signalled, until, when


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


def when_it_waits(receiver, call, *args):
    """Make a call while a receive waits, the first that does; it needs the GIL meanwhile."""
    return when(lambda: receiver.stats["waits"], call, *args)


def test_receives_what_was_sent(receiver, queue, plain):
    queue.send(plain)
    step = receiver.receive()
    assert step.counts == [1, -9, 1]
    assert [step.token_ids(i) for i in range(3)] == [[11], [], [13]]
    assert receiver.stats["messages"] == 1
    assert receiver.stats["bytes"] == len(plain)
    assert receiver.stats["waits"] == 0


def test_steps_come_in_order(receiver, queue):
    for token in range(20):
        queue.send(fp.encode(fp.Step.from_arrays("plain", [1], [token])))
    assert [receiver.receive(0).token_ids(0) for _ in range(20)] == [[token] for token in range(20)]


def test_a_full_size_message_of_every_channel(raised_limits, queue_key):
    for channel in ("plain", "topk", "spec", "spec_topk"):
        payload = bytes(fp._core.payload_size(channel))
        with fp.Receiver(channel, key=queue_key) as receiver:
            sysv_ipc.MessageQueue(queue_key, max_message_size=len(payload)).send(payload)
            step = receiver.receive(0)
            assert (step.channel, step.batch, step.rows) == (channel, 0, 0)


def test_nothing_there(receiver):
    assert receiver.receive(0) is None
    began = time.monotonic()
    assert receiver.receive(0.05) is None
    assert 0.05 <= time.monotonic() - began < PATIENCE
    assert receiver.stats["waits"] == 1
    assert receiver.stats["wait_seconds"] >= 0.04  # what passes between two waits is not counted


@pytest.mark.parametrize("timeout", [None, 10])
def test_waits_for_a_message_without_the_gil(receiver, queue, plain, timeout):
    other = when_it_waits(receiver, queue.send, plain)
    assert receiver.receive(timeout).counts == [1, -9, 1]
    other.join()
    assert receiver.stats["waits"] == 1


@pytest.mark.parametrize("timeout", [-1, float("nan"), -0.001])
def test_timeout_must_be_a_number_of_seconds(receiver, timeout):
    with pytest.raises(ValueError, match="timeout"):
        receiver.receive(timeout)


def test_iterates_until_it_is_removed(receiver, queue, plain):
    for _ in range(3):
        queue.send(plain)
    other = when_it_waits(receiver, receiver.remove)
    assert [step.batch for step in receiver] == [3, 3, 3]
    other.join()
    assert list(receiver) == []


def test_iteration_says_that_the_receiver_is_closed(receiver, queue, plain):
    queue.send(plain)
    steps = iter(receiver)
    assert next(steps).batch == 3
    receiver.close()
    with pytest.raises(fp.ReceiverClosed, match=r"is closed \(queue"):
        next(steps)
    with pytest.raises(fp.ReceiverClosed):
        receiver.receive(0)


@pytest.mark.parametrize("timeout", [None, 10])
def test_close_wakes_who_waits_and_takes_nothing(receiver, queue, plain, timeout):
    other = when_it_waits(receiver, receiver.close)
    with pytest.raises(fp.ReceiverClosed, match=r"is closed \(queue"):
        receiver.receive(timeout)
    other.join()
    assert receiver.closed
    queue.send(plain)
    with pytest.raises(fp.ReceiverClosed):
        list(receiver)
    assert receiver.stats["messages"] == 0
    assert queue.receive()[0] == plain


@pytest.mark.parametrize("timeout", [None, 10])
def test_queue_removed_while_waiting(receiver, queue, timeout):
    other = when_it_waits(receiver, queue.remove)
    with pytest.raises(fp.QueueRemoved, match=f"queue {receiver.msqid}"):
        receiver.receive(timeout)
    other.join()


def test_queue_removed_before(receiver, queue):
    queue.remove()
    with pytest.raises(fp.QueueRemoved):
        receiver.receive(0)
    with pytest.raises(fp.QueueRemoved):
        next(receiver)
    receiver.remove()  # gone already: no error


@pytest.mark.parametrize("timeout", [None, 10])
def test_a_signal_runs_its_handler_and_the_wait_goes_on(receiver, queue, plain, timeout):
    seen = []

    def handler(*_):
        seen.append(receiver.stats["messages"])
        if len(seen) == 2:
            queue.send(plain)

    with signalled(handler, lambda: receiver.stats["waits"], repeat=True):
        assert receiver.receive(timeout).batch == 3
    assert seen[:2] == [0, 0]


@pytest.mark.parametrize("timeout", [None, 10])
def test_a_handler_that_raises_ends_the_wait(receiver, queue, plain, timeout):
    class Stop(Exception):
        pass

    def handler(*_):
        raise Stop

    with signalled(handler, lambda: receiver.stats["waits"]), pytest.raises(Stop):
        receiver.receive(timeout)
    queue.send(plain)
    assert receiver.receive(0).batch == 3  # nothing lost, nothing stuck


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


def test_one_thread_at_a_time(receiver, queue, plain):
    result = []
    thread = threading.Thread(target=lambda: result.append(receiver.receive()))
    thread.start()
    until(lambda: receiver.stats["waits"])
    with pytest.raises(fp.ReceiverBusy, match="one thread at a time"):
        receiver.receive(0)
    queue.send(plain)
    thread.join(10)
    assert result[0].batch == 3
    queue.send(plain)
    assert receiver.receive(0).batch == 3


def test_a_handler_must_not_use_the_receiver_that_waits(receiver, queue, plain):
    caught = []

    def handler(*_):
        with pytest.raises(fp.ReceiverBusy):
            receiver.receive(0)
        caught.append(1)
        queue.send(plain)

    with signalled(handler, lambda: receiver.stats["waits"]):
        assert receiver.receive().batch == 3
    assert caught


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


def test_a_queue_is_made_private_and_survives_its_receiver(queue_key, plain):
    with fp.Receiver("plain", key=queue_key) as receiver:
        info = queues.inspect_queue(receiver.msqid)
        assert (info.mode, info.key, info.owner) == (0o600, queue_key, os.geteuid())
        sysv_ipc.MessageQueue(queue_key).send(plain)
    with fp.Receiver("plain", key=queue_key) as receiver:
        assert receiver.receive(0).batch == 3


def test_mode_can_be_asked_for(queue_key):
    with fp.Receiver("plain", key=queue_key, mode=0o666) as receiver:
        assert queues.inspect_queue(receiver.msqid).mode == 0o666


def test_an_open_queue_is_reported_once(queue_key, caplog):
    sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=0o666)
    for _ in range(2):
        fp.Receiver("plain", key=queue_key).close()
    reports = [record.getMessage() for record in caplog.records if "mode 0666" in record.getMessage()]
    assert len(reports) == 1


def test_no_permission(receiver):
    done = as_nobody(f"fp.Receiver('plain', key={receiver.key})")
    assert "fd_postproc.errors.QueuePermission" in done.stderr
    assert "run both sides as the same user" in done.stderr


def test_no_permission_to_remove(queue_key):
    sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREX, mode=0o666)
    done = as_nobody(f"fp.Receiver('plain', key={queue_key}).remove()")
    assert "fd_postproc.errors.QueuePermission" in done.stderr
    assert "belongs to user 0, not to this process's user 65534" in done.stderr


def test_permission_taken_away_while_open(queue_key):
    """The kernel is asked at every receive, not only when the queue is opened."""
    script = (
        f"import sysv_ipc; r = fp.Receiver('plain', key={queue_key})\n"
        f"q = sysv_ipc.MessageQueue({queue_key}); q.mode = 0o200\n"
        "try:\n r.receive(0)\nexcept fp.QueuePermission as e: print('refused', e.errno)\nr.remove()"
    )
    assert as_nobody(script).stdout == "refused 13\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"channel": "speck"}, "channel 'speck' is not one of"),
        ({"channel": None}, "channel None"),
        ({"channel": "plain", "key": 0}, "key 0"),
        ({"channel": "plain", "key": 1 << 32}, "key = 4294967296"),
        ({"channel": "plain", "key": 5, "queue_id": 5}, "not both"),
        ({"channel": "plain", "queue_id": 1, "ftok": "mine"}, "ftok 'mine'"),
        ({"channel": "plain", "queue_id": 1 << 40}, "queue_id = 1099511627776 is outside"),
    ],
)
def test_bad_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        fp.Receiver(**arguments)


def test_layout_must_be_a_layout(queue_key):
    with pytest.raises(TypeError, match="layout must be a Layout, not tuple"):
        fp.Receiver("plain", key=queue_key, layout=(512, 20, 6, 256))


def test_is_initialised_once(receiver):
    with pytest.raises(RuntimeError):
        receiver.__init__("plain", key=receiver.key)
    half = fp.Receiver.__new__(fp.Receiver)
    with pytest.raises(ValueError, match="closed"):
        half.receive(0)


def test_repr_says_what_it_is(receiver):
    where = f"queue {receiver.msqid}, key {queues.key_text(receiver.key)}"
    assert repr(receiver) == f"<Receiver plain: {where}, 0 received, 0 waiting>"
    receiver.close()
    assert repr(receiver).startswith("<Receiver plain closed: ")
    assert receiver.layout is fp.GPU

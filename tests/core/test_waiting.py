"""Receiver and Sender alike: waiting, being woken, and every way in which a wait or an end can end."""

import time

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from tests.lib.other_user import as_nobody
from tests.lib.rows import each
from tests.lib.sending import fill
from tests.lib.waiting import PATIENCE, signalled, when

STEP = fp.Step.from_arrays("plain", [1, -9, 1], [11, 13])


class Receiving:
    """A Receiver whose queue is empty."""

    kind, busy, closed = fp.Receiver, fp.ReceiverBusy, fp.ReceiverClosed

    def __init__(self, key):
        self.queue = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=8192)
        self.end = fp.Receiver("plain", key=key)
        self.waits_before = 0

    def call(self, timeout):
        step = self.end.receive(timeout)
        if step is None:
            raise fp.QueueTimeout(0, "nothing came")
        assert step == STEP

    def wake(self):
        self.queue.send(fp.encode(STEP))

    def waits(self):
        return self.end.stats["waits"]

    def passed(self):
        return self.end.stats["messages"]


class Sending:
    """A Sender whose queue is full."""

    kind, busy, closed = fp.Sender, fp.SenderBusy, fp.SenderClosed

    def __init__(self, key):
        self.queue = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=0o600, max_message_size=8192)
        self.queue.max_size = min(self.queue.max_size, 16384)
        self.end = fp.Sender("plain", key=key)
        assert fill(self.end, STEP) == self.queue.current_messages == self.passed() > 100
        self.waits_before = self.end.stats["waits"]

    def call(self, timeout):
        self.end.send(STEP, timeout)

    def wake(self):
        self.queue.receive()

    def waits(self):
        return self.end.waiting_seconds

    def passed(self):
        return self.end.stats["frames"]


ENDS = each("side", [Receiving, Sending])
TIMEOUTS = each("timeout", [None, 20])


@pytest.mark.realtime
@ENDS
def test_a_timeout(side, queue_keys):
    one = side(queue_keys())
    passed = one.passed()
    with pytest.raises(fp.QueueTimeout):
        one.call(0)
    for repeated in False, True:  # signals do not make it longer
        began = time.monotonic()
        with signalled(lambda *_: None, lambda: True, repeated), pytest.raises(fp.QueueTimeout) as caught:
            one.call(0.2)
        assert 0.2 <= time.monotonic() - began < PATIENCE
    assert side is Receiving or f"queue msqid:{one.queue.id}" in str(caught.value)
    assert one.end.stats["waits"] > one.waits_before
    assert one.end.stats["wait_seconds"] >= 0.2  # what passes between two waits is not counted
    assert one.passed() == passed
    one.wake()
    one.call(0)
    assert one.passed() == passed + 1


@pytest.mark.realtime
@ENDS
@TIMEOUTS
def test_waits_without_the_gil(side, timeout, queue_keys):
    one = side(queue_keys())
    other = when(one.waits, one.wake)  # needs the GIL meanwhile
    one.call(timeout)
    other.join()
    assert one.end.stats["waits"] == one.waits_before + 1


@pytest.mark.realtime
@ENDS
@TIMEOUTS
def test_a_queue_removed_while_waiting(side, timeout, queue_keys):
    one = side(queue_keys())
    other = when(one.waits, one.queue.remove)
    with pytest.raises(fp.QueueRemoved, match=f"queue msqid:{one.end.msqid}"):
        one.call(timeout)
    other.join()
    for _ in range(2):
        with pytest.raises(fp.QueueRemoved):
            one.call(0)


@pytest.mark.realtime
@ENDS
@TIMEOUTS
def test_a_signal_runs_its_handler_and_the_wait_goes_on(side, timeout, queue_keys):
    one, seen = side(queue_keys()), []
    passed = one.passed()

    def handler(*_):
        seen.append(one.passed())
        if len(seen) == 3:
            one.wake()

    with signalled(handler, one.waits, repeat=True):
        one.call(timeout)
    assert seen[:3] == [passed] * 3


@pytest.mark.realtime
@ENDS
@TIMEOUTS
def test_a_handler_that_raises_ends_the_wait(side, timeout, queue_keys):
    class Stop(Exception):
        pass

    def handler(*_):
        with pytest.raises(one.busy, match="one thread at a time"):  # it must not use what waits
            one.call(0)
        raise Stop

    one = side(queue_keys())
    passed = one.passed()
    with signalled(handler, one.waits), pytest.raises(Stop):
        one.call(timeout)
    assert one.passed() == passed
    one.wake()
    one.call(0)  # nothing lost, nothing stuck


@ENDS
def test_an_end_that_is_closed_or_was_never_begun(side, queue_keys):
    one = side(queue_keys())
    with pytest.raises(RuntimeError):
        one.end.__init__("plain", key=one.queue.key)
    for timeout in -1, float("nan"), -0.001:
        with pytest.raises(ValueError, match="timeout"):
            one.call(timeout)
    waiting = one.queue.current_messages
    one.wake()
    one.end.close()
    with pytest.raises(one.closed, match=r"is closed \(queue"):
        one.call(0)
    assert "closed" in repr(one.end)
    assert one.queue.current_messages == waiting + (1 if side is Receiving else -1)
    one.end = side.kind.__new__(side.kind)
    with pytest.raises(ValueError, match="closed"):
        one.call(0)


@ENDS
@each(
    "arguments, text",
    [
        ({"channel": "speck"}, "channel 'speck' is not one of"),
        ({"channel": None}, "channel None"),
        ({"key": 0}, "key 0"),
        ({"key": 1 << 32}, "key = 4294967296 is outside -2147483648..4294967295; keys have 32 bits"),
        ({"key": 10**5000}, "key = a number of 16610 bits is outside"),
        ({"key": 5, "queue_id": 5}, "not both"),
        ({"queue_id": 1, "ftok": "mine"}, "ftok 'mine'"),
        ({"queue_id": 1 << 40}, "queue_id = 1099511627776 is outside"),
        ({"queue_id": 7, "path": "a\0b"}, "path 'a.x00b' holds a NUL character"),
        ({"key": 5, "mode": 666}, r"mode 666 \(0o1232; did you mean 0o666\?\)"),
        ({"key": 5, "mode": 640}, r"did you mean 0o640"),
        *(({"key": 5, "mode": mode}, f"mode {mode:#o}") for mode in (0o1777, 0o777, 0o066, 0, 0o400)),
        ({"key": 5, "mode": -1}, "mode -1"),
        ({"key": 5, "mode": 1 << 80}, "mode = 1208925819614629174706176 is outside"),
        ({"key": 5, "mode": "600"}, "mode must be a whole number"),
        ({"queue_id": 7, "path": "a\ud800"}, r"path 'a.ud800' cannot be a file's name"),
        ({"queue_id": 7, "path": 0}, r"path must be a str or an os\.PathLike, not 0"),
        ({"key": 5, "layout": (512, 20, 6, 256)}, "layout must be a Layout, not tuple; GPU and XPU"),
    ],
)
def test_bad_arguments(side, arguments, text):
    """Before a queue is made or looked for."""
    with pytest.raises((TypeError, ValueError), match=text):
        side.kind(**{"channel": "plain", **arguments})
    assert 5 not in {queue.key for queue in queues.list_queues()}


@ENDS
def test_a_bad_variable_leaves_no_queue(side, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_CHECKSUM", "maybe")
    with pytest.raises(ValueError, match="FD_POSTPROC_CHECKSUM='maybe'"):
        side.kind("plain", key=5)
    assert 5 not in {queue.key for queue in queues.list_queues()}


@ENDS
@each("mode, expected", [(None, 0o600), (0o600, 0o600), (0o640, 0o640), (0o622, 0o622), (0o666, 0o666)])
def test_permission_bits_of_a_new_queue(side, mode, expected, queue_keys):
    key = queue_keys()
    with side.kind("plain", key=key, **({} if mode is None else {"mode": mode})) as end:
        info = queues.inspect_queue(end.msqid)
        assert (info.mode, info.key, end.key) == (expected, key, key)


OTHERS = """
import sysv_ipc
step = fp.decode(bytes(8), "plain")
def attempt(what, call):
    try:
        call()
    except fp.QueuePermission as error:
        print(what, error.errno, error)
for kind, own in (fp.Receiver, {own}), (fp.Sender, {other}):
    attempt("open", lambda: kind("plain", key={private}))
    receiver = fp.Receiver("plain", key={shared})
    attempt("remove", receiver.remove)
    end = kind("plain", key=own)
    sysv_ipc.MessageQueue(own).mode = 0
    attempt("use", lambda: end.receive(0) if kind is fp.Receiver else end.send(step, 1))
"""


def test_no_permission(queue_keys):
    """The kernel is asked at every receive and send, not only when the queue is opened."""
    private, shared, own, other = (queue_keys() for _ in range(4))
    for key, mode in (private, 0o600), (shared, 0o666):
        sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=mode)
    done = as_nobody(OTHERS.format(private=private, shared=shared, own=own, other=other))
    told = done.stdout.splitlines()
    assert [" ".join(line.split()[:2]) for line in told] == ["open 13", "remove 1", "use 13"] * 2
    assert all("run both sides as the same user" in line for line in told[::3])

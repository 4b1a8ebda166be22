"""All strangers of the table in docs/security.md at once, beside honest senders, at ipc and at tcp."""

import contextlib
import itertools
import os
import threading
import time

import pytest

import fd_postproc as fp
from fd_postproc.transport import inlet, plain_inlet
from tests.lib.roads import Road, numbered, token
from tests.lib.strangers import GREETING, NOT_LATER_S, PING, READY, Flood, connected, greeted, message
from tests.lib.waiting import signalled
from tests.transport.test_strangers import resident

MOST = 64  # connections, so that there is a crowd
STEP = fp.encode(numbered(5), "compact")
STAYS = {
    "parts that never end": message(b"x", more=True) * 1000,
    "messages that are no frames": message(b"x") * 1000,
    "the same from another connection": message(b"y") * 1000,
    "messages that are too long": message(bytes(2 << 20)),
    "numbers at the end of their range": message(STEP[:8] + b"\xff" * 8 + STEP[16:]) * 20
    + message(STEP[:48] + b"\xff" * 8 + STEP[56:]) * 20,
    "pieces of frames": message(STEP[:56] + bytes((0, 0, 2, 0)) + STEP[60:65]) * 200,
    "commands": b"\x04\x00" * 1000,
    "beginnings of a large message": b"\x02" + (1 << 20).to_bytes(8, "big") + bytes((1 << 20) - 1),
}
LEAVES = {
    "a ping behind much, and a hang-up": (GREETING, READY, message(b"x") * 50, PING),
    "no ZeroMQ": (b"GET / HTTP/1.1\r\n\r\n" * 10,),
    "another mechanism": (GREETING.replace(b"NULL", b"CURV"),),
    "half a greeting": (b"\xff",),
    "an endless command": (GREETING, b"\x06" + b"\xff" * 8),
    "half a frame": (GREETING, READY, message(STEP)[:40]),
}


class Crowd:
    """Strangers who do all of that, as often as `act` is called; the last of those who leave stay a while."""

    def __init__(self, address):
        self.address = address
        self.came, self.left = 0, []
        self.floods = [Flood(greeted(address), data) for data in STAYS.values()]
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        said = itertools.cycle(LEAVES.values())
        while not self.over.wait(0.01):
            for flood in self.floods:
                flood.pour()
            with contextlib.suppress(OSError):
                self.left.append(connected(self.address, *next(said)))
                self.came += 1
            if len(self.left) > MOST:
                self.left.pop(0).close()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        for one in (*self.left, *(flood.one for flood in self.floods)):
            one.close()


@pytest.fixture(params=["ipc", "tcp"])
def road(request, queue_keys, monkeypatch):
    monkeypatch.setattr(plain_inlet, "_MOST_PEERS", MOST)
    monkeypatch.setattr(plain_inlet, "_ROOM", 8 << 20)
    road = Road(request.param, queue_keys)
    yield road
    road.close()


def looked(receiver, timeout):
    """A step's token, if one has come; how much of its thread's time the call took is bounded."""
    before = time.thread_time()
    found = None
    with contextlib.suppress(fp.MalformedMessage):
        if (step := receiver.receive(timeout)) is not None:
            found = token(step)
    assert time.thread_time() - before < timeout + NOT_LATER_S
    return found


def connections(receiver):
    (one,) = (end for end in inlet._alive if end.address == receiver.address and not end._over)
    return len(one._peers)


def test_honest_senders_lose_nothing(road):
    """None that was there before, none that comes in the middle; each look is over in time."""
    receiver = road.receiver()
    senders = [road.sender(linger=60) for _ in range(3)]
    own = [[1000 * (k + 1) + n for n in range(40)] for k in range(3)]
    to_send = [iter(tokens) for tokens in own]
    came = {token: 0 for tokens in own for token in tokens}
    for sender, tokens in zip(senders, to_send, strict=True):
        sender.send(numbered(next(tokens)), 60)
    with Crowd(receiver.address) as crowd:
        for n in range(100_000):
            if n % 3 == 0:
                for sender, tokens in zip(senders, to_send, strict=True):
                    for one in itertools.islice(tokens, 1):
                        sender.send(numbered(one), 60)
            if n == 60:
                senders.append(road.sender(linger=60))
                own.append([9000 + k for k in range(20)])
                to_send.append(iter(own[-1]))
                came |= dict.fromkeys(own[-1], 0)
            if (found := looked(receiver, 0.05)) in came:
                came[found] += 1
            assert connections(receiver) <= MOST
            if n > 60 and all(came.values()) and crowd.came > MOST:
                break
    assert list(came.values()) == [1] * 140
    assert receiver.stats["malformed"] > 100
    assert receiver.stats["oversized"] > 0


@pytest.mark.resident_memory  # a sanitizer build needs far more
def test_memory_and_descriptors_stay(road):
    receiver = road.receiver()
    with Crowd(receiver.address) as crowd:
        while crowd.came < 20:
            looked(receiver, 0.05)
        before, descriptors = resident(), len(os.listdir("/proc/self/fd"))
        while crowd.came < 2 * MOST:
            looked(receiver, 0.05)
        assert resident() - before < 64 << 20
        assert len(os.listdir("/proc/self/fd")) - descriptors < 4 * MOST


def test_ctrl_c_and_close_end_it(road):
    """Pieces alone are no step and no error: `receive` does not return while they come."""
    receiver = road.receiver()
    flood = Flood(greeted(receiver.address), STAYS["pieces of frames"])
    over = threading.Event()

    def pour():
        while not over.wait(0.001):
            flood.pour()

    def interrupt(*_):
        raise KeyboardInterrupt

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            signalled(interrupt, lambda: receiver.stats["messages"] > 100),
        ):
            receiver.receive()
        threading.Timer(0.1, receiver.close).start()
        with pytest.raises(fp.ReceiverClosed):
            receiver.receive()
    finally:
        over.set()
        thread.join()
        flood.one.close()

"""What an address answers to a peer that speaks the protocol by hand: docs/wire-protocol.md, section 14."""

import struct

import pytest
import zmq

import fd_postproc as fp

FRAME, SYNC, FAREWELL = 1, 2, 3
TAKEN, HELLO, RESEND, LAST = 1, 2, 3, 4
MAGIC = int.from_bytes(b"FDZQ", "little")


class Peer:
    """A DEALER socket that knows the words."""

    def __init__(self, context, address):
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(address)

    def say(self, kind, number, base=0, payload=b"", session=77, version=1):
        head = struct.pack("<IBBHQQQ", MAGIC, version, kind, 0, session, number, base)
        self.socket.send(head + payload)

    def frame(self, number, token, base=0, session=77):
        step = fp.Step.from_arrays("plain", [1], [token])
        self.say(FRAME, number, base, fp.encode(step, "compact"), session)

    def heard(self, wait=5.0):
        """What the receiver said next: kind, session, number; None for silence that long (seconds)."""
        if not self.socket.poll(1000 * wait):
            return None
        magic, version, kind, zero, session, number = struct.unpack("<IBBHQQ", self.socket.recv())
        assert (magic, version, zero) == (MAGIC, 1, 0)
        return kind, session, number


@pytest.fixture
def receiver(tmp_path):
    with fp.Receiver("plain", address=f"ipc://{tmp_path}/road") as receiver:
        yield receiver


@pytest.fixture
def peer(receiver):
    with zmq.Context() as context:
        peer = Peer(context, receiver.address)
        yield peer
        peer.socket.close()


def answer(receiver, peer):
    """What a receiver says to something that is no step."""
    for _ in range(50):
        assert receiver.receive(0.1) is None
        if (said := peer.heard(0.02)) is not None:
            return said
    raise AssertionError("no answer in 5 s")


def tokens(receiver, count):
    return [receiver.receive(5).token_ids(0)[0] for _ in range(count)]


def test_each_number_is_taken_once_and_in_order(receiver, peer):
    for number in (0, 0, 1, 3, 1, 4, 2):
        peer.frame(number, 100 + number)
    assert tokens(receiver, 3) == [100, 101, 102]  # 3 and 4 came before their turn: they will come again
    assert receiver.receive(0.1) is None
    assert peer.heard()[0] == TAKEN
    peer.frame(3, 103)
    assert tokens(receiver, 1) == [103]
    while (said := peer.heard()) != (TAKEN, 77, 4):
        assert said is not None


def test_a_new_receiver_begins_where_the_sender_does(receiver, peer):
    peer.frame(9, 9, base=7)
    assert receiver.receive(0.1) is None
    peer.say(SYNC, 10, 7)
    assert answer(receiver, peer) == (RESEND, 77, 7)
    for number in (7, 8, 9):
        peer.frame(number, number, base=7)
    assert tokens(receiver, 3) == [7, 8, 9]


def test_the_greeting(receiver, peer):
    peer.socket.send(b"")
    assert answer(receiver, peer) == (HELLO, 0, 0)
    peer.say(SYNC, 0)
    assert answer(receiver, peer) == (RESEND, 77, 0)


def test_what_was_taken_is_told_again_to_who_does_not_know(receiver, peer):
    peer.frame(0, 5)
    assert tokens(receiver, 1) == [5]
    assert peer.heard() == (TAKEN, 77, 1)
    peer.frame(0, 5)
    peer.frame(1, 6)
    assert tokens(receiver, 1) == [6]
    assert peer.heard() == (TAKEN, 77, 2)


def test_nothing_is_acknowledged_that_was_not_handed_out(receiver, peer):
    for number in range(3):
        peer.frame(number, number)
    assert tokens(receiver, 1) == [0]
    while (said := peer.heard(0.3)) is not None:
        assert said[2] <= 1
    receiver.close()
    peer.say(FAREWELL, 3)


def test_the_last_words(receiver, peer):
    for number in range(3):
        peer.frame(number, number)
    assert tokens(receiver, 2) == [0, 1]
    receiver.close()
    while (said := peer.heard())[0] != LAST:
        assert said[0] == TAKEN
    assert said == (LAST, 77, 2)


def test_sessions_do_not_mix(receiver, peer):
    for number in range(3):
        peer.frame(number, number, session=1)
        peer.frame(number, 10 + number, session=2)
    assert tokens(receiver, 6) == [0, 10, 1, 11, 2, 12]


@pytest.mark.parametrize("change", [{"kind": 9}, {"kind": 0}, {"version": 2}])
def test_words_that_nobody_knows_are_no_frames(receiver, peer, change):
    peer.say(**{"kind": FRAME, "number": 0, "payload": b"x" * 80} | change)
    with pytest.raises(fp.MalformedMessage):
        receiver.receive(5)
    assert receiver.stats["malformed"] == 1
    peer.frame(0, 1)
    assert tokens(receiver, 1) == [1]


def test_a_frame_without_an_envelope_is_taken_too(receiver, peer):
    peer.socket.send(fp.encode(fp.Step.from_arrays("plain", [1], [8]), "compact"))
    assert tokens(receiver, 1) == [8]
    assert peer.heard(0.3) is None

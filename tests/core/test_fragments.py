"""Frames in pieces: cut by the reference, sent by an independent library, put together by the Receiver.

Every message is given to the reference's Reassembler too: steps, errors and counters must agree after each.
"""

import random
import time
from dataclasses import replace

import pytest
import sysv_ipc
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from tests import reference
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.search import examples
from tests.reference import FrameHeader, Reassembler, ReferenceStep

SMALL = fp.Layout(max_batch=7, top_k=3, max_draft=2, spec_batch=5)


class Line:
    """A queue, its Receiver, and the oracle beside it."""

    def __init__(self, channel, key, layout=fp.GPU):
        self.channel, self.layout, self.key = channel, layout, key
        self.queue = sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREAT, max_message_size=8192)
        self.restart()

    def restart(self):
        self.receiver = fp.Receiver(self.channel, key=self.key, layout=self.layout)
        self.oracle = Reassembler(self.channel, self.layout)
        self.refused = 0

    def push(self, *messages):
        """Send messages one by one; the steps (or errors) that came of them."""
        outcomes = []
        for message in messages:
            self.queue.send(message, type=2)
            got = self._outcome(lambda: self.receiver.receive(0))
            expected = self._outcome(lambda message=message: self.oracle.add(message, time.monotonic()))
            assert got == expected, FrameHeader.unpack(message)
            self.refused += isinstance(got, str)
            stats = self.receiver.stats
            assert stats["fragments"] == self.oracle.fragments
            assert stats["incomplete"] == self.oracle.incomplete
            assert stats["malformed"] == self.refused
            for name in ("missing", "doubled", "reordered"):
                assert stats[name] == getattr(self.oracle.sequences, name)
            assert self.receiver.senders == self.oracle.sequences.senders
            if got is not None:
                outcomes.append(got)
        return outcomes

    @staticmethod
    def _outcome(attempt):
        try:
            step = attempt()
        except fp.MalformedMessage as error:
            return str(error)
        return ReferenceStep.from_step(step) if isinstance(step, fp.Step) else step

    @property
    def incomplete(self):
        return self.receiver.stats["incomplete"]


@pytest.fixture
def line(queue_key):
    return Line("spec_topk", queue_key, SMALL)


class Frame:
    """A step of a sender, and its fragments."""

    def __init__(self, sender, seq=0, pieces=4, channel="spec_topk", **header):
        step = ReferenceStep.from_step(
            random_step(channel, 100 * sender + seq, batch=6, cols=4, accepted=2, layout=SMALL)
        )
        whole = reference.encode_frame(step, sender=sender, seq=seq)
        whole = reference.seal(FrameHeader.unpack(whole)._replace(**header).pack() + whole[64:])
        self.step = replace(step, dialect="compact", seq=seq)
        self.whole = whole
        self.parts = reference.split(whole, 64 + -(-(len(whole) - 64) // pieces))
        assert len(self.parts) == pieces


def changed(part, **fields):
    return FrameHeader.unpack(part)._replace(**fields).pack() + part[64:]


def test_in_order(line):
    for pieces in (2, 3, 7, 57):
        frame = Frame(1, pieces, pieces)
        assert line.push(*frame.parts) == [frame.step]
    assert line.push(Frame(1, 200).whole) == [Frame(1, 200).step]
    assert line.incomplete == 0


@each("limit", [65, 66, 67, 68, 69, 100, 1000])
def test_pieces_of_any_length(line, limit):
    frame = Frame(3)
    assert line.push(*reference.split(frame.whole, limit)) == [frame.step]


def test_eight_senders_in_turn(line):
    frames = [Frame(sender) for sender in range(8)]
    got = [step for turn in zip(*(frame.parts for frame in frames), strict=True) for step in line.push(*turn)]
    assert got == [frame.step for frame in frames]
    assert line.incomplete == 0


@each("size", [64, 72, 8192])
def test_beginnings_of_strangers_cost_nobody_else_a_frame(queue_key, size):
    """Thousands between two pieces, in the room that the Receiver really has; no oracle, which is slow."""
    receiver = fp.Receiver("spec_topk", key=queue_key)
    queue = sysv_ipc.MessageQueue(queue_key, max_message_size=8192)
    junk = big_beginning(0)[:size]
    step = random_step("spec_topk", 7, batch=256, cols=21, accepted=2)
    whole = reference.encode_frame(ReferenceStep.from_step(step), sender=1)
    got, first = [], 1000
    for seq in range(3):
        whole = reference.seal(FrameHeader.unpack(whole)._replace(seq=seq).pack() + whole[64:])
        for part in reference.split(whole, 8192):
            queue.send(part, type=2)
            got.append(receiver.receive(0))
            last = first + (3000 if size < 8192 and seq == 1 else 40)
            for sender in range(first, last):
                queue.send(changed(junk, sender=sender), type=2)
                assert receiver.receive(0) is None
            first = last
    assert [one for one in got if one is not None] == [step] * 3


@each("missing", range(4))
def test_a_missing_piece_costs_its_frame(line, missing):
    frame, after = Frame(1, 0), Frame(1, 1)
    parts = frame.parts[:missing] + frame.parts[missing + 1 :]
    assert line.push(*parts, *after.parts) == [after.step]
    assert line.incomplete == 1


@each("doubled", range(3))
def test_a_doubled_piece_costs_its_frame(line, doubled):
    frame, after = Frame(1, 0), Frame(1, 1)
    parts = frame.parts[: doubled + 1] + frame.parts[doubled:]
    got = line.push(*parts, *after.parts)
    # The first piece again is the beginning of a frame again.
    assert got == ([frame.step] if doubled == 0 else []) + [after.step]
    assert line.incomplete == 1


@each("place", range(3))
def test_swapped_pieces_cost_their_frame(line, place):
    frame, after = Frame(1, 0), Frame(1, 1)
    parts = list(frame.parts)
    parts[place : place + 2] = parts[place + 1], parts[place]
    assert line.push(*parts, *after.parts) == [after.step]
    assert line.incomplete >= 1


@each(
    "fields",
    [
        {"seq": 77},
        {"fragments": 5},
        {"flag": 0},
        {"stop_flag": 77},
        {"fragment": 3},
    ],
)
def test_a_piece_with_another_header(line, fields):
    frame, after = Frame(1, 0), Frame(1, 1)
    parts = [*frame.parts[:2], changed(frame.parts[2], **fields), frame.parts[3]]
    assert line.push(*parts, *after.parts) == [after.step]
    assert line.incomplete >= 1


@each("fields", [{"batch": 7}, {"cols": 3}, {"rows": 13}, {"total": 700}, {"magic": 5}, {"flag": 77}])
def test_a_piece_whose_header_does_not_add_up(line, fields):
    frame, after = Frame(1, 0), Frame(1, 1)
    parts = [*frame.parts[:2], changed(frame.parts[2], **fields), frame.parts[3]]
    outcomes = line.push(*parts, *after.parts)
    assert len(outcomes) == 2
    assert outcomes[0].startswith("malformed spec_topk message")
    assert outcomes[1] == after.step
    assert line.incomplete == 1


def test_a_frame_of_another_geometry_with_the_same_number(line):
    """Both headers add up, but they are not of one frame."""
    frame = Frame(1, 0)
    other = ReferenceStep.from_step(random_step("spec_topk", 9, batch=7, cols=3, accepted=2, layout=SMALL))
    parts = reference.split(reference.encode_frame(other, sender=1, seq=0), len(frame.parts[0]))
    assert line.push(*frame.parts[:2], *parts[2:]) == []
    assert line.incomplete == 1


@each("by", [-1, 1, 8])
def test_a_piece_that_is_too_short_or_too_long(line, by):
    for place in range(4):
        frame, after = Frame(1, 2 * place), Frame(1, 2 * place + 1)
        part = frame.parts[place]
        frame.parts[place] = part[:by] if by < 0 else part + bytes(by)
        assert line.push(*frame.parts, *after.parts) == [after.step]
    assert line.incomplete == 4


def test_a_first_piece_that_is_longer_than_its_frame(line):
    frame = Frame(1, 0, 2)
    length = len(frame.whole) + 1
    (error,) = line.push((frame.parts[0] + bytes(length))[:length])
    assert str(length) in error
    assert line.push(*Frame(1, 1).parts) == [Frame(1, 1).step]


def test_the_same_sender_begins_another_frame(line):
    first, second = Frame(1, 0), Frame(1, 1)
    assert line.push(*first.parts[:2], *second.parts) == [second.step]
    assert line.incomplete == 1
    assert line.push(*first.parts[2:]) == []
    assert line.push(*first.parts[:2], Frame(1, 2).whole) == [Frame(1, 2).step]


def test_a_dead_sender_costs_its_frame_only(line):
    dead, alive = Frame(1), [Frame(2, seq) for seq in range(5)]
    line.push(*dead.parts[:3])
    for frame in alive:
        assert line.push(*frame.parts) == [frame.step]
    assert line.incomplete == 0  # it may be slow, for all one knows
    assert line.push(dead.parts[3]) == [dead.step]


def test_pieces_without_a_beginning(line):
    """A receiver that comes late: what it saw no beginning of is skipped, and counts once a frame."""
    frame = Frame(1, 0, 6)
    line.push(*frame.parts[:2])
    line.receiver.close()
    line.restart()
    assert line.push(*frame.parts[2:]) == []
    assert line.incomplete == 1
    assert line.push(*Frame(1, 1).parts) == [Frame(1, 1).step]
    assert line.push(*Frame(1, 2).parts[1:]) == []
    assert line.incomplete == 2


def test_pieces_without_a_beginning_from_many_senders(line):
    frames = [Frame(sender, 0, 6) for sender in range(12)]
    for part in range(1, 6):
        line.push(*(frame.parts[part] for frame in frames))
    assert line.incomplete == 12


def test_an_interrupted_frame_between_stock_messages(line):
    frame, stock = Frame(1), random_step("spec_topk", 1, batch=1, cols=1, layout=SMALL)
    for part in frame.parts[:-1]:
        assert line.push(part) == []
        line.queue.send(fp.encode(stock, layout=SMALL), type=1)
        assert line.receiver.receive(0) == stock
    assert line.push(frame.parts[-1]) == [frame.step]


def test_the_pieces_add_up_but_the_body_does_not(line):
    frame = Frame(1)
    body = bytearray(b"".join(part[64:] for part in frame.parts))
    body[0:4] = (1).to_bytes(4, "little")  # one row fewer than the header says
    whole = reference.seal(frame.whole[:64] + bytes(body))
    (error,) = line.push(*reference.split(whole, len(frame.parts[0])))
    assert "rows" in error
    assert line.incomplete == 0
    assert line.push(*Frame(1, 1).parts) == [Frame(1, 1).step]


@pytest.mark.nightly
def test_a_frame_that_was_silent_for_a_minute_is_given_up(line):
    line.push(Frame(1).parts[0])
    time.sleep(2)
    line.push(Frame(2).parts[0])
    assert line.incomplete == 0
    time.sleep(58.5)
    assert line.push(*Frame(3).parts) == [Frame(3).step]
    assert line.incomplete == 1
    assert line.push(*Frame(2).parts[1:]) == [Frame(2).step]


ACCIDENTS = st.sampled_from(["none"] * 6 + ["drop", "double", "swap", "cut", "header"])


@examples(80)
@given(seed=st.integers(0, 1 << 32), senders=st.integers(1, 12), accident=ACCIDENTS)
def test_random_traffic(seed, senders, accident):
    """Fragments of several senders in random turns, with accidents.  Each frame comes whole or not at all."""
    rng = random.Random(seed)
    lines, frames = [], {}
    for sender in range(senders):
        stream = []
        for seq in range(rng.randrange(1, 4)):
            frame = Frame(sender, seq, rng.choice([2, 3, 5]))
            frames[sender, seq] = frame
            parts = [frame.whole] if rng.random() < 0.2 else list(frame.parts)
            where = rng.randrange(len(parts))
            if accident == "drop" and rng.random() < 0.5:
                del parts[where]
            elif accident == "double" and rng.random() < 0.5:
                parts.insert(where, parts[where])
            elif accident == "swap" and where and rng.random() < 0.5:
                parts[where - 1 : where + 1] = parts[where], parts[where - 1]
            elif accident == "cut" and rng.random() < 0.5:
                parts[where] = parts[where][: rng.randrange(50, len(parts[where]))]
            elif accident == "header" and rng.random() < 0.5:
                damaged = bytearray(parts[where])
                damaged[rng.randrange(64)] ^= 1 << rng.randrange(8)
                parts[where] = bytes(damaged)
            stream += parts
        lines.append(stream)
    key = rng.randrange(1 << 20, 1 << 31)
    line = Line("spec_topk", key, SMALL)
    try:
        turns = [message for stream in lines for message in [stream]]
        while any(turns):
            stream = rng.choice([stream for stream in turns if stream])
            for step in line.push(stream.pop(0)):
                if isinstance(step, ReferenceStep) and accident != "header":
                    assert any(step == frame.step for frame in frames.values())
    finally:
        line.queue.remove()


# ---- Memory ----------------------------------------------------------------------------------------------


def address_space_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * 4


def big_beginning(sender):
    """The first piece, nearly empty, of the largest frame that the layout allows."""
    step = ReferenceStep.from_step(random_step("spec_topk", 1, batch=512, cols=21, accepted=6))
    return reference.split(reference.encode_frame(step, sender=sender), 8192)[0]


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def test_open_frames_are_counted_until_they_are_whole(queue_key):
    receiver = fp.Receiver("spec_topk", key=queue_key)
    queue = sysv_ipc.MessageQueue(queue_key, max_message_size=8192)
    step = random_step("spec_topk", 7, batch=3, cols=3, accepted=2)
    pieces = reference.split(reference.encode_frame(ReferenceStep.from_step(step)), 200)
    for number, piece in enumerate(pieces, 1):
        queue.send(piece, type=2)
        got = receiver.receive(0)
        assert receiver._open_frames == (int(number < len(pieces)), number)
    assert got == step


@pytest.mark.resident_memory
@each("size", [64, 300, 8192])
def test_open_frames_of_strangers_take_no_more_than_their_room(queue_key, size):
    receiver = fp.Receiver("spec_topk", key=queue_key)
    queue = sysv_ipc.MessageQueue(queue_key, max_message_size=8192)
    first = big_beginning(0)[:size]
    before = resident_kib()
    for sender in range(9000):  # 70 MB if those of 8192 bytes were all kept, 4.8 GB of what they claim
        queue.send(changed(first, sender=sender), type=2)
        assert receiver.receive(0) is None
    assert resident_kib() - before < 3 << 10  # with half as much again while they grow
    assert 9000 - 6500 <= receiver.stats["incomplete"] < 9000


@pytest.mark.resident_memory
def test_known_senders_have_room_for_eight_times_the_strangers(queue_key):
    """In the room that the Receiver really has; of what is claimed, only what comes is touched."""
    receiver = fp.Receiver("spec_topk", key=queue_key)
    queue = sysv_ipc.MessageQueue(queue_key, max_message_size=8192)
    first = big_beginning(0)
    step = random_step("spec_topk", 7, batch=3, cols=3, accepted=2)
    longest = FrameHeader.unpack(first).total + 192
    most = 8 * (longest + (1 << 20)) // longest  # the room is for sections, too
    assert 20 < most < 40
    for sender in range(most + 12):
        frame = reference.encode_frame(ReferenceStep.from_step(step), sender=sender)
        for part in reference.split(frame, 200):
            queue.send(part, type=2)
            got = receiver.receive(0)
        assert got == step
    before = resident_kib()
    for sender in range(most + 12):
        queue.send(changed(first, sender=sender, seq=1), type=2)
        assert receiver.receive(0) is None
        assert receiver.stats["incomplete"] == max(0, sender + 1 - most)
    assert resident_kib() - before < 1 << 10


@pytest.mark.resident_memory
def test_receivers_free_their_open_frames(queue_key):
    first = big_beginning(0)
    queue = sysv_ipc.MessageQueue(queue_key, sysv_ipc.IPC_CREAT, max_message_size=8192)
    before = address_space_kib()
    for _ in range(100):
        with fp.Receiver("spec_topk", key=queue_key) as receiver:
            for sender in range(8):
                queue.send(changed(first, sender=sender), type=2)
                assert receiver.receive(0) is None
    assert address_space_kib() - before < 32 << 10


@pytest.mark.resident_memory
@each("fields", [{"total": (1 << 32) - 1}, {"rows": 1 << 30}, {"batch": 1 << 30}])
def test_a_header_that_claims_gigabytes_costs_nothing(queue_key, fields):
    line = Line("spec_topk", queue_key)
    claim = changed(big_beginning(0), **fields)
    before = address_space_kib()
    for _ in range(20):
        (error,) = line.push(claim)
        assert str(next(iter(fields.values()))) in error
    assert address_space_kib() - before < 8 << 10

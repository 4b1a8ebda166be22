"""Frames in pieces: cut by the reference, sent by an independent library, put together by the Receiver."""

import random

import pytest
import sysv_ipc
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc._core import Attendance
from tests import reference
from tests.lib.line import CHANNEL, SMALL, Frame, Line, changed, flipped
from tests.lib.nursery import nursery
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.search import examples
from tests.reference import ReferenceStep


@pytest.fixture
def line(queue_key):
    return Line(queue_key)


def test_pieces_of_any_number_and_length(line):
    seqs = iter(range(100))
    for pieces in 2, 3, 7, 57:
        frame = Frame(1, next(seqs), pieces)
        assert line.push(*frame.parts) == [frame.step]
    for limit in 65, 66, 67, 68, 69, 100, 1000, 8192:
        frame = Frame(1, next(seqs))
        assert line.push(*reference.split(frame.whole, limit)) == [frame.step]
    assert line.incomplete == 0


def piece(at, **fields):
    """A change of a frame's pieces: one has other header fields."""
    return lambda parts: [*parts[:at], changed(parts[at], **fields), *parts[at + 1 :]]


def resized(at, by):
    def change(parts):
        part = parts[at][:by] if by < 0 else parts[at] + bytes(by)
        return [*parts[:at], part, *parts[at + 1 :]]

    return change


# What happens to the pieces of a frame, and how often it is delivered, refused and counted as incomplete.
ACCIDENTS = [
    *((f"{at} missing", lambda parts, at=at: parts[:at] + parts[at + 1 :], 0, 0, 1) for at in range(4)),
    # The first piece again is the beginning of a frame again.
    *((f"{at} twice", lambda parts, at=at: parts[: at + 1] + parts[at:], at == 0, 0, 1) for at in range(3)),
    ("0 and 1 swapped", lambda parts: [parts[1], parts[0], *parts[2:]], 0, 0, 1),
    ("1 and 2 swapped", lambda parts: [parts[0], parts[2], parts[1], parts[3]], 0, 0, 1),
    ("2 and 3 swapped", lambda parts: [*parts[:2], parts[3], parts[2]], 0, 0, 1),
    *(
        (f"another {name}", piece(2, **{name: value}), 0, 0, 1)
        for name, value in {"fragments": 5, "flag": 0, "stop_flag": 77, "fragment": 3}.items()
    ),
    ("another seq", piece(2, seq=77), 0, 0, 3),
    *(
        (f"{name} does not add up", piece(2, **{name: value}), 0, 1, 1)
        for name, value in {"batch": 7, "cols": 3, "rows": 13, "total": 700, "magic": 5}.items()
    ),
    ("flag does not add up", piece(2, flag=77), 0, 1, 1),
    *((f"{at} longer by {by}", resized(at, by), 0, 0, 1) for at in range(4) for by in (-1, 1, 8)),
]


@each("what, change, delivered, refused, incomplete", ACCIDENTS)
def test_an_accident_costs_its_frame_and_no_other(what, change, delivered, refused, incomplete, queue_keys):
    line, frame, after = Line(queue_keys()), Frame(1, 0), Frame(1, 1)
    outcomes = line.push(*change(frame.parts), *after.parts)
    assert [one for one in outcomes if isinstance(one, ReferenceStep)] == [frame.step] * delivered + [
        after.step
    ]
    assert line.refused == refused
    assert line.incomplete == incomplete


def test_a_frame_of_another_geometry_with_the_same_number(line):
    """Both headers add up, but they are not of one frame."""
    frame = Frame(1, 0)
    other = ReferenceStep.from_step(random_step(CHANNEL, 9, batch=7, cols=3, accepted=2, layout=SMALL))
    parts = reference.split(reference.encode_frame(other, sender=1, seq=0), len(frame.parts[0]))
    assert line.push(*frame.parts[:2], *parts[2:]) == []
    assert line.incomplete == 1


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
    frames = [Frame(sender, 0, 6) for sender in range(2, 14)]
    for part in range(1, 6):
        line.push(*(frame.parts[part] for frame in frames))
    assert line.incomplete == 2 + 12


def test_the_pieces_add_up_but_the_body_does_not(line):
    frame = Frame(1)
    body = bytearray(b"".join(part[64:] for part in frame.parts))
    body[0:4] = (1).to_bytes(4, "little")  # one row fewer than the header says
    whole = reference.seal(frame.whole[:64] + bytes(body))
    (error,) = line.push(*reference.split(whole, len(frame.parts[0])))
    assert error.field == "rows"
    assert line.incomplete == 0
    assert line.push(*Frame(1, 1).parts) == [Frame(1, 1).step]


MISHAPS = {  # of a frame's pieces, at one of them
    "none": lambda rng, parts, at: parts,
    "drop": lambda rng, parts, at: parts[:at] + parts[at + 1 :],
    "double": lambda rng, parts, at: parts[: at + 1] + parts[at:],
    "swap": lambda rng, parts, at: [*parts[:at], *parts[at : at + 2][::-1], *parts[at + 2 :]],
    "cut": lambda rng, parts, at: resized(at, rng.randrange(50, len(parts[at])) - len(parts[at]))(parts),
    "header": lambda rng, parts, at: [*parts[:at], flipped(parts[at], rng.randrange(512)), *parts[at + 1 :]],
}


@examples(30)
@given(seed=st.integers(0, 1 << 32), senders=st.integers(1, 12), mishap=st.sampled_from([*MISHAPS]))
def test_random_traffic(seed, senders, mishap):
    """Fragments of several senders in random turns, with accidents.  Each frame comes whole or not at all."""
    rng = random.Random(seed)
    streams, frames = [[] for _ in range(senders)], []
    for sender, stream in enumerate(streams):
        for seq in range(rng.randrange(1, 4)):
            frame = Frame(sender, seq, rng.choice([2, 3, 5]))
            frames.append(frame.step)
            parts = [frame.whole] if rng.random() < 0.2 else list(frame.parts)
            if rng.random() < 0.5:
                parts = MISHAPS[mishap](rng, parts, rng.randrange(len(parts)))
            stream += parts
    line = Line(rng.randrange(1 << 20, 1 << 31))
    try:
        while streams := [stream for stream in streams if stream]:
            for step in line.push(rng.choice(streams).pop(0)):
                assert step in frames or isinstance(step, fp.MalformedMessage) or mishap == "header"
    finally:
        line.queue.remove()


def big_beginning(sender):
    """The first piece, nearly empty, of the largest frame that the layout allows."""
    step = ReferenceStep.from_step(random_step(CHANNEL, 1, batch=512, cols=21, accepted=6))
    return reference.split(reference.encode_frame(step, sender=sender), 8192)[0]


def test_open_frames_are_counted_until_they_are_whole(queue_key):
    receiver = Attendance(fp.Receiver(CHANNEL, key=queue_key))
    queue = sysv_ipc.MessageQueue(queue_key, max_message_size=8192)
    step = random_step(CHANNEL, 7, batch=3, cols=3, accepted=2)
    pieces = reference.split(reference.encode_frame(ReferenceStep.from_step(step)), 200)
    for number, part in enumerate(pieces, 1):
        queue.send(part, type=2)
        got = receiver.receive(0)
        assert receiver.open_frames == (int(number < len(pieces)), number)
    assert got == step


def test_two_readers_of_one_queue_are_the_likely_cause_of_what_is_incomplete(line, caplog):
    """Each takes a piece in turn; the first loss of a Receiver is in the log, with its cause."""
    other = fp.Receiver(CHANNEL, key=line.queue.key, layout=SMALL)
    for number in range(8):
        for at, part in enumerate(Frame(1, number, 6).parts):
            line.queue.send(part, type=2)
            assert (line.receiver, other)[at % 3 == 1].receive(0) is None
    assert [one.stats["incomplete"] for one in (line.receiver, other)] == [8, 8]
    assert caplog.text.count("most likely another reader of the queue") == 2


ROOM = """
import sys
import sysv_ipc
import fd_postproc as fp
from tests import reference
from tests.core.test_fragments import big_beginning
from tests.lib.line import changed
from tests.lib.random_steps import random_step

def kib(which):
    with open("/proc/self/statm") as file:
        return int(file.read().split()[which]) * 4

queue = sysv_ipc.MessageQueue(int(sys.argv[1]), max_message_size=8192)
first = big_beginning(0)
longest = reference.FrameHeader.unpack(first).total + 192

def push(receiver, *parts):
    for part in parts:
        queue.send(part, type=2)
        got = receiver.receive(0)
    return got

# Strangers: 12 MB if all pieces were kept, 4.8 GB of what they claim; half as much again while they grow.
for size, strangers, kept in (64, 9000, 6500), (8192, 1500, 400):
    receiver = fp.Receiver("spec_topk", key=queue.key)
    before = kib(1)
    for sender in range(strangers):
        assert push(receiver, changed(first[:size], sender=sender)) is None
    assert kib(1) - before < 3 << 10, (size, kib(1) - before)
    assert strangers - kept <= receiver.stats["incomplete"] < strangers

# Known senders have room for eight times as much; of what is claimed, only what comes is touched.
receiver = fp.Receiver("spec_topk", key=queue.key)
step = random_step("spec_topk", 7, batch=3, cols=3, accepted=2)
most = 8 * (longest + (1 << 20)) // longest  # the room is for sections, too
assert 20 < most < 40
for sender in range(most + 12):
    frame = reference.encode_frame(reference.ReferenceStep.from_step(step), sender=sender)
    assert push(receiver, *reference.split(frame, 200)) == step
before = kib(1)
for sender in range(most + 12):
    assert push(receiver, changed(first, sender=sender, seq=1)) is None
    assert receiver.stats["incomplete"] == max(0, sender + 1 - most)
assert kib(1) - before < 1 << 10
"""


@pytest.mark.resident_memory
def test_the_room_that_open_frames_take(queue):
    done = nursery().run(ROOM, queue.key)
    assert done.returncode == 0, done.stderr

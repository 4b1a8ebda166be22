"""Frames that were changed on the way, and frames that are missing, doubled or out of order."""

import ctypes
import platform
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc import ops
from tests import reference
from tests.lib import c_library
from tests.lib.line import CHANNEL, SMALL, Frame, Line, changed, flipped
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.search import examples
from tests.reference import FrameHeader, ReferenceStep
from tests.reference.crc32c import crc32c


@pytest.fixture
def line(queue_key):
    return Line(queue_key)


def steps_of(*seqs, sender=1):
    return [Frame(sender, seq).step for seq in seqs]


@pytest.fixture(scope="module")
def compiled():
    """``crc32c.h`` with each of its ways."""
    library = c_library.library("crc32c")
    for name in "by_tables", "sum":
        getattr(library, name).restype = ctypes.c_uint32
        getattr(library, name).argtypes = [ctypes.c_char_p, ctypes.c_int64]
    library.has_instruction()  # fills the tables, which it needs no more
    return library


# RFC 3720, appendix B.4; and the check value of the catalogue of CRCs.
KNOWN = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@examples(25)
@given(seed=st.integers(0, 1 << 32), size=st.integers(0, 5000))
def test_all_ways_agree(compiled, seed, size):
    """In three streams from 1,536 bytes on."""
    random_one = random.Random(seed).randbytes(size)
    for data, value in [*KNOWN, (random_one, crc32c(random_one))]:
        assert crc32c(data) == compiled.by_tables(data, len(data)) == compiled.sum(data, len(data)) == value


def test_the_instruction_is_used_where_the_processor_has_it(compiled):
    """By the host's compiler; of a wheel, made by another one, .ci/try_wheel.py asks it."""
    feature = {"x86_64": "sse4_2", "aarch64": "crc32"}.get(platform.machine())
    if feature not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this processor has no instruction for the sum")
    assert compiled.has_instruction()
    assert fp._core._sums_by_instruction()


def test_a_flipped_bit_of_a_frame_is_found(decode_both):
    whole = Frame(1, 5).whole
    fields = set()
    for bit in (*range(8 * 64), *range(8 * 64, 8 * len(whole), 7)):
        error = decode_both(flipped(whole, bit), CHANNEL, mtype=2, layout=SMALL)
        assert isinstance(error, fp.MalformedMessage), bit
        assert bit < 8 * 64 or error.field == "checksum"
        fields.add(error.field)
    assert fields >= {"magic", "version", "channel", "flag", "batch", "columns", "rows", "length", "checksum"}
    swapped = bytearray(whole)
    swapped[100:116], swapped[116:132] = whole[116:132], whole[100:116]
    error = decode_both(bytes(swapped), CHANNEL, mtype=2, layout=SMALL)
    assert error.field == "checksum"
    assert f"{error.value:#010x}" in str(error)
    assert f"{error.bound:#010x}" in str(error)


def test_a_flipped_bit_costs_its_frame_and_no_other(line):
    """Of another sender's frame in pieces, half of it before and half of it after."""
    neighbour = Frame(2, 1)
    for seq, byte in enumerate([40, 48, 55, 60, 63, 64, 100, -1]):
        whole = Frame(1, seq).whole
        bit = 8 * (byte % len(whole)) + seq % 8
        line.push(neighbour.parts[0])
        assert [one.field for one in line.push(flipped(whole, bit))] == ["checksum"]
        assert line.push(*neighbour.parts[1:]) == [neighbour.step]
        assert line.push(whole) == steps_of(seq)
    assert line.counted("malformed", "corrupt", "incomplete") == (8, 8, 0)
    line.push(neighbour.parts[0])  # one that has another sender's number does not end its open frame
    assert [one.field for one in line.push(changed(Frame(1, 7).whole, sender=2))] == ["checksum"]
    assert line.push(*neighbour.parts[1:]) == [neighbour.step]


def test_a_flipped_byte_of_a_frame_in_pieces_is_found(line):
    line.brief = False
    seq, rng, pieces = 0, random.Random(1), Frame(1).cut(4)
    for place, part in enumerate(pieces):
        for byte in range(place, len(part), 17):
            seq += 2
            parts = Frame(1, seq).parts
            parts[place] = flipped(parts[place], 8 * byte + rng.randrange(8))
            before = sum(line.counted("malformed", "incomplete"))
            outcomes = line.push(*parts)
            assert all(isinstance(one, fp.MalformedMessage) for one in outcomes), (place, byte)
            assert line.push(*Frame(1, seq + 1).parts) == steps_of(seq + 1)
            assert sum(line.counted("malformed", "incomplete")) > before, (place, byte)


# A frame of a sender that knows of no checksums: channel spec, one request with two tokens.
OLD = bytes.fromhex(
    "feffffff 00000000 00000000 46445050 01 02 00 00 01000000 01000000 01000000 02000000 4c000000"
    "0500000000000000 0700000000000000 0000 0100 00000000 02000000 2a000000 2b000000"
)


def test_frames_without_a_checksum_are_read(decode_both):
    """A new one differs in bytes 19 and 60 to 63 alone, which readers that know of no checksums ignore."""
    step = decode_both(OLD, "spec", mtype=2)
    assert (step.token_ids(0), step.seq) == ([42, 43], 5)
    new = reference.seal(OLD)
    assert [at for at in range(len(OLD)) if OLD[at] != new[at]] == [19, 60, 61, 62, 63]
    assert FrameHeader.unpack(new).version == 1


def test_old_senders_beside_new_ones(line, decode_both):
    for seq in range(4):
        old, new = Frame(2, seq, checksum=False), Frame(1, seq)
        assert line.push(*new.parts[:2], *old.parts, *new.parts[2:]) == [old.step, new.step]
    unmarked = changed(new.whole, features=0)
    assert decode_both(unmarked, CHANNEL, mtype=2, layout=SMALL).field == "checksum"


STEP = random_step(CHANNEL, 3, batch=6, cols=4, accepted=2, layout=SMALL)


def assert_sealed(message, features=1):
    """The frame has the right checksum, or none."""
    header = FrameHeader.unpack(message)
    assert (header.features, bool(header.checksum)) == (features, bool(features))
    bare = header._replace(features=0, checksum=0).pack() + message[64:]
    assert message == (reference.seal(bare) if features else bare)


@each("value, features", [(None, 1), ("1", 1), ("", 1), ("0", 0)])
def test_what_a_sender_sends(monkeypatch, queue, value, features):
    monkeypatch.delenv("FD_POSTPROC_CHECKSUM", raising=False)
    if value is not None:
        monkeypatch.setenv("FD_POSTPROC_CHECKSUM", value)
    with fp.Sender(CHANNEL, key=queue.key, layout=SMALL, dialect="compact") as sender:
        sender.send(STEP)
    assert_sealed(queue.receive(type=2)[0], features)
    encoded = fp.encode(STEP, "compact", layout=SMALL)
    assert FrameHeader.unpack(encoded).features == features


def test_pieces_carry_the_checksum_of_the_whole(queue):
    step = random_step(CHANNEL, 1, batch=100, cols=21, accepted=2)
    whole = reference.encode_frame(ReferenceStep.from_step(step), checksum=False)
    with pytest.raises(fp.QueueTimeout):  # after the first pieces
        fp.Sender(CHANNEL, key=queue.key, dialect="compact").send(step, timeout=0)
    first = FrameHeader.unpack(queue.receive(type=2)[0])
    again = first._replace(fragment=0, fragments=1, checksum=0).pack() + whole[64:]
    assert first.fragments > 1
    assert first.checksum == crc32c(again)


def test_a_reader_that_does_not_verify(monkeypatch, queue, decode_both):
    monkeypatch.setenv("FD_POSTPROC_CHECKSUM", "0")
    receiver = fp.Receiver(CHANNEL, key=queue.key, layout=SMALL)
    wrong = flipped(Frame(1, 5).whole, -8)  # a rank
    queue.send(wrong, type=2)
    assert receiver.receive(0).seq == 5
    assert fp.decode(wrong, CHANNEL, mtype=2, layout=SMALL).seq == 5
    assert receiver.stats["corrupt"] == 0
    for part in reference.split(wrong, 300):
        queue.send(part, type=2)
    assert receiver.receive(0).seq == 5


def test_save_ops_send_checksums(monkeypatch, ops_queue):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    ops.save_output(np.array([[5], [6]]), np.array([True]), np.zeros((2, 1), "i4"), 0, False)
    assert_sealed(ops_queue.take("plain")[0])


TROUBLE = [
    (range(100, 110), (0, 0, 0)),
    ((0, 1, 1, 0), (0, 2, 0)),
    ((0, 2, 1, 3, 1), (1, 1, 1)),
    ((0, 64, 1, 1, 0, 65, 1), (63, 1, 3)),
    ([(1 << 64) - 3 + k if k < 3 else k - 3 for k in range(6)], (0, 0, 0)),
    (range((1 << 63) - 2, (1 << 63) + 4), (0, 0, 0)),
    ((0, 1 << 62, (1 << 63) - 1, 5), (2 << 20, 0, 1)),  # an absurd gap counts as a million
]


@each("seqs, trouble", TROUBLE)
def test_numbers_of_one_sender(seqs, trouble, queue_keys):
    """All are delivered: numbers are no proof, a recording that is replayed twice has them twice."""
    line = Line(queue_keys())
    assert line.push(*(Frame(1, seq).whole for seq in seqs)) == steps_of(*seqs)
    assert line.trouble == trouble
    assert tuple(line.receiver._news().values()) == (0, *trouble)
    assert not any(line.receiver._news().values())  # told once


def test_the_place_of_a_silent_sender_is_empty_for_the_next(line):
    line.push(*(Frame(1, seq).whole for seq in (0, 2, 2, 1, 9)))  # doubled, reordered, missing
    line.push(*(Frame(sender, 0).whole for sender in range(2, 67)))  # more than there are places


@examples(10)
@given(seed=st.integers(0, 1 << 32))
def test_any_order_as_in_the_reference(seed):
    rng = random.Random(seed)
    line = Line(rng.randrange(1 << 20, 1 << 31))
    try:
        at = [rng.choice([0, 1000, (1 << 64) - 20]) for _ in range(80)]
        busy = rng.choice([2, 80])
        step = ReferenceStep.from_step(fp.Step.from_arrays(CHANNEL, [], [], [], []))
        whole = reference.encode_frame(step)
        for _ in range(120):
            sender = rng.randrange(busy)
            at[sender] = (at[sender] + rng.choice([1] * 8 + [0, -1, 2, 70, -70, 62, 63, -63, 64])) % (1 << 64)
            line.push(reference.seal(changed(whole, sender=sender, seq=at[sender])))
    finally:
        line.queue.remove()

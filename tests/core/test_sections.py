"""Sections behind the body of a compact frame: sampling masks, a weight version, and what is not known."""

import pickle
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc._core import MOST_EXTRA, _rebuild_step
from tests import reference
from tests.lib.line import SMALL
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.lib.search import examples
from tests.reference import FrameHeader, ReferenceStep
from tests.reference import sections as told

THREE = fp.Step.from_arrays(
    "spec", [2, 0, 1], [5, 6, 7], masks={0: [[5, 9], []], 2: [7]}, weight_version="v3"
)
IDS = st.lists(st.integers(0, (1 << 31) - 1), max_size=6)
LISTS = st.one_of(IDS, st.lists(IDS, min_size=1, max_size=3))


def with_sections(step, masks, version=None):
    """The step, carrying these."""
    empty = fp.Step.from_arrays("spec", [0] * step.batch, [], masks=masks, weight_version=version)
    return _rebuild_step(*step.__reduce__()[1][:-1], empty.__reduce__()[1][-1])


@st.composite
def carrying(draw):
    """A step with masks of any form, a version, or both."""
    channel = draw(st.sampled_from(("plain", "topk", "spec", "spec_topk")))
    step = random_step(channel, draw(st.integers(0, 1 << 32)), layout=SMALL)
    masks = draw(st.none() | st.dictionaries(st.integers(0, max(step.batch - 1, 0)), LISTS))
    masks = masks if step.batch or masks is None else {}
    version = draw(st.none() | st.text(min_size=1, max_size=16))
    return with_sections(step, masks, version), masks, version


def frame_with(extra, step=None, **header):
    """A frame of the reference with these bytes as its sections, sealed."""
    step = random_step("topk", 3, batch=2, cols=2, layout=SMALL) if step is None else step
    frame = reference.encode_frame(ReferenceStep.from_step(step), checksum=False)
    frame += bytes(-len(frame) % 8) + extra
    fields = {"features": told.SECTIONED, "total": len(frame), **header}
    return reference.seal(FrameHeader.unpack(frame)._replace(**fields).pack() + frame[64:])


def masks_of(*numbers):
    """A section of masks from its numbers."""
    return told.section(told.MASKS, told.REQUIRED, struct.pack(f"<{len(numbers)}i", *numbers))


@examples(15)
@given(case=carrying())
def test_a_frame_keeps_them(decode_both, case):
    step, masks, version = case
    assert (step.masks, step.weight_version) == (masks, version)
    frame = fp.encode(step, "compact", layout=SMALL)
    assert frame == reference.encode_frame(ReferenceStep.from_step(step))
    again = decode_both(frame, step.channel, mtype=2, layout=SMALL)
    assert (again.masks, again.weight_version) == (masks, version)
    assert again == step
    assert pickle.loads(pickle.dumps(step)) == step


def test_bytes_of_the_sections():
    """Offsets as docs/wire-protocol.md gives them."""
    frame = fp.encode(THREE, "compact")
    assert len(frame) == 64 + 4 * 6 + (24 + 48) + (24 + 8)
    assert frame[19] == 3
    assert struct.unpack_from("<8sI4xq", frame, 88) == (b"masks/2\0", 1, 48)
    assert struct.unpack_from("<12i", frame, 112) == (3, 3, 2, 0, -1, 0, 2, 2, 3, 5, 9, 7)
    assert struct.unpack_from("<8sI4xq", frame, len(frame) - 32) == (b"weights\0", 0, 2)
    assert frame[-8:] == b"v3" + bytes(6)


def test_a_step_without_sections_is_as_before():
    step = random_step("spec_topk", 1, batch=3)
    assert (step.masks, step.weight_version) == (None, None)
    assert fp.decode(fp.encode(step, "compact"), "spec_topk", mtype=2).masks is None
    assert step != fp.Step.from_arrays("spec", [1], [5])
    one = fp.Step.from_arrays("spec", [1], [5], masks={})
    assert one != fp.Step.from_arrays("spec", [1], [5])
    assert one.masks == {}


@each("dialect", ["packed", "legacy"])
def test_fastdeploys_messages_have_no_place_for_masks(dialect):
    step = fp.Step.from_arrays("plain", [1], [5], masks={0: [5, 6]})
    with pytest.raises(ValueError, match="'masks/2', for which only the compact dialect has a place"):
        fp.encode(step, dialect)
    versioned = fp.Step.from_arrays("plain", [1], [5], weight_version="7")
    assert fp.decode(fp.encode(versioned, dialect), "plain").weight_version is None


def test_a_frame_cut_anywhere_whose_header_agrees(decode_both):
    """The checksum and the total are right: what is left does not add up, or is a whole frame of less."""
    step, frame = THREE, fp.encode(THREE, "compact")
    whole = []
    for length in range(88, len(frame)):
        header = FrameHeader.unpack(frame)._replace(total=length)
        cut = reference.seal(header.pack() + frame[64:length])
        again = decode_both(cut, "spec", mtype=2)
        if isinstance(again, fp.MalformedMessage):
            assert again.field in ("sections", "masks")
        else:
            whole.append((length, again.masks, again.weight_version))
    assert whole == [(88, None, None), (160, step.masks, None)]


@examples(25)
@given(case=carrying(), flips=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=4))
def test_changed_bytes_that_pass_for_sent(decode_both, case, flips):
    """Sealed after the change: both judge alike, and what is let through reads nothing else."""
    step = case[0]
    frame = bytearray(fp.encode(step, "compact", layout=SMALL))
    assert decode_both(bytes(frame), step.channel, mtype=2, layout=SMALL) == step  # not all is refused
    for flip in flips:
        at = 64 + (flip >> 3) % max(1, len(frame) - 64)
        if at < len(frame):
            frame[at] ^= 1 << (flip & 7)
    decode_both(reference.seal(bytes(frame)), step.channel, mtype=2, layout=SMALL)


@examples(30)
@given(numbers=st.lists(st.integers(-2, 6), min_size=0, max_size=24))
def test_masks_of_any_numbers(decode_both, numbers):
    for first in (), (2,):
        decode_both(frame_with(masks_of(*first, *numbers)), "topk", mtype=2, layout=SMALL)


# Slots 2, masks 2; one bare and one of a list; begins 0 1 3; ids.
GOOD = (2, 2, -1, 1, 0, 1, 3, 7, 8, 9)
WRONG = [
    ((3, *GOOD[1:]), (3, 2, None), "another number of slots"),
    ((2, -1, *GOOD[2:]), (-1, 5, None), "fewer masks than none"),
    ((2, 6, *GOOD[2:]), (6, 5, None), "more masks than numbers"),
    ((2, 2, -2, *GOOD[3:]), (-2, 2, 0), "no such count"),
    ((2, 2, -1, 2, *GOOD[4:]), (2, 1, 1), "more masks of a slot than are left"),
    ((2, 2, -1, 0, *GOOD[4:]), (2, 1, None), "masks of no slot"),
    ((2, 2, -1, 1, 1, *GOOD[5:]), (1, 0, 0), "the first begins late"),
    ((2, 2, -1, 1, 0, 4, *GOOD[6:]), (4, 0, 1), "one begins behind the end"),
    ((2, 2, -1, 1, 0, 2, 1, 7, 8, 9), (1, 2, 2), "one ends before it begins"),
    ((2, 2, -1, 1, 0, -1, *GOOD[6:]), (-1, 0, 1), "one begins before the first"),
    ((2, 2, -1, 1, 0, 1, 2, 7, 8, 9), (2, 3, 2), "ids of no mask"),
    ((2, 0, 0, 0, 0, 7), (0, 1, 0), "ids without masks"),
]


@each("numbers, fault", [one[:2] for one in WRONG])
def test_masks_that_do_not_add_up(decode_both, numbers, fault):
    error = decode_both(frame_with(masks_of(*numbers)), "topk", mtype=2, layout=SMALL)
    assert (error.field, error.value, error.bound, error.index) == ("masks", *fault)
    good = decode_both(frame_with(masks_of(*GOOD)), "topk", mtype=2, layout=SMALL)
    assert good.masks == {0: [7], 1: [[8, 9]]}


def test_a_required_section_that_is_not_known_is_refused_by_name(decode_both):
    error = decode_both(frame_with(told.section(b"later", 1, b"anything")), "topk", mtype=2, layout=SMALL)
    assert error.field == "section"
    assert "'later'" in str(error)
    error = decode_both(frame_with(told.section(b"\xff" * 8, 1, b"")), "topk", mtype=2, layout=SMALL)
    assert "use the same fd_postproc" in str(error)


@examples(15)
@given(marks=st.integers(0, (1 << 32) - 1), content=st.binary(max_size=20))
def test_any_other_section_is_passed_over_and_kept(decode_both, marks, content):
    extra = told.section(b"later", marks & ~1, content) + told.section(told.WEIGHTS, 0, b"5")
    frame = frame_with(extra)
    step = decode_both(frame, "topk", mtype=2, layout=SMALL)
    assert (step.masks, step.weight_version) == (None, "5")
    assert fp.encode(step, "compact", layout=SMALL) == frame  # a recording keeps what it does not know


@each(
    "extra",
    [
        told.section(b"a", 0, b"") * 2,
        b"".join(told.section(b"%d" % k, 0, b"") for k in range(65)),
        told.section(b"a", 0, b"")[:-1],
        told.section(b"a", 0, b"12345678") + b"\0",
        struct.pack("<8sI4xq", b"a", 0, -1),
        struct.pack("<8sI4xq", b"a", 0, (1 << 63) - 1),
        struct.pack("<8sI4xq", b"a", 0, 8) + b"1234567",
        struct.pack("<8sI4xq", b"a", 0, 5) + b"12345",  # its padding is missing
    ],
)
def test_sections_that_do_not_add_up(decode_both, extra):
    error = decode_both(frame_with(extra), "topk", mtype=2, layout=SMALL)
    assert error.field == "sections"


@each("more", [-8, -1, 1, MOST_EXTRA + 8])
def test_a_total_that_does_not_fit(decode_both, more):
    frame = frame_with(b"")
    error = decode_both(frame_with(b"", total=len(frame) + more), "topk", mtype=2, layout=SMALL)
    assert error.field == "length"
    unmarked = frame_with(told.section(b"a", 0, b""), features=0)
    assert decode_both(unmarked, "topk", mtype=2, layout=SMALL).field == "length"


def test_a_frame_in_pieces_keeps_them(queue_key):
    masks = {slot: list(range(slot, 4000)) for slot in range(9)}
    step = with_sections(random_step("topk", 5, batch=9, cols=21), masks, "12")
    with fp.Receiver("topk", key=queue_key) as receiver:
        with fp.Sender("topk", key=queue_key, dialect="compact") as sender:
            sent = threading.Thread(target=sender.send, args=(step,))
            sent.start()
            got = receiver.receive(20)
            sent.join()
            assert got == step
            assert got.masks == masks
            sender.send(fp.Step.from_arrays("topk", [-1], [], [], []))
        assert receiver.receive(5).masks is None
        assert receiver.stats["incomplete"] == 0


def test_exactly_the_longest_sections():
    """The last number that fits, and one more."""
    others = 24 + 4 * (2 + 1 + 2)  # the section's head; slots, masks, a count and two places
    most = (MOST_EXTRA - others) // 4
    step = fp.Step.from_arrays("plain", [1], [5], masks={0: range(most)})
    frame = fp.encode(step, "compact")
    assert len(frame) - len(fp.encode(fp.Step.from_arrays("plain", [1], [5]), "compact")) >= MOST_EXTRA
    assert len(fp.decode(frame, "plain", mtype=2).masks[0]) == most
    with pytest.raises(ValueError, match="too long"):
        fp.Step.from_arrays("plain", [1], [5], masks={0: range(most + 1)})


@each(
    "masks, text",
    [
        ({1: [1]}, "the request of a mask"),
        ({-1: [1]}, "the request of a mask"),
        ({0: [1 << 31]}, "no room in 32 bits"),
        ({0: [1.5]}, "dtype float64"),
        ({0: [[[1]]]}, "2 dimensions"),
        ({0: ["a"]}, "dtype"),
    ],
)
def test_masks_and_versions_that_are_none(masks, text):
    with pytest.raises(ValueError, match=text):
        fp.Step.from_arrays("plain", [1], [5], masks=masks)
    for version in "", "a" * 65, 7:
        with pytest.raises((ValueError, TypeError), match="weight_version"):
            fp.Step.from_arrays("plain", [1], [5], weight_version=version)


def test_a_damaged_pickle_is_refused():
    one = fp.Step.from_arrays("spec", [1], [5], masks={0: [7]})
    arguments = list(one.__reduce__()[1])
    for length in range(len(arguments[-1])):
        arguments[-1] = one.__reduce__()[1][-1][:length]
        if length:
            with pytest.raises(ValueError, match="sections"):
                _rebuild_step(*arguments)

"""Compact frames: what a whole one looks like, and every way in which one can be wrong."""

import random
import struct

import pytest

import fd_postproc as fp
from tests import reference
from tests.lib.line import SMALL
from tests.lib.random_steps import random_step
from tests.lib.rows import each
from tests.reference import FrameHeader, ReferenceStep
from tests.reference.crc32c import crc32c

CHANNELS = ("plain", "topk", "spec", "spec_topk")
LAYOUTS = [SMALL, fp.Layout(1, 0, 1, 1), fp.Layout(4, 1, 1, 2), fp.Layout(128, 5, 6), fp.GPU]


def frame_of(step, layout=fp.GPU, **header):
    """The reference's frame, with other header fields, and the checksum that they make."""
    frame = reference.encode_frame(ReferenceStep.from_step(step))
    return reference.seal(FrameHeader.unpack(frame)._replace(**header).pack() + frame[64:])


def test_the_header_byte_by_byte():
    """Offsets as docs/wire-protocol.md gives them."""
    ids, scores = [[5, 6], [7, 8], [9, 10]], [[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0]]
    step = fp.Step.from_arrays("spec_topk", [2, -9, 1], ids, scores, [1, 2, 3], flag=4, stop_flag=-7)
    expected = bytearray(64)
    for offset, form, value in (
        (0, "<i", -2),
        (12, "4s", b"FDPP"),
        (16, "B", 1),
        (17, "B", 3),
        (18, "B", 4),
        (20, "<i", -7),
        (24, "<i", 3),
        (28, "<i", 2),
        (32, "<i", 3),
        (36, "<I", 64 + 12 + 60),
        (19, "B", 1),
        (58, "<H", 1),
    ):
        struct.pack_into(form, expected, offset, value)
    expected += struct.pack("<3i", 2, -9, 1) + struct.pack("<6i", 5, 6, 7, 8, 9, 10)
    expected += struct.pack("<6f", -1, -2, -3, -4, -5, -6) + struct.pack("<3i", 1, 2, 3)
    struct.pack_into("<I", expected, 60, crc32c(expected))
    assert (
        fp.encode(step, "compact") == reference.encode(ReferenceStep.from_step(step), "compact") == expected
    )


def test_spec_frames_may_hold_more_requests_than_messages():
    step = random_step("spec", 3, batch=512)
    assert fp.decode(fp.encode(step, "compact"), "spec", mtype=2) == step
    with pytest.raises(ValueError, match="batch is 512, at most 256 fit"):
        fp.encode(step)


GOOD = random_step("spec_topk", 5, batch=5, cols=3, accepted=2, layout=SMALL)
BODY = len(fp.encode(GOOD, "compact", layout=SMALL)) - 64

# In the order in which they are checked: header fields, and what is refused then.
WRONG = [
    ({"magic": 0x50504447}, ("magic", 0x50504447, 0x50504446)),
    ({"version": 2}, ("version", 2, 1)),
    ({"channel": 1}, ("channel", 1, 3)),
    ({"fragment": 3, "fragments": 3}, ("fragment", 3, 3)),
    ({"batch": -1}, ("batch", -1, 7)),
    ({"cols": 5}, ("columns", 5, 4)),
    ({"flag": 5}, ("flag", 5, 4)),
    ({"rows": 15}, ("rows", 15, 14)),
    ({"total": 64 + BODY + 1}, ("length", 64 + BODY + 1, 64 + BODY)),
    ({"fragment": 0, "fragments": 2}, ("fragment", 2, 1)),
]
ALSO_WRONG = [
    ({"batch": 8}, ("batch", 8, 7)),
    ({"cols": 0}, ("columns", 0, 4)),
    ({"rows": -1}, ("rows", -1, 14)),
    ({"total": 0}, ("length", 0, 64 + BODY)),
    ({"total": (1 << 32) - 1}, ("length", (1 << 32) - 1, 64 + BODY)),
    ({"fragments": 0}, ("fragment", 0, 0)),
    ({"fragment": 1}, ("fragment", 1, 1)),
    ({"version": 0}, ("version", 0, 1)),
    ({"channel": 255}, ("channel", 255, 3)),
    ({"flag": 255}, ("flag", 255, 4)),
]


@pytest.fixture
def refused(decode_both):
    """A function: what is refused of a frame, and the bound."""

    def refused(frame, channel="spec_topk", layout=SMALL):
        error = decode_both(frame, channel, mtype=2, layout=layout)
        assert error.channel == channel
        by_name = error.field == "channel" and error.value < len(CHANNELS)
        numbers = (CHANNELS[error.value],) if by_name else (error.value, error.bound)
        assert all(str(one) in str(error) for one in (channel, *numbers))
        return error.args[1:]

    return refused


@each("header, args", WRONG + ALSO_WRONG)
def test_each_header_field(header, args, refused):
    assert refused(frame_of(GOOD, **header)) == (*args, None)


def test_header_fields_are_checked_in_order(refused):
    for first in range(len(WRONG)):
        header = {}
        for fields, _ in reversed(WRONG[first:]):
            header.update(fields)
        if {"fragments": 3}.items() <= header.items():
            header["fragment"] = 3
        assert refused(frame_of(GOOD, **header) + b"too long") == (*WRONG[first][1], None)


@each("fields", [{"nothing": 7}, {"zero": 7, "zero2": -1}, {"features": 253}, {"features": 252}])
def test_words_that_are_not_looked_at(fields, decode_both):
    assert decode_both(frame_of(GOOD, **fields), "spec_topk", mtype=2, layout=SMALL) == GOOD


def test_counts(refused):
    def with_counts(step, *counts):
        frame = frame_of(step)
        words = struct.pack(f"<{len(counts)}i", *counts)
        return reference.seal(frame[:64] + words + frame[64 + len(words) :])

    assert refused(with_counts(GOOD, 2, 3, 1, 2, 2)) == ("count", 3, 2, 1)
    assert refused(with_counts(GOOD, 2, 2, 2, 2, 1)) == ("rows", 10, 9, None)
    assert refused(with_counts(GOOD, 2, 2, 2, 2, -9)) == ("rows", 10, 8, None)
    topk = random_step("topk", 5, batch=3, cols=3, accepted=1, layout=SMALL)
    assert refused(with_counts(topk, 1, 2, 0), "topk") == ("count", 2, 1, 1)
    assert refused(with_counts(topk, 1, 0, 1), "topk") == ("count", 0, 1, 1)


@each("channel", ["plain", "topk"])
def test_a_negative_token_is_no_token(channel, refused, decode_both):
    """In FastDeploy's messages it would be a code, so such a step could not be passed on."""
    logprobs = [[[-1.0], [-2.0]], [1, 2]] if channel == "topk" else []
    step = fp.Step.from_arrays(channel, [-9, 1, 1], [[5], [6]], *logprobs)
    frame = fp.encode(step, "compact", layout=SMALL)
    assert decode_both(frame, channel, mtype=2, layout=SMALL).counts == [-9, 1, 1]
    at = 64 + 12 + 4  # after header, counts, and the first id
    frame = reference.seal(frame[:at] + struct.pack("<i", -7) + frame[at + 4 :])
    assert refused(frame, channel) == ("token", -7, 0, 2)


def test_bounds_themselves_are_good(decode_both):
    for channel in CHANNELS:
        depth = SMALL.max_draft if channel.startswith("spec") else 1
        step = random_step(channel, 1, batch=7, cols=4, accepted=depth, layout=SMALL)
        again = decode_both(frame_of(step), channel, mtype=2, layout=SMALL)
        assert (again.batch, again.rows) == (7, 7 * depth)
    nothing = random_step("topk", 1, batch=0, cols=1, layout=SMALL)
    assert decode_both(frame_of(nothing), "topk", mtype=2, layout=SMALL).rows == 0


@each("channel", CHANNELS)
def test_every_other_length_is_refused(channel, decode_both):
    frame = frame_of(random_step(channel, 9, layout=SMALL))
    for n in [*range(len(frame)), *range(len(frame) + 1, len(frame) + 70)]:
        error = decode_both((frame + bytes(70))[:n], channel, mtype=2, layout=SMALL)
        assert error.args[1:] == ("length", n, 64 if n < 64 else len(frame), None)


@each("layout", LAYOUTS)
@each("channel", CHANNELS)
def test_damaged_bytes(channel, layout, decode_both):
    rng = random.Random(f"{channel} {layout}")
    frame = reference.encode_frame(
        ReferenceStep.from_step(random_step(channel, 4, batch=min(5, layout.max_batch), layout=layout)),
        checksum=False,  # which would hide all others
    )
    for _ in range(40):
        damaged = bytearray(frame)
        for _ in range(rng.choice([1, 1, 2, 5])):
            damaged[rng.randrange(min(len(frame), rng.choice([64, 90, 1 << 20])))] ^= 1 << rng.randrange(8)
        decode_both(damaged, channel, mtype=2, layout=layout)


def test_frames_and_messages_are_not_taken_for_each_other(decode_both):
    step = random_step("spec_topk", 1, batch=3, cols=2)
    assert isinstance(decode_both(fp.encode(step), "spec_topk", mtype=2), fp.MalformedMessage)
    assert decode_both(fp.encode(step, "compact"), "spec_topk").args == ("spec_topk", "mtype", 1, 2, None)
    with pytest.raises(fp.MalformedMessage, match="message type 3, expected 1"):
        fp.decode(fp.encode(step), "spec_topk", mtype=3)


@each("limit", [100, 8192])
@each("channel", CHANNELS)
def test_a_stock_receiver_sees_nothing(channel, limit):
    """The get op restated (reference.fill, which the recorded tensors vouch for) on each message as it comes.

    A stock receiver takes any type, and hands over what it gets: -2 in the first element tells its caller
    that nothing came; batch 0 stands behind it.
    """
    stock = reference.payload_size(channel)
    frame = frame_of(random_step(channel, 7, batch=100, cols=21), sender=5, seq=9)
    messages = reference.split(frame, min(limit, stock))
    for message in messages:
        assert struct.unpack_from("<3i", message) == (-2, 0, 0)
        assert len(message) <= min(limit, stock)  # no E2BIG in its msgrcv
    for message in {messages[0], messages[len(messages) // 2], messages[-1]}:
        words = 3 if channel == "spec_topk" else 2
        tokens, scores, ranks = [7] * 66_000, [7.0] * 66_000, [7] * 4_000
        reference.fill(message, channel, tokens, *([scores, ranks] if channel.endswith("topk") else []))
        assert tokens[:words] == [-2, 0, 0][:words]
        if channel != "spec":  # that op copies the whole message, live or not
            assert set(tokens[words:]) == {7}
        assert (set(scores), set(ranks)) == ({7.0}, {7})

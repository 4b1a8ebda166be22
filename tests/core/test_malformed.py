"""Messages that do not add up: what is refused, what is said about it, and that nothing ever crashes."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fd_postproc as fp
from tests import reference
from tests.lib.line import SMALL
from tests.lib.random_steps import random_step
from tests.lib.rows import each

ONE_DRAFT = fp.Layout(max_batch=4, top_k=1, max_draft=1, spec_batch=4)
LEAST = fp.Layout(max_batch=1, top_k=0, max_draft=1, spec_batch=1)
CHANNELS = ("plain", "topk", "spec", "spec_topk")


def words(*values):
    return struct.pack(f"<{len(values)}i", *values)


def topk_header(batch, cols):
    return words(1, batch | cols << 16)


def spec_topk_header(batch, cols, flag=3):
    return words(1, flag | cols << 8, batch)


# channel, layout, payload, what is refused: field, value, bound, request
REFUSED = [
    ("plain", fp.GPU, b"", "length", 0, 8, None),
    ("plain", fp.GPU, words(1, 513), "batch", 513, 512, None),
    ("plain", fp.GPU, words(1, -1), "batch", -1, 512, None),
    ("plain", fp.GPU, words(1, 3, 7, 7), "length", 16, 20, None),
    ("plain", fp.GPU, bytes(2057), "length", 2057, 2056, None),
    ("plain", SMALL, words(1, 8), "batch", 8, 7, None),
    ("topk", fp.GPU, b"", "length", 0, 8, None),
    ("topk", fp.GPU, topk_header(513, 0), "batch", 513, 512, None),
    ("topk", fp.GPU, words(1, -1), "batch", 65535, 512, None),
    ("topk", fp.GPU, topk_header(512, 22), "columns", 22, 21, None),
    ("topk", fp.GPU, topk_header(1, 0), "length", 8, 86028, None),
    ("topk", fp.GPU, topk_header(2, 1), "length", 8, 86032, None),
    ("topk", fp.GPU, bytes(88073), "length", 88073, 88072, None),
    ("topk", fp.Layout(128, 5, 6), topk_header(128, 7), "columns", 7, 6, None),
    ("spec", fp.GPU, b"", "length", 0, 8, None),
    ("spec", fp.GPU, words(1, 257), "batch", 257, 256, None),
    ("spec", fp.GPU, words(1, -1), "batch", -1, 256, None),
    ("spec", fp.GPU, words(1, 2, 6), "length", 12, 16, None),
    ("spec", fp.GPU, words(1, 1, 6), "length", 12, 1056, None),
    ("spec", fp.GPU, words(1, 3, 0, 2, -9), "length", 20, 1064, None),
    ("spec", fp.GPU, words(1, 2, 6, 7), "count", 7, 6, 1),
    ("spec", fp.GPU, bytes(7177), "length", 7177, 7176, None),
    ("spec", SMALL, words(1, 6), "batch", 6, 5, None),
    ("spec", SMALL, words(1, 2, 2, 3), "count", 3, 2, 1),
    ("spec_topk", fp.GPU, b"", "length", 0, 12, None),
    ("spec_topk", fp.GPU, spec_topk_header(513, 0), "batch", 513, 512, None),
    ("spec_topk", fp.GPU, spec_topk_header(-1, 21), "batch", -1, 512, None),
    ("spec_topk", fp.GPU, spec_topk_header(1, 22), "columns", 22, 21, None),
    ("spec_topk", fp.GPU, words(1, -1, 1), "columns", (1 << 24) - 1, 21, None),
    ("spec_topk", fp.GPU, spec_topk_header(1, 0) + words(1), "length", 16, 2060 + 1008 + 4, None),
    ("spec_topk", fp.GPU, spec_topk_header(2, 1) + words(0, 6), "length", 20, 2060 + 2 * 1032, None),
    ("spec_topk", fp.GPU, spec_topk_header(2, 1) + words(-9, 7), "count", 7, 6, 1),
    ("spec_topk", fp.GPU, spec_topk_header(512, 21) + words(*[6] * 511, 1000), "count", 1000, 6, 511),
    ("spec_topk", fp.GPU, bytes(530449), "length", 530449, 530448, None),
    ("spec_topk", fp.Layout(128, 5, 6), spec_topk_header(129, 6), "batch", 129, 128, None),
    ("spec_topk", SMALL, spec_topk_header(1, 4) + words(3), "count", 3, 2, 0),
]


@each("channel, layout, payload, field, value, bound, index", REFUSED)
def test_refused(channel, layout, payload, field, value, bound, index, decode_both):
    error = decode_both(payload, channel, layout=layout)
    assert error.args == (channel, field, value, bound, index)
    assert all(str(number) in str(error) for number in (channel, value, bound))


@each("channel", CHANNELS)
def test_another_message_type_or_channel(channel, decode_both):
    for mtype in 3, 0, -1, 0x300000001, 1 << 70:
        assert decode_both(bytes(12), channel, mtype=mtype).args == (channel, "mtype", mtype, 1, None)
    with pytest.raises(ValueError, match="channel 'spectopk' is not one of 'plain', 'topk', 'spec', "):
        fp.decode(bytes(12), "spectopk")
    header = words(-1, 3, 0) if channel == "spec_topk" else words(-1, 0)
    step = decode_both(header, channel)
    assert (step.batch, step.rows, step.stop_flag, step.counts) == (0, 0, -1, [])


@each("layout", [fp.GPU, fp.Layout(128, 5, 6), SMALL, ONE_DRAFT, LEAST])
@each("channel", CHANNELS)
def test_bounds_themselves_are_good(channel, layout, decode_both):
    # A full message with every number at its bound; one byte more is refused.
    slots = layout.spec_batch if channel == "spec" else layout.max_batch
    depth = layout.max_draft if channel.startswith("spec") else 1
    width = layout.top_k + 1 if channel.endswith("topk") else 1
    size = reference.payload_size(channel, layout)
    headers = {
        "plain": words(1, slots),
        "topk": topk_header(slots, width),
        "spec": words(1, slots, *[depth] * slots),
        "spec_topk": spec_topk_header(slots, width) + words(*[depth] * slots),
    }
    payload = headers[channel].ljust(size, b"\1")
    step = decode_both(payload, channel, layout=layout)
    assert (step.batch, step.rows, step.cols) == (slots, slots * depth, width)
    assert isinstance(decode_both(payload + b"\1", channel, layout=layout), fp.MalformedMessage)


@each("dialect", ["packed", "legacy"])
@each("layout", [SMALL, ONE_DRAFT, LEAST])
@each("channel", CHANNELS)
def test_every_length(channel, layout, dialect, decode_both):
    """What ends before the last byte that it claims is refused; what lies behind that is not looked at."""
    slots = layout.spec_batch if channel == "spec" else layout.max_batch
    cols = layout.top_k + 1 if channel.endswith("topk") else 1
    step = random_step(channel, 1, batch=slots, cols=cols, layout=layout)
    payload = fp.encode(step, dialect, layout=layout)
    claimed, size = len(payload), reference.payload_size(channel, layout)
    whole = decode_both(payload, channel, layout=layout)
    for n in range(size + 1):
        got = decode_both(payload.ljust(size, b"\xff")[:n], channel, layout=layout)
        if n >= claimed:
            assert got == whole, n
        elif isinstance(got, fp.MalformedMessage):
            assert (got.field, got.value) == ("length", n)
            assert n < got.bound <= claimed
        else:  # a plain message, as far as anybody can tell (tests/core/test_unasked.py)
            assert (channel, got.channel) == ("topk", "plain")


INT32 = st.integers(-(1 << 31), (1 << 31) - 1)


@st.composite
def almost_messages(draw):
    """A channel, a layout, and bytes that begin like a message of them, with numbers around each bound."""
    channel, layout = draw(st.sampled_from(CHANNELS)), draw(st.sampled_from([SMALL, ONE_DRAFT, LEAST]))

    def near(bound):
        return draw(st.integers(-1, bound + 1) | st.just(bound) | INT32)

    batch = near(layout.spec_batch if channel == "spec" else layout.max_batch)
    cols = near(layout.top_k + 1) if draw(st.booleans()) else 0
    if channel == "topk":
        header = [near(1), (batch & 0xFFFF) | (cols & 0x7FFF) << 16]
    elif channel == "spec_topk":
        header = [near(1), (near(4) & 0xFF) | (cols & 0x7FFFFF) << 8, batch]
    else:
        header = [near(1), batch]
    requests = min(max(batch, 0), 8)
    firsts = [
        draw(st.integers(-9, layout.max_draft) | st.integers(-1, layout.max_draft + 1))
        for _ in range(requests)
    ]
    body = draw(st.binary(max_size=8)) * draw(st.integers(0, 60))
    payload = words(*header, *firsts) + body
    size = reference.payload_size(channel, layout)
    length = draw(st.sampled_from([size, size, size, size - 1, size + 1]) | st.integers(0, len(payload)))
    return channel, layout, payload.ljust(length, b"\x41")[:length]


@given(message=almost_messages())
@example(message=("spec_topk", SMALL, words(1, 0x403, 7, *[2] * 7).ljust(544, b"\0")))
def test_almost_messages(decode_both, message):
    channel, layout, payload = message
    decode_both(payload, channel, layout=layout)

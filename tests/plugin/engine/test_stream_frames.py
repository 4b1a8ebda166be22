"""Frames of FastDeploy's ZeroMQ road: what is packed is what is read, and damage is refused by name."""

import contextlib
import struct

import numpy as np
import pytest

from fd_postproc.fastdeploy.stream_frames import Content, is_frame, opened, packed
from tests.lib.quiet import imported

RNG = np.random.default_rng(3)


def rows(slots, columns):
    return (
        RNG.integers(0, 2**31, (slots, columns)),
        RNG.random((slots, columns), np.float32),
        RNG.integers(1, 99, slots),
    )


CONTENTS = {
    "nothing": Content(0, np.zeros(0, np.int64)),
    "tokens": Content(3, np.array([5, -1, -9])),
    "logprobs": Content(3, np.array([5, 6, 7]), rows(3, 21)),
    "fewer rows than slots": Content(3, np.array([5, 6, 7]), rows(1, 4)),
    "a vocabulary": Content(2, np.array([5, 6]), rows(2, 50_000)),
    "2048 slots": Content(2048, np.arange(2048), rows(2048, 3)),
    "masks": Content(2, np.array([5, 6]), None, [np.array([1, 2, 3], np.int32), np.array([], np.int64)]),
    "prompts": Content(4, np.arange(4), rows(4, 2), None, {1: rows(7, 3), 3: rows(1, 1)}),
    "pooled": Content(
        4,
        None,
        pooled={
            0: RNG.random(8, np.float32),
            2: RNG.random((2, 3)),
            3: np.ones((), np.float16),
        },
    ),
}


def same(one, other):
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "items"):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one == other


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_packed_is_what_is_read(name):
    frame = packed(CONTENTS[name])
    assert is_frame(frame)
    assert same(opened(frame), CONTENTS[name])


@pytest.mark.parametrize("name", ["tokens", "logprobs", "masks", "prompts", "pooled"])
def test_a_frame_that_ends_early_is_refused(name):
    frame = packed(CONTENTS[name])
    for end in range(0, len(frame), 1 if len(frame) < 500 else 7):
        with pytest.raises((ValueError, struct.error)):
            opened(frame[:end])


@pytest.mark.parametrize("name", ["tokens", "logprobs", "masks", "prompts", "pooled"])
def test_a_damaged_frame_is_refused_or_is_another_one(name):
    """Nothing but ValueError, whichever byte it is."""
    frame = packed(CONTENTS[name])
    for at in range(min(len(frame), 300)):
        for bit in (0, 7):
            damaged = bytearray(frame)
            damaged[at] ^= 1 << bit
            with contextlib.suppress(ValueError):
                opened(bytes(damaged))


def section(frame, name, content):
    """A frame with one section more."""
    count = struct.unpack_from("<i", frame, 24)[0]
    head = frame[:24] + struct.pack("<i", count + 1) + frame[28:]
    return head + bytes(-len(head) % 8) + struct.pack("<8sq", name, len(content)) + content


def test_sections_that_are_not_known():
    frame = packed(CONTENTS["masks"])
    assert same(opened(section(frame, b"xlater", b"anything")), CONTENTS["masks"])
    with pytest.raises(ValueError, match="section b'later'"):
        opened(section(frame, b"later", b"anything"))
    with pytest.raises(ValueError, match="version b'2'"):
        opened(b"fdstep/2" + frame[8:])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (Content(1, np.array([0.5])), "tokens of dtype float64"),
        (
            Content(1, np.array([5]), (np.array([[2**31]]), np.zeros((1, 1), np.float32), np.array([1]))),
            "no room",
        ),
        (Content(1, np.array([5]), rows(2, 3)), "for 1 slots"),
        (Content(2, np.array([5, 6]), (*rows(2, 3)[:2], np.array([1]))), "shapes"),
        (Content(2, np.array([5, 6]), None, [np.array([1])]), "1 sampling masks"),
        (Content(1, None, pooled={0: np.array(["a"])}), "pooling output"),
    ],
)
def test_what_has_no_room_is_said(content, text):
    with pytest.raises(ValueError, match=text):
        packed(content)


# ---- The worker's builder ------------------------------------------------------------------------------


@pytest.fixture
def builder(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,streams/1")
    return imported("fd_postproc.fastdeploy.worker.streams").StreamBuilder(lambda *a, **n: [a, n])


@pytest.mark.framework
def test_frames_are_sent_only_to_an_engine_that_reads_them(builder, monkeypatch):
    tokens = imported("paddle").to_tensor([[5], [6]])
    assert is_frame(builder(tokens))
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    assert isinstance(builder(tokens), list)
    monkeypatch.delenv("FD_POSTPROC_PEER")
    assert isinstance(builder(tokens, logprobs=None), list)


@pytest.mark.framework
def test_what_is_not_known_is_left_to_fastdeploy(builder):
    tokens = imported("paddle").to_tensor([[5], [6]])
    assert builder(tokens, something_new=1) == [(tokens,), {"something_new": 1}]
    assert isinstance(builder([5, 6]), list)
    assert isinstance(builder(imported("paddle").to_tensor([0.5])), list)
    assert is_frame(builder(tokens))


@pytest.mark.framework
def test_the_builder_takes_fastdeploys_place_for_a_peer_only(monkeypatch):
    module = imported("fastdeploy.model_executor.pre_and_post_process")
    entry = imported("fd_postproc.fastdeploy.worker.entry")
    log = imported("logging").getLogger("a test")
    stock = module._build_stream_transfer_data
    monkeypatch.delenv("FD_POSTPROC_PEER", raising=False)
    entry._take_over_streams(log)
    assert module._build_stream_transfer_data is stock
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,streams/1")
    try:
        entry._take_over_streams(log)
        assert module._build_stream_transfer_data.original is stock
        entry._take_over_streams(log)  # once is enough
        assert module._build_stream_transfer_data.original is stock
    finally:
        module._build_stream_transfer_data = stock

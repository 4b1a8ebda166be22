"""Frames of FastDeploy's ZeroMQ road: what is packed is what is read, and damage is refused by name."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, strategies

from fd_postproc._core import _rows_bytes, _step_of_tokens
from fd_postproc.fastdeploy.engine.framed import Framed
from fd_postproc.fastdeploy.stream_frames import Content, is_frame, opened, packed, sections_of
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
    "masks": Content(2, np.array([5, 6]), None, [[1, 2, 3], []]),
    "a part": Content(2, np.array([5, 6]), rows(2, 3), span=(3, 9)),
    "a version": Content(1, np.array([5]), weights="step-40"),
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


@pytest.mark.parametrize("name", ["tokens", "logprobs", "masks", "prompts", "pooled", "a part", "a version"])
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


def section(frame, name, content, marks=1):
    """A frame with one section more."""
    count = struct.unpack_from("<i", frame, 12)[0]
    head = frame[:12] + struct.pack("<i", count + 1) + frame[16:]
    return head + struct.pack("<8sI4xq", name, marks, len(content)) + content + bytes(-len(content) % 8)


def test_sections_that_are_not_known():
    frame = packed(CONTENTS["masks"])
    assert same(opened(section(frame, b"later", b"anything", 0)), CONTENTS["masks"])
    assert same(opened(section(frame, b"later", b"anything", 2)), CONTENTS["masks"])  # another mark
    with pytest.raises(ValueError, match="section b'later', without which it cannot be understood"):
        opened(section(frame, b"later", b"anything"))
    with pytest.raises(ValueError, match="version b'3'"):
        opened(b"fdstep/3" + frame[8:])


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda f: section(f, b"masks/2", b""), "two sections b'masks/2'"),
        (lambda f: section(f, b"span", bytes(7)), "7 bytes of a span"),
        (lambda f: section(f, b"span", struct.pack("<ii", 1, 2)), "slots 1 to 3 of a step of 2"),
        (lambda f: section(f, b"span", struct.pack("<ii", -1, 2)), "slots -1 to 1"),
        (lambda f: section(f, b"span", struct.pack("<ii", 0, 1 << 17)), "of a step of 131072"),
        (lambda f: f[:12] + struct.pack("<i", 3) + f[16:], "says that it has 3 sections, and has 2"),
        (lambda f: section(f, b"compact", b""), "a compact step, and sections"),
        (lambda f: f + bytes(8), "ends within a section, after 8 bytes"),
        (lambda f: f[:8] + struct.pack("<i", 1 << 17) + f[12:], "131072 slots"),
        (lambda f: f[:8] + struct.pack("<i", -1) + f[12:], "-1 slots"),
        (lambda f: f[:12] + struct.pack("<i", 65) + f[16:], "65 sections"),
        (lambda f: f[:12] + struct.pack("<i", -1) + f[16:], "-1 sections"),
        (lambda f: f[:8] + struct.pack("<i", 3) + f[12:], "bytes of tokens for 3 slots"),
        (lambda f: f[:48] + struct.pack("<q", 1 << 62) + f[56:], "ends within a section"),
        (lambda f: f[:48] + struct.pack("<q", -8) + f[56:], "ends within a section"),
    ],
)
def test_a_table_of_sections_that_does_not_add_up(damage, text):
    with pytest.raises(ValueError, match=text):
        opened(damage(packed(CONTENTS["masks"])))


@given(strategies.binary(max_size=200), strategies.integers(0, 4), strategies.sampled_from([0, 1]))
def test_whatever_is_in_a_section_is_refused_or_read(content, which, keep):
    """ValueError or a step, for what is opened whole and what the engine makes of it."""
    name = [b"logprobs", b"masks/2", b"prompt", b"pooled", b"span"][which]
    frame = section(packed(CONTENTS["tokens"] if keep else Content(3)), name, content)
    with contextlib.suppress(ValueError):
        opened(frame)
    with contextlib.suppress(ValueError):
        Framed(sections_of(frame), True, None)


@given(
    strategies.lists(
        strategies.one_of(strategies.integers(-(2**63), 2**63 - 1), strategies.integers(-9, 40)), max_size=12
    ),
    strategies.integers(0, 13),
    strategies.integers(1, 4),
    strategies.sets(strategies.integers(-1, 13)),
    strategies.booleans(),
)
def test_a_step_of_a_frame(tokens, n_rows, columns, apart, scored):
    """Which slots are in the step, and with what: as plain Python says."""
    n_rows = min(n_rows, len(tokens))
    ids = RNG.integers(0, 40, (n_rows, columns), np.int32)
    for slot in range(n_rows):
        if slot % 3 and 0 <= tokens[slot] < 2**31:
            ids[slot, 0] = tokens[slot]
    scores = RNG.random((n_rows, columns), np.float32)
    ranks = np.arange(n_rows, dtype=np.int32)
    whole = np.array(tokens, np.int64)
    step, told = _step_of_tokens(
        whole.tobytes(), _rows_bytes(ids, scores, ranks, len(tokens)) if scored else None, apart
    )
    expected, counts = [], []
    for slot, token in enumerate(tokens):
        fits = token < 2**31 and (not scored or (slot < n_rows and ids[slot, 0] == token))
        if token < 0:
            counts.append(max(token, -(2**31)))
        elif fits and slot not in apart:
            counts.append(1)
        else:
            counts.append(-1)
            expected.append(slot)
    live = [slot for slot, count in enumerate(counts) if count == 1]
    assert (step.counts, told) == (counts, set(expected))
    assert [row[0] for row in step.ids.tolist()] == [tokens[slot] for slot in live]
    if scored:
        assert step.ids.tolist() == ids[live].tolist()
        assert np.array_equal(np.asarray(step.scores), scores[live])
        assert step.ranks.tolist() == ranks[live].tolist()


def test_rows_that_do_not_fit_are_refused():
    tokens, good = np.array([5, 6]).tobytes(), _rows_bytes(*rows(2, 3), 2)
    for bad in (b"", good[:7], good[:-1], good + b"1", struct.pack("<ii", 3, 1), struct.pack("<ii", 1, 0)):
        with pytest.raises(ValueError, match="log-probabilities"):
            _step_of_tokens(tokens, bad, ())
    for rows_told, cols in ((-1, 3), (2, -3), (2, 2**31 - 1), (2**31 - 1, 3)):
        with pytest.raises(ValueError, match="log-probabilities"):
            _step_of_tokens(tokens, struct.pack("<ii", rows_told, cols) + good[8:], ())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (Content(1, np.array([0.5])), "tokens has dtype float64"),
        (
            Content(1, np.array([5]), (np.array([[2**31]]), np.zeros((1, 1), np.float32), np.array([1]))),
            "no room",
        ),
        (Content(1, np.array([5]), (*rows(1, 3)[:2], np.array([2**31]))), r"ranks\[0\]: a number"),
        (Content(1, np.array([5]), rows(1, 0)), "shapes"),
        (Content(2, np.array([5])), "1 tokens for 2 slots"),
        (Content(1 << 17, np.zeros(1 << 17, np.int64)), "131072 slots"),
        (Content(2, np.array([5, 6]), (*rows(2, 3)[:2], np.array([1]))), "shapes"),
        (Content(2, np.array([5, 6]), None, [np.array([1])]), "1 sampling masks"),
        (Content(1, None, pooled={0: np.array(["a"])}), "pooling output"),
    ],
)
def test_what_has_no_room_is_said(content, text):
    with pytest.raises((ValueError, TypeError), match=text):
        packed(content)


def test_rows_of_more_than_the_slots_are_left_out():
    ids, scores, ranks = rows(5, 3)
    assert same(opened(packed(Content(2, np.array([5, 6]), (ids, scores, ranks)))).rows[0], ids[:2])


# ---- The worker's builder ------------------------------------------------------------------------------


@pytest.fixture
def builder(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,streams/2")
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
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,streams/2")
    try:
        entry._take_over_streams(log)
        assert module._build_stream_transfer_data.original is stock
        entry._take_over_streams(log)  # once is enough
        assert module._build_stream_transfer_data.original is stock
    finally:
        module._build_stream_transfer_data = stock

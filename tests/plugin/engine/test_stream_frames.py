"""Steps over FastDeploy's ZeroMQ socket as compact frames: what is packed is read, damage is refused."""

import contextlib
import os
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies

from fd_postproc._core import Sampled, _is_frame, _open_streamed
from fd_postproc.errors import MalformedMessage
from fd_postproc.fastdeploy.engine.processor.frame_step import Framed
from fd_postproc.fastdeploy.stream_frames import Content, packed
from fd_postproc.fastdeploy.worker.stream_builder import numbered
from tests.lib.children import in_a_child
from tests.lib.quiet import imported
from tests.lib.rows import each
from tests.reference.frames import FrameHeader, seal
from tests.reference.streams import open_streamed, with_section

RNG = np.random.default_rng(3)


def lists(*parts):
    """FastDeploy's LogprobsLists, as far as it is asked here."""
    return parts


class WithArrays(Framed):
    """Prompts' log-probabilities stay arrays, for which Paddle is not needed."""

    def _tensors(self, arrays):
        return arrays


def framed(frame, logprobs=True):
    """What the engine makes of it."""
    return WithArrays(*_open_streamed(frame, False, 6), logprobs, lists)


def rows(tokens, columns, n=None):
    n = len(tokens) if n is None else n
    ids = RNG.integers(0, 2**31, (n, columns))
    ids[:, 0] = tokens[:n]
    return ids, RNG.random((n, columns), np.float32), RNG.integers(1, 99, n)


def prompt(n, columns):
    ids = RNG.integers(0, 2**31, (n, columns))
    return ids, RNG.random((n, columns), np.float32), RNG.integers(1, 99, n)


FEW = np.array([5, -1, 7, -9])
CONTENTS = {
    "nothing": Content(0, np.zeros(0, np.int64)),
    "tokens": Content(4, FEW),
    "wide tokens": Content(4, np.array([5, 1 << 31, -1, 1 << 62])),
    "logprobs": Content(3, np.array([5, 6, 7]), rows([5, 6, 7], 21)),
    "codes between": Content(4, FEW, rows(FEW, 3)),
    "fewer rows than slots": Content(3, np.array([5, 6, 7]), rows([5], 4, 1)),
    "rows of other tokens": Content(3, np.array([5, 6, 7]), rows([5, 9, 7], 4)),
    "wide ids": Content(2, np.array([5, 6]), (np.array([[5, 1], [6, 1 << 31]]), *rows([5, 6], 2)[1:])),
    "wide ranks": Content(2, np.array([5, 6]), (*rows([5, 6], 2)[:2], np.array([1 << 40, 2]))),
    "a vocabulary": Content(2, np.array([5, 6]), rows([5, 6], 50_000)),
    "2048 slots": Content(2048, np.arange(2048), rows(np.arange(2048), 3)),
    "masks": Content(2, np.array([5, 6]), None, [[1, 2, 3], []]),
    "a part": Content(9, np.arange(9), rows(np.arange(9), 3), [[slot] for slot in range(9)], span=(3, 2)),
    "prompts": Content(4, np.arange(4), rows(np.arange(4), 2), None, {1: prompt(7, 3), 3: prompt(1, 1)}),
    "pooled": Content(
        4, None, pooled={0: RNG.random(8, np.float32), 2: RNG.random((2, 3)), 3: np.ones((), np.float16)}
    ),
    "the first rows of more": Content(3, np.array([5, 6, 7]), tuple(part[:1] for part in rows([5, 6, 7], 4))),
    "more rows than slots": Content(2, np.array([5, 6]), rows([5, 6, 7, 8, 9], 3)),
    "nothing pooled": Content(2, None, sender=7, number=9),
}


def same(one, other):
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "items"):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one == other


def row_of(content, slot):
    """The log-probabilities of a slot as lists."""
    return [part[slot : slot + 1].tolist() for part in content.rows]


@each("name", CONTENTS)
def test_what_is_packed_is_what_is_read(name):
    content, frame = CONTENTS[name], packed(CONTENTS[name])
    assert _is_frame(frame)
    made, told = framed(frame), open_streamed(frame)
    assert (told.slots, told.sender, told.number) == (content.slots, content.sender, content.number)
    first, n = content.span or (0, content.slots)
    assert made.is_part == (n != content.slots)
    for slot in range(content.slots):
        entry = made.entry(slot)
        if not first <= slot < first + n:
            assert entry is None
        elif content.tokens is None:
            assert (entry is not None) == (slot in content.pooled)
            if entry is not None:
                assert entry.tokens is None
                assert same(entry.pooler_output, content.pooled[slot])
                assert same(told.pooled[slot], content.pooled[slot])
        else:
            assert entry.tokens.tolist() == [content.tokens[slot]] == [told.tokens[slot]]
            if content.rows is not None and content.tokens[slot] >= 0:
                assert list(entry.logprobs.tolists()) == row_of(content, slot)
            assert entry.sampling_mask == (None if content.masks is None else content.masks[slot])
    assert same(made._prompts, content.prompts)
    assert same(told.prompts, content.prompts)
    without = framed(frame, False)  # log-probabilities for clients
    assert without.step.channel == "plain"
    for slot in range(first, first + n if content.tokens is not None else first):
        assert without.entry(slot).tokens.tolist() == [content.tokens[slot]]


@each("name", ["logprobs", "masks", "prompts", "pooled"])
def test_a_damaged_frame_is_refused(name):
    """By its checksum; and with a right one it is refused or another one."""
    frame = packed(CONTENTS[name])
    for end in range(0, len(frame), 7):
        with pytest.raises(MalformedMessage):
            framed(frame[:end])
    for at in range(0, min(len(frame), 400), 2):
        for bit in (0, 7):
            damaged = bytearray(frame)
            damaged[at] ^= 1 << bit
            with pytest.raises(MalformedMessage):
                framed(bytes(damaged))
            with contextlib.suppress(ValueError):
                made = framed(seal(bytes(damaged)))
                for slot in range(made.step.batch if made.step.batch < 99 else 0):
                    made.entry(slot)


def test_sections_that_are_not_known():
    frame = packed(CONTENTS["masks"])
    assert framed(with_section(frame, b"later", b"anything", 0)).masks == {0: [1, 2, 3], 1: []}
    assert framed(with_section(frame, b"later", b"anything", 2)).step.counts == [1, 1]  # another mark
    with pytest.raises(MalformedMessage, match="'later'"):
        framed(with_section(frame, b"later", b"anything"))
    assert framed(with_section(frame, b"weights", b"step-40", 0)).step.counts == [1, 1]


def test_a_frame_of_another_version():
    frame = seal(FrameHeader.unpack(packed(CONTENTS["tokens"]))._replace(version=2).pack() + bytes(16))
    assert _is_frame(frame)
    with pytest.raises(MalformedMessage, match="version"):
        framed(frame)
    assert not _is_frame(frame[:63])
    assert not _is_frame(bytes(80))


def header(frame, **fields):
    return seal(FrameHeader.unpack(frame)._replace(**fields).pack() + frame[64:])


token = struct.Struct("<iiq").pack


@each(
    "damage, text",
    [
        (lambda f: with_section(f, b"masks/2", b""), "sections"),
        (lambda f: with_section(f, b"span", bytes(7)), "7 bytes of a span"),
        (lambda f: with_section(f, b"span", struct.pack("<ii", 1, 2)), "slots 1 to 3 of a step of 2"),
        (lambda f: with_section(f, b"span", struct.pack("<ii", -1, 2)), "slots -1 to 1"),
        (lambda f: with_section(f, b"span", struct.pack("<ii", 0, -1)), "slots 0 to -1"),
        (lambda f: with_section(f, b"tokens", token(0, 0, 5)), r"slots \[0\] are in the body"),
        (lambda f: with_section(f, b"tokens", token(2, 0, 5)), "of slot 2"),
        (lambda f: with_section(f, b"tokens", token(-1, 0, 5)), "of slot -1"),
        (lambda f: with_section(f, b"tokens", token(0, -1, 5)), "with -1 columns"),
        (lambda f: with_section(f, b"tokens", token(0, 0, -5)), "token -5"),
        (lambda f: with_section(f, b"tokens", token(0, 9, 5)), "ends after 0 bytes of 72"),
        (lambda f: header(f, total=len(f) + 8) + bytes(8), "checksum|sections|length"),
        (lambda f: header(f, batch=(1 << 16) + 1), "65537"),
        (lambda f: header(f, batch=-1), "-1"),
        (lambda f: header(f, batch=3), "request 2 claims 5 tokens"),
        (lambda f: header(f, channel=2), "channel"),
        (lambda f: header(f, channel=9), "channel"),
    ],
)
def test_what_does_not_add_up(damage, text):
    with pytest.raises(ValueError, match=text):
        framed(damage(packed(CONTENTS["masks"])))


@given(strategies.binary(max_size=200), strategies.integers(0, 4), strategies.sampled_from([0, 1]))
def test_whatever_is_in_a_section_is_refused_or_read(content, which, keep):
    """ValueError or a step."""
    name = [b"tokens", b"masks/2", b"prompt", b"pooled", b"span"][which]
    whole = packed(CONTENTS["tokens"] if keep else Content(3, np.full(3, -1)))
    assert framed(whole).step.batch  # not all is refused
    frame = with_section(whole, name, content)
    with contextlib.suppress(ValueError):
        made = framed(frame)
        for slot in range(4):
            made.entry(slot)


class Elsewhere:
    """A slot that is far away, and compared as one that is not."""

    def __index__(self):
        return 1 << 40

    def __ge__(self, other):
        return True

    __lt__ = __ge__


def test_a_slot_that_is_compared_as_another_one():
    def work():
        assert Sampled(np.array([1, 2]), None, 2, 0, 2, [Elsewhere()]).apart == []

    in_a_child(work)


@given(
    strategies.lists(strategies.integers(-(2**63), 2**63 - 1) | strategies.integers(-9, 40), max_size=12),
    strategies.integers(0, 13),
    strategies.integers(1, 4),
    strategies.sets(strategies.integers(-1, 13)),
    strategies.booleans(),
    strategies.tuples(strategies.integers(0, 12), strategies.integers(0, 12)),
)
def test_what_is_in_the_body(tokens, n_rows, columns, apart, scored, borders):
    """Which slots are in the body, and with what: as plain Python says."""
    n_rows = min(n_rows, len(tokens))
    begin, end = sorted(min(border, len(tokens)) for border in borders)
    ids = RNG.integers(0, 40, (n_rows, columns))
    for slot in range(n_rows):
        if slot % 3 and 0 <= tokens[slot] < 2**31:
            ids[slot, 0] = tokens[slot]
        if slot % 5 == 4:
            ids[slot, -1] = 1 << 33
    scores = RNG.random((n_rows, columns), np.float32)
    ranks = np.arange(n_rows)
    given_rows = (ids, scores, ranks) if scored else None
    whole = np.array(tokens, np.int64)
    sampled = Sampled(whole, given_rows, len(tokens), begin, end, apart)
    expected, counts = [], []
    for slot, token in enumerate(tokens):
        row_fits = slot < n_rows and ids[slot, 0] == token and ids[slot].max() < 2**31
        if not begin <= slot < end:
            counts.append(-1)
        elif token < 0:
            counts.append(max(token, -(2**31)))
        elif token < 2**31 and (not scored or row_fits) and slot not in apart:
            counts.append(1)
        else:
            counts.append(-1)
            expected.append(slot)
    live = [slot for slot, count in enumerate(counts) if count == 1]
    assert sampled.apart == expected
    step, sections, sender = _open_streamed(sampled.frame(b"", 7, 8), False, 6)
    assert (step.counts, sections, sender, step.seq) == (counts, {}, 7, 8)
    assert [row[0] for row in step.ids.tolist()] == [tokens[slot] for slot in live]
    for slot in expected:
        assert sampled.token(slot)[0] == tokens[slot]
    if scored:
        assert step.ids.tolist() == ids[live].tolist()
        assert np.array_equal(np.asarray(step.scores), scores[live])
        assert step.ranks.tolist() == ranks[live].tolist()


@each(
    "content, text",
    [
        (Content(1, np.array([0.5])), "tokens has dtype float64"),
        (Content(1, np.array([5]), prompt(1, 0)), "shapes"),
        (Content(2, np.array([5])), "1 tokens for 2 slots"),
        (Content(1 << 17, np.zeros(1 << 17, np.int64)), "131072; a frame has at most 65536"),
        (Content(2, np.array([5, 6]), (*prompt(2, 3)[:2], np.array([1]))), "shapes"),
        (Content(2, np.array([5, 6]), None, [np.array([1])]), "1 sampling masks"),
        (Content(2, np.array([5, 6]), span=(1, 2)), "slots 1 to 3"),
        (Content(1, None, pooled={0: np.array(["a"])}), "pooling output"),
    ],
)
def test_what_has_no_room_is_said(content, text):
    with pytest.raises((ValueError, TypeError), match=text):
        packed(content)


# ---- The worker's builder ------------------------------------------------------------------------------


@pytest.fixture
def builder(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,streams/3")
    return imported("fd_postproc.fastdeploy.worker.stream_builder").StreamBuilder(lambda *a, **n: [a, n])


@pytest.mark.framework
def test_what_is_cut_from_one_tensor_is_not_copied_with_its_neighbours():
    """FastDeploy cuts pooled rows, and a prompt's log-probabilities, from the tensor of the batch."""
    paddle = imported("paddle")
    content_of = imported("fd_postproc.fastdeploy.worker.stream_builder").content_of
    whole = paddle.to_tensor(np.arange(32, dtype=np.float32).reshape(4, 8), place=paddle.CPUPlace())
    pooled = content_of(None, [whole[0], None, whole[2:], whole[3].astype("bfloat16")]).pooled
    assert {slot: array.tolist() for slot, array in pooled.items()} == {
        0: whole[0].tolist(), 2: whole[2:].tolist(), 3: whole[3].tolist(),
    }  # fmt: skip
    ids = whole.astype("int64")
    rows = SimpleNamespace(logprob_token_ids=ids[1:3], logprobs=whole[1:3], selected_token_ranks=ids[1:3, 0])
    prompts = content_of(ids[:2, :1], prompt_logprobs_list=[rows, None]).prompts
    assert [part.tolist() for part in prompts[0]] == [ids[1:3].tolist(), whole[1:3].tolist(), [8, 16]]
    for array, tensor in ((pooled[0], whole[0]), (pooled[2], whole[2:]), (prompts[0][1], whole[1:3])):
        assert array.ctypes.data == tensor.data_ptr()


@pytest.mark.framework
def test_frames_are_sent_only_to_an_engine_that_reads_them(builder, monkeypatch, log):
    tokens = imported("paddle").to_tensor([[5], [6]])
    assert _is_frame(builder(tokens))
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    assert isinstance(builder(tokens), list)
    monkeypatch.delenv("FD_POSTPROC_PEER")
    assert isinstance(builder(tokens, logprobs=None), list)
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,streams/3")  # what is not known is FastDeploy's
    assert builder(tokens, something_new=1) == [(tokens,), {"something_new": 1}]
    assert isinstance(builder([5, 6]), list)
    assert isinstance(builder(imported("paddle").to_tensor([0.5])), list)
    assert _is_frame(builder(tokens))
    assert log.text.count("worker side active") == 1


@pytest.mark.framework
@pytest.mark.falls_back
def test_a_builder_that_raises_is_fastdeploys_and_for_good_after_three(builder, monkeypatch):
    tokens = imported("paddle").to_tensor([[5], [6]])
    module = imported("fd_postproc.fastdeploy.worker.stream_builder")
    with monkeypatch.context() as planted:
        planted.setattr(module, "packed", lambda *_: 1 // 0)
        assert isinstance(builder(tokens), list)
    assert _is_frame(builder(tokens))
    with monkeypatch.context() as planted:
        planted.setattr(module, "packed", lambda *_: 1 // 0)
        assert [isinstance(builder(tokens), list) for _ in range(3)] == [True] * 3
    assert isinstance(builder(tokens), list)


@pytest.mark.framework
def test_the_builder_takes_fastdeploys_place_for_a_peer_only(monkeypatch):
    module = imported("fastdeploy.model_executor.pre_and_post_process")
    entry = imported("fd_postproc.fastdeploy.worker.entry")
    log = imported("logging").getLogger("a test")
    stock = module._build_stream_transfer_data
    monkeypatch.delenv("FD_POSTPROC_PEER", raising=False)
    entry._take_over_streams(log)
    assert module._build_stream_transfer_data is stock
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,streams/3")
    gate = imported("fd_postproc.fastdeploy.gate.judgements").gate
    with monkeypatch.context() as new_code:
        new_code.setattr(gate, "record", {})
        entry._take_over_streams(log)
        assert module._build_stream_transfer_data is stock
    try:
        entry._take_over_streams(log)
        assert module._build_stream_transfer_data.original is stock
        entry._take_over_streams(log)  # once is enough
        assert module._build_stream_transfer_data.original is stock
    finally:
        module._build_stream_transfer_data = stock


def test_a_forked_process_is_another_sender():
    """Else the engine counts the frames of the two as doubled."""
    before, after, told = numbered(Content(1)), numbered(Content(1)), os.pipe()
    assert (after.sender, after.number) == (before.sender, before.number + 1)
    in_a_child(lambda: os.write(told[1], packed(numbered(Content(1)))))
    os.close(told[1])
    with os.fdopen(told[0], "rb") as answer:
        sender = FrameHeader.unpack(answer.read()).sender
    assert sender not in (0, before.sender)

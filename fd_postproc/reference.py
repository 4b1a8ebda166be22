"""The messages in plain Python: what the C code must do, written to be read.

Each channel's message is declared here as the C struct that FastDeploy's own ops declare, and read through
that struct; the fast code (``_wire.h``) computes offsets instead.  The tests hold the two against each other.
Nothing here is fast, and nothing else in the package uses it.

A message is a full struct, or any prefix of it that still holds everything its header and counts claim.

Source: the ops in PaddlePaddle/FastDeploy's ``custom_ops/gpu_ops`` (commit 145b5443 for the legacy dialect,
f7a1c676 and pull requests #7860, #7861, #7883, #7884 for the packed one): save_output and get_output (plain),
save_output_topk and get_output_topk (topk), speculate_save_output, mtp_save_first_token and
speculate_get_output (spec), speculate_save_output_topk, mtp_save_first_token_with_topk and
speculate_get_output_topk (spec_topk).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, MutableSequence
from ctypes import Structure, addressof, c_float, c_int32, c_int64, sizeof
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from .errors import MalformedMessage
from .layout import GPU, Layout

MTYPE = 1  # FastDeploy's only System V message type
FILLER_ID, FILLER_SCORE = -1, 0.0  # what a legacy sender writes into columns that nobody asked for

_HAS_COUNTS = ("spec", "spec_topk")  # elsewhere the sign of a slot's token says whether it holds one
_HAS_LOGPROBS = ("topk", "spec_topk")


# ---- The structs ---------------------------------------------------------------------------------------


@functools.cache
def structure(channel: str, layout: Layout = GPU) -> type[Structure]:
    """C struct of a message; `mtype` comes first and is no part of the payload."""
    batch, draft, columns = layout.max_batch, layout.max_draft, layout.top_k + 1
    fields: dict[str, Any]
    if channel == "plain":
        fields = {"words": c_int32 * 2, "ids": c_int32 * batch}
    elif channel == "topk":
        # Flat: a packed sender makes the rows as narrow as the columns it sends, and leaves no gaps.
        cells = batch * columns
        fields = {
            "words": c_int32 * 2,
            "ids": c_int32 * cells,
            "scores": c_float * cells,
            "ranks": c_int32 * batch,
        }
    elif channel == "spec":
        slots = layout.spec_batch
        fields = {"words": c_int32 * 2, "counts": c_int32 * slots, "ids": c_int32 * draft * slots}
    elif channel == "spec_topk":
        # A packed sender leaves gaps here: rows are always top_k + 1 columns apart.
        slot = _struct(
            "Slot", ids=c_int32 * columns * draft, scores=c_float * columns * draft, ranks=c_int32 * draft
        )
        fields = {"words": c_int32 * 3, "counts": c_int32 * batch, "slots": slot * batch}
    else:
        raise ValueError(f"channel {channel!r} is not one of 'plain', 'topk', 'spec', 'spec_topk'")
    return _struct(channel, mtype=c_int64, **fields)


def _struct(name: str, **fields: type) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(fields.items())})


def payload_size(channel: str, layout: Layout = GPU) -> int:
    """Bytes of a full message as FastDeploy sends it: the struct with its tail padding, less `mtype`."""
    return sizeof(structure(channel, layout)) - sizeof(c_int64)


class _Capacity(NamedTuple):
    slots: int  # requests
    depth: int  # tokens of one request
    width: int  # columns of one token


def _capacity(channel: str, layout: Layout) -> _Capacity:
    return _Capacity(
        slots=layout.spec_batch if channel == "spec" else layout.max_batch,
        depth=layout.max_draft if channel in _HAS_COUNTS else 1,
        width=layout.top_k + 1 if channel in _HAS_LOGPROBS else 1,
    )


class _Row(NamedTuple):
    """Where one token lies: ids[first:first + cols], scores[first:first + cols], ranks[rank]."""

    ids: Any
    scores: Any
    first: int
    ranks: Any
    rank: int


def _row(message: Any, channel: str, i: int, j: int, stride: int) -> _Row:
    """Token j of request i.  `stride`: columns from one request to the next in a topk message."""
    if channel == "plain":
        return _Row(message.ids, None, i, None, 0)
    if channel == "topk":
        return _Row(message.ids, message.scores, stride * i, message.ranks, i)
    if channel == "spec":
        return _Row(message.ids[i], None, j, None, 0)
    slot = message.slots[i]
    return _Row(slot.ids[j], slot.scores[j], 0, slot.ranks, j)


# ---- Reading -------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    stop_flag: int
    flag: int  # 3 target, 4 draft; 0 on channels that have no such word
    batch: int
    cols: int
    dialect: str


def _read_header(words: Any, channel: str, layout: Layout) -> _Header:
    """The header words.  The packed dialect hides the number of columns in upper bits that legacy leaves 0.

    PR #7860/#7861 (topk): batch | cols << 16.  PR #7883/#7884 (spec_topk): flag | cols << 8.
    """
    flag, batch, cols = 0, words[1], 0
    unsigned = words[1] % (1 << 32)
    if channel == "topk":
        batch, cols = unsigned & 0xFFFF, unsigned >> 16
    elif channel == "spec_topk":
        flag, cols, batch = unsigned & 0xFF, unsigned >> 8, words[2]
    dialect = "packed" if cols else "legacy"
    return _Header(words[0], flag, batch, cols or _capacity(channel, layout).width, dialect)


class _Message(NamedTuple):
    """A message that was checked."""

    struct: Any
    channel: str
    header: _Header
    counts: list[int]  # tokens of each request, or its negative code
    stride: int
    claimed: int  # where the last byte ends that it claims to hold

    def row(self, i: int, j: int) -> _Row:
        return _row(self.struct, self.channel, i, j, self.stride)

    def rows(self) -> Iterator[_Row]:
        """The accepted tokens, in order; codes have none."""
        for i, count in enumerate(self.counts):
            for j in range(count):
                yield self.row(i, j)


def _open(payload: bytes, channel: str, layout: Layout) -> _Message:
    """Check everything that a message claims, in the order in which it is read."""

    def refuse(field: str, value: int, bound: int, index: int | None = None) -> NoReturn:
        raise MalformedMessage(channel, field, value, bound, index)

    capacity, size, received = _capacity(channel, layout), payload_size(channel, layout), len(payload)
    if received > size:
        refuse("length", received, size)

    # Zeros stand for what was not received; nothing below uses one without finding out.
    message: Any = structure(channel, layout).from_buffer_copy(bytes(8) + payload.ljust(size, b"\0"))
    claimed = sizeof(message.words)
    if received < claimed:
        refuse("length", received, claimed)

    header = _read_header(message.words, channel, layout)
    if not 0 <= header.batch <= capacity.slots:
        refuse("batch", header.batch, capacity.slots)
    if header.cols > capacity.width:
        refuse("columns", header.cols, capacity.width)
    stride = _stride(header.dialect, header.cols, capacity)

    if channel in _HAS_COUNTS:
        claimed += 4 * header.batch
        if received < claimed:
            refuse("length", received, claimed)
        counts = message.counts[: header.batch]
        for i, count in enumerate(counts):
            if count > capacity.depth:
                refuse("count", count, capacity.depth, i)
    else:
        tokens = [
            row.ids[row.first] for row in (_row(message, channel, i, 0, stride) for i in range(header.batch))
        ]
        counts = [token if token < 0 else 1 for token in tokens]

    claimed = max([claimed, *_ends(message, channel, counts, header.cols, stride)])
    if received < claimed:
        refuse("length", received, claimed)
    return _Message(message, channel, header, counts, stride, claimed)


def _stride(dialect: str, cols: int, capacity: _Capacity) -> int:
    return cols if dialect == "packed" else capacity.width


def _ends(message: Any, channel: str, counts: list[int], cols: int, stride: int) -> Iterator[int]:
    """Where the last byte of each request ends.  Without counts, a slot is there whatever its token says."""
    for i, count in enumerate(counts):
        rows = count if channel in _HAS_COUNTS else 1
        if rows > 0:
            last = _row(message, channel, i, rows - 1, stride)
            array, n = (last.ids, last.first + cols) if last.ranks is None else (last.ranks, last.rank + 1)
            yield addressof(array) + 4 * n - addressof(message) - sizeof(c_int64)


@dataclass(frozen=True, eq=False)
class ReferenceStep:
    """A decoded message as plain lists; the fields are those of `fd_postproc.Step`.

    Attributes
    ----------
    ids : list of list of int, [rows][cols]
    scores : list of list of float, [rows][cols]; None on channels without logprobs
    ranks : list of int, [rows]; None likewise
    """

    channel: str
    dialect: str | None
    flag: int
    stop_flag: int
    batch: int
    cols: int
    rows: int
    counts: list[int]
    ids: list[list[int]]
    scores: list[list[float]] | None
    ranks: list[int] | None

    @classmethod
    def from_step(cls, step: Any) -> ReferenceStep:
        """The content of an `fd_postproc.Step`."""
        return cls(
            channel=step.channel,
            dialect=step.dialect,
            flag=step.flag,
            stop_flag=step.stop_flag,
            batch=step.batch,
            cols=step.cols,
            rows=step.rows,
            counts=step.counts,
            ids=step.ids.tolist(),
            scores=None if step.scores is None else step.scores.tolist(),
            ranks=None if step.ranks is None else step.ranks.tolist(),
        )

    def __eq__(self, other: object) -> bool:
        """Every field; scores as the bits of a float32, so that NaN equals NaN and 0.0 differs from -0.0."""
        if not isinstance(other, ReferenceStep):
            return NotImplemented
        return self._fields() == other._fields()

    def _fields(self) -> dict[str, Any]:
        bits = None if self.scores is None else [struct.pack(f"<{len(row)}f", *row) for row in self.scores]
        return {**vars(self), "scores": bits}


def decode(payload: Any, channel: str, *, mtype: int = MTYPE, layout: Layout = GPU) -> ReferenceStep:
    """Decode one message; see `fd_postproc.decode`.

    Parameters
    ----------
    payload : bytes-like
        The message without its `mtype`.
    channel : {"plain", "topk", "spec", "spec_topk"}
    mtype : int, optional
    layout : Layout, optional

    Returns
    -------
    ReferenceStep

    Raises
    ------
    MalformedMessage
        In the same cases, and with the same text, as `fd_postproc.decode`.
    """
    if mtype != MTYPE:
        raise MalformedMessage(channel, "mtype", mtype, MTYPE)
    message = _open(bytes(payload), channel, layout)
    header, rows, logprobs = message.header, list(message.rows()), channel in _HAS_LOGPROBS
    return ReferenceStep(
        channel=channel,
        dialect=header.dialect,
        flag=header.flag,
        stop_flag=header.stop_flag,
        batch=header.batch,
        cols=header.cols,
        rows=len(rows),
        counts=message.counts,
        ids=[row.ids[row.first : row.first + header.cols] for row in rows],
        scores=[row.scores[row.first : row.first + header.cols] for row in rows] if logprobs else None,
        ranks=[row.ranks[row.rank] for row in rows] if logprobs else None,
    )


def claimed(payload: Any, channel: str, *, layout: Layout = GPU) -> int:
    """Where the last byte ends that a message claims to hold: no shorter prefix of it is a message."""
    return _open(bytes(payload), channel, layout).claimed


def live(payload: Any, channel: str, *, layout: Layout = GPU) -> list[range]:
    """Byte ranges that a message's meaning depends on; anything may stand elsewhere.

    (FastDeploy's senders reuse one buffer and leave what earlier messages wrote there.)
    """
    message = _open(bytes(payload), channel, layout)
    batch, cols = message.header.batch, message.header.cols
    base = addressof(message.struct) + sizeof(c_int64)

    def cells(array: Any, first: int, n: int) -> range:
        start = addressof(array) - base + 4 * first
        return range(start, start + 4 * n)

    ranges = [cells(message.struct.words, 0, len(message.struct.words))]
    if channel in _HAS_COUNTS:
        ranges.append(cells(message.struct.counts, 0, batch))
    else:  # the token of a slot without one is its code
        slots = [message.row(i, 0) for i in range(batch)]
        ranges += [cells(slot.ids, slot.first, 1) for slot in slots]
    for row in message.rows():
        ranges.append(cells(row.ids, row.first, cols))
        if row.scores is not None:
            ranges += [cells(row.scores, row.first, cols), cells(row.ranks, row.rank, 1)]
    return ranges


# ---- Writing -------------------------------------------------------------------------------------------


def encode(step: ReferenceStep, dialect: str = "packed", *, layout: Layout = GPU) -> bytes:
    """Write a step as FastDeploy's senders would, up to the last live slot; see `fd_postproc.encode`.

    A legacy message has all columns; those that the step lacks are filled with id -1 and score 0.0.  Slots
    without a token hold their code in every column, and zero scores and ranks.

    Raises
    ------
    ValueError
        If the layout cannot carry the step, with the same text as `fd_postproc.encode`.
    """
    if dialect not in ("legacy", "packed"):
        raise ValueError(f"dialect {dialect!r} is not one of 'legacy', 'packed'")
    channel, batch, capacity = step.channel, step.batch, _capacity(step.channel, layout)

    def need(what: str, value: int, bound: int) -> None:
        if value > bound:
            text = f"the {channel} channel of this layout cannot carry the step"
            raise ValueError(f"{text}: {what} is {value}, at most {bound} fit")

    need("batch", batch, capacity.slots)
    need("columns", step.cols, capacity.width)
    for i, count in enumerate(step.counts):
        need(f"count of request {i}", count, capacity.depth)

    message: Any = structure(channel, layout)()
    cols = stride = _stride(dialect, step.cols, capacity)
    packed = step.cols if dialect == "packed" else 0
    if channel == "topk":
        message.words[:] = step.stop_flag, c_int32(batch | packed << 16).value
    elif channel == "spec_topk":
        message.words[:] = step.stop_flag, c_int32(step.flag | packed << 8).value, batch
    else:
        message.words[:] = step.stop_flag, batch
    if channel in _HAS_COUNTS:
        message.counts[:batch] = step.counts

    filler = cols - step.cols
    r = 0
    for i, count in enumerate(step.counts):
        if count < 0 and channel not in _HAS_COUNTS:
            to = _row(message, channel, i, 0, stride)
            to.ids[to.first : to.first + cols] = [count] * cols
        for j in range(count):
            to = _row(message, channel, i, j, stride)
            to.ids[to.first : to.first + cols] = step.ids[r] + [FILLER_ID] * filler
            if step.scores is not None and step.ranks is not None:
                to.scores[to.first : to.first + cols] = step.scores[r] + [FILLER_SCORE] * filler
                to.ranks[to.rank] = step.ranks[r]
            r += 1

    header = sizeof(message.words) + (4 * batch if channel in _HAS_COUNTS else 0)
    end = max([header, *_ends(message, channel, step.counts, cols, stride)])
    return bytes(message)[sizeof(c_int64) :][:end]


# ---- FastDeploy's receive tensors ----------------------------------------------------------------------


def fill(
    payload: Any,
    channel: str,
    tokens: MutableSequence[int],
    scores: MutableSequence[float] | None = None,
    ranks: MutableSequence[int] | None = None,
    columns: int | None = None,
    *,
    layout: Layout = GPU,
) -> None:
    """Write a message into the tensors of FastDeploy's get op, and touch nothing else of them.

    get_output and get_output_ep (plain), get_output_topk (topk), speculate_get_output (spec),
    speculate_get_output_topk (spec_topk).

    Parameters
    ----------
    payload : bytes-like
    channel : {"plain", "topk", "spec", "spec_topk"}
    tokens : mutable sequence of int
        The flattened int64 tensor: header words, counts if the channel has them, ids.
    scores, ranks : mutable sequence, optional
        The flattened float32 and int64 tensors of a channel with logprobs.
    columns : int, optional
        The op's ``k + 1``; the packed dialect brings its own number.  Default: all columns.
    layout : Layout, optional

    Raises
    ------
    MalformedMessage
        As `decode` does.  (FastDeploy's ops check nothing.)
    """
    payload = bytes(payload)
    message = _open(payload, channel, layout)
    header, capacity = message.header, _capacity(channel, layout)
    words = len(message.struct.words)

    if channel == "spec":  # the op copies the whole message, live or not
        n = min(len(payload) // 4, words + capacity.slots * (1 + capacity.depth))
        for position, word in enumerate(struct.unpack_from(f"<{n}i", payload)):
            tokens[position] = word
        return

    for position in range(words):
        tokens[position] = message.struct.words[position]
    ids_begin = words
    if channel == "spec_topk":
        ids_begin += capacity.slots
        for i, count in enumerate(message.counts):
            tokens[words + i] = count

    cols = header.cols if header.dialect == "packed" or columns is None else min(columns, header.cols)
    for i, count in enumerate(message.counts):
        # Without counts the op copies every slot, whatever its token says.
        for j in range(count if channel == "spec_topk" else 1):
            row = message.row(i, j)
            # topk rows keep the message's stride; spec_topk slots move together: no scores lie in between.
            to = row.first if channel in ("plain", "topk") else (i * capacity.depth + j) * capacity.width
            for k in range(cols):
                tokens[ids_begin + to + k] = row.ids[row.first + k]
            if scores is not None and ranks is not None:
                for k in range(cols):
                    scores[to + k] = row.scores[row.first + k]
                ranks[i * capacity.depth + j] = row.ranks[row.rank]

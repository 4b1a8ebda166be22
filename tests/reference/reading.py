"""Reading messages."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, MutableSequence
from ctypes import addressof, c_int64, sizeof
from typing import Any, NamedTuple, NoReturn

from fd_postproc.core.layout import GPU, Layout
from fd_postproc.errors import MalformedMessage
from fd_postproc.support.checks import whole_number

from .frames import FLAGS, HEADER_SIZE, decode_frame
from .step import ReferenceStep
from .structs import (
    COMPACT_MTYPE,
    HAS_COUNTS,
    HAS_LOGPROBS,
    MTYPE,
    Row,
    capacity_of,
    ends_of,
    payload_size,
    row_at,
    stride_of,
    structure,
)


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
    return _Header(words[0], flag, batch, cols or capacity_of(channel, layout).width, dialect)


class _Message(NamedTuple):
    """A message that was checked."""

    struct: Any
    channel: str
    header: _Header
    counts: list[int]  # tokens of each request, or its negative code
    stride: int
    claimed: int  # where the last byte ends that it claims to hold

    def row(self, i: int, j: int) -> Row:
        return row_at(self.struct, self.channel, i, j, self.stride)

    def rows(self) -> Iterator[Row]:
        """The accepted tokens, in order; codes have none."""
        for i, count in enumerate(self.counts):
            for j in range(count):
                yield self.row(i, j)


def _is_plain(payload: bytes, channel: str, layout: Layout) -> bool:
    """Whether it is a plain message in a queue for logprobs: no request of the step has asked for any."""
    _, batch = struct.unpack_from("<2i", payload.ljust(8, b"\0"))
    lengths = payload_size("plain", layout), 8 + 4 * batch
    return channel == "topk" and 0 < batch < 1 << 16 and len(payload) in lengths


def _open(payload: bytes, channel: str, layout: Layout) -> _Message:
    """Check everything that a message claims, in the order in which it is read."""
    asked = channel
    if _is_plain(payload, channel, layout):
        channel = "plain"

    def refuse(field: str, value: int, bound: int, index: int | None = None) -> NoReturn:
        raise MalformedMessage(asked, field, value, bound, index)

    capacity, size, received = capacity_of(channel, layout), payload_size(channel, layout), len(payload)
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
    if header.flag not in FLAGS:
        refuse("flag", header.flag, 4)
    stride = stride_of(header.dialect, header.cols, capacity)

    if channel in HAS_COUNTS:
        claimed += 4 * header.batch
        if received < claimed:
            refuse("length", received, claimed)
        counts = message.counts[: header.batch]
        for i, count in enumerate(counts):
            if count > capacity.depth:
                refuse("count", count, capacity.depth, i)
    else:
        tokens = [
            row.ids[row.first]
            for row in (row_at(message, channel, i, 0, stride) for i in range(header.batch))
        ]
        counts = [token if token < 0 else 1 for token in tokens]

    claimed = max([claimed, *ends_of(message, channel, counts, header.cols, stride)])
    if received < claimed:
        refuse("length", received, claimed)
    return _Message(message, channel, header, counts, stride, claimed)


def decode(payload: Any, channel: str, *, mtype: int = MTYPE, layout: Layout = GPU) -> ReferenceStep:
    """Decode one message; see `fd_postproc.decode`."""
    mtype = whole_number(mtype, "mtype", -math.inf, math.inf)
    if mtype == COMPACT_MTYPE:
        return decode_frame(bytes(payload), channel, layout)
    if mtype != MTYPE:
        raise MalformedMessage(channel, "mtype", mtype, MTYPE)
    if len(bytes(payload)) >= HEADER_SIZE and bytes(payload)[12:16] == b"FDPP":
        raise MalformedMessage(channel, "mtype", mtype, COMPACT_MTYPE)
    message = _open(bytes(payload), channel, layout)
    channel = message.channel
    header, rows, logprobs = message.header, list(message.rows()), channel in HAS_LOGPROBS
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
    if channel in HAS_COUNTS:
        ranges.append(cells(message.struct.counts, 0, batch))
    else:  # the token of a slot without one is its code
        slots = [message.row(i, 0) for i in range(batch)]
        ranges += [cells(slot.ids, slot.first, 1) for slot in slots]
    for row in message.rows():
        ranges.append(cells(row.ids, row.first, cols))
        if row.scores is not None:
            ranges += [cells(row.scores, row.first, cols), cells(row.ranks, row.rank, 1)]
    return ranges


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
    speculate_get_output_topk (spec_topk)."""
    payload = bytes(payload)
    message = _open(payload, channel, layout)
    header, capacity = message.header, capacity_of(channel, layout)
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

"""Compact frames: a step in one piece of memory, whole or cut into fragments.

A frame is a 64-byte header, then counts[batch], ids[rows][cols], and on channels with logprobs
scores[rows][cols] and ranks[rows]; sections may follow (``sections``).  It begins with the words -2, 0, 0,
which tell FastDeploy's own receivers that nothing was received.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, NoReturn

from fd_postproc.core.layout import GPU, Layout
from fd_postproc.errors import MalformedMessage

from .crc32c import crc32c
from .sections import MOST_EXTRA, SECTIONED, decode_extra, encode_extra, padded
from .step import ReferenceStep
from .structs import CHANNELS, HAS_COUNTS, HAS_LOGPROBS, capacity_of

MAGIC, VERSION = int.from_bytes(b"FDPP", "little"), 1
CHECKSUMMED, NUMBERED = 1, 4  # in `features`
FLAGS = (0, 3, 4)  # what FastDeploy writes: 3 or 4; in other channels' messages that word is a batch

_FORMAT = struct.Struct("<3i I 4B 4i I 2Q 2H I")
HEADER_SIZE = _FORMAT.size


class FrameHeader(NamedTuple):
    """The header, field by field."""

    nothing: int = -2  # what a stock receiver reads: nothing received, batch 0
    zero: int = 0
    zero2: int = 0
    magic: int = MAGIC
    version: int = VERSION
    channel: int = 0
    flag: int = 0
    features: int = 0  # CHECKSUMMED, SECTIONED, NUMBERED
    stop_flag: int = 0
    batch: int = 0
    cols: int = 0
    rows: int = 0
    total: int = 0  # bytes of the whole frame, with one header
    seq: int = 0
    sender: int = 0
    fragment: int = 0
    fragments: int = 1
    checksum: int = 0

    def pack(self) -> bytes:
        return _FORMAT.pack(*self)

    @classmethod
    def unpack(cls, message: bytes) -> FrameHeader:
        return cls(*_FORMAT.unpack_from(message))

    @property
    def service(self) -> int:
        """The number of the service; 0: none."""
        return self.sender >> 32 if self.features & NUMBERED else 0

    def frame(self) -> FrameHeader:
        """What all fragments of a frame have in common."""
        return self._replace(fragment=0)


def frame_size(channel: str, batch: int, rows: int, cols: int) -> int:
    """Bytes of a whole frame."""
    logprobs = rows * cols + rows if channel in HAS_LOGPROBS else 0
    return HEADER_SIZE + 4 * (batch + rows * cols + logprobs)


def checksum_of(frame: bytes) -> int:
    """The checksum that a whole frame must have: of all its bytes, as if it were 0."""
    header = FrameHeader.unpack(frame)._replace(fragment=0, fragments=1, checksum=0)
    return crc32c(header.pack() + frame[HEADER_SIZE:])


def seal(frame: bytes) -> bytes:
    """The frame with its checksum."""
    header = FrameHeader.unpack(frame)
    header = header._replace(features=header.features | CHECKSUMMED)
    frame = header.pack() + frame[HEADER_SIZE:]
    return header._replace(checksum=checksum_of(frame)).pack() + frame[HEADER_SIZE:]


def encode_frame(
    step: ReferenceStep, *, sender: int = 0, seq: int | None = None, checksum: bool = True, service: int = 0
) -> bytes:
    """A whole frame."""
    numbers = [*step.counts, *(n for row in step.ids for n in row)]
    body = struct.pack(f"<{len(numbers)}i", *numbers)
    if step.scores is not None and step.ranks is not None:
        cells = [n for row in step.scores for n in row]
        body += struct.pack(f"<{len(cells)}f{len(step.ranks)}i", *cells, *step.ranks)
    extra = encode_extra(step.masks, step.weight_version, step.batch)
    if extra:
        body += bytes(-len(body) % 8) + extra
    header = FrameHeader(
        features=SECTIONED * bool(extra) | NUMBERED * bool(service),
        channel=CHANNELS.index(step.channel),
        flag=step.flag,
        stop_flag=step.stop_flag,
        batch=step.batch,
        cols=step.cols,
        rows=step.rows,
        total=HEADER_SIZE + len(body),
        seq=(step.seq or 0) if seq is None else seq,
        sender=service << 32 | sender % (1 << 32) if service else sender,
    )
    frame = header.pack() + body
    return seal(frame) if checksum else frame


def read_header(message: bytes, channel: str, layout: Layout, *, whole: bool) -> FrameHeader:
    """Check everything that a header claims, in the order in which it is read."""

    asked = channel

    def refuse(field: str, value: int, bound: int) -> NoReturn:
        raise MalformedMessage(asked, field, value, bound)

    if len(message) < HEADER_SIZE:
        refuse("length", len(message), HEADER_SIZE)
    header = FrameHeader.unpack(message)
    if header.magic != MAGIC:
        refuse("magic", header.magic, MAGIC)
    if header.version != VERSION:
        refuse("version", header.version, VERSION)
    if channel == "topk" and header.channel == CHANNELS.index("plain"):  # no request has asked for logprobs
        channel = "plain"
    if header.channel != CHANNELS.index(channel):
        refuse("channel", header.channel, CHANNELS.index(channel))
    if header.fragment >= header.fragments:
        refuse("fragment", header.fragment, header.fragments)
    capacity = capacity_of(channel, layout)
    slots = layout.max_batch
    if not 0 <= header.batch <= slots:
        refuse("batch", header.batch, slots)
    if not 1 <= header.cols <= capacity.width:
        refuse("columns", header.cols, capacity.width)
    if channel != "spec_topk" and header.flag:
        refuse("flag", header.flag, 0)
    if header.flag not in FLAGS:
        refuse("flag", header.flag, 4)
    if not 0 <= header.rows <= slots * capacity.depth:
        refuse("rows", header.rows, slots * capacity.depth)
    total = frame_size(channel, header.batch, header.rows, header.cols)
    if header.features & SECTIONED:
        least, most = padded(total), padded(total) + MOST_EXTRA
        if not least <= header.total <= most:
            refuse("length", header.total, least if header.total < least else most)
        total = header.total
    elif header.total != total:
        refuse("length", header.total, total)
    if whole and header.fragments != 1:
        refuse("fragment", header.fragments, 1)
    if whole and len(message) != total:
        refuse("length", len(message), total)
    return header


def check_service(message: bytes, channel: str, service: int, *, required: bool) -> None:
    """Refuse a message of another service; `required`: also one without a number."""
    if len(message) < HEADER_SIZE:
        return
    header = FrameHeader.unpack(message)
    if header.magic != MAGIC or header.version != VERSION:
        return
    whole = header.fragments == 1 and header.features & CHECKSUMMED
    if whole and header.checksum != checksum_of(message):
        return
    if header.service != service and (header.service or required):
        raise MalformedMessage(channel, "service", header.service, service)


def decode_frame(frame: bytes, channel: str, layout: Layout = GPU) -> ReferenceStep:
    """Decode a whole frame."""
    if channel not in CHANNELS:
        raise ValueError(f"channel {channel!r} is not one of {', '.join(map(repr, CHANNELS))}")
    header = read_header(frame, channel, layout, whole=True)
    checksum = checksum_of(frame) if header.features & CHECKSUMMED else 0
    if header.checksum != checksum:
        raise MalformedMessage(channel, "checksum", header.checksum, checksum)
    asked, channel = channel, CHANNELS[header.channel]
    depth, at = capacity_of(channel, layout).depth, HEADER_SIZE

    def take(kind: str, n: int) -> list[Any]:
        nonlocal at
        values = list(struct.unpack_from(f"<{n}{kind}", frame, at))
        at += 4 * n
        return values

    def take_rows(kind: str) -> list[list[Any]]:
        cells = take(kind, header.rows * header.cols)
        return [cells[header.cols * r : header.cols * (r + 1)] for r in range(header.rows)]

    counts = take("i", header.batch)
    for i, count in enumerate(counts):
        if count > depth or (count == 0 and channel not in HAS_COUNTS):
            raise MalformedMessage(asked, "count", count, depth, i)
    rows = sum(count for count in counts if count > 0)
    if header.rows != rows:
        raise MalformedMessage(asked, "rows", header.rows, rows)
    ids = take_rows("i")
    if channel not in HAS_COUNTS:  # there a negative token is a code, and has no place in a row
        for i, row in zip((i for i, count in enumerate(counts) if count > 0), ids, strict=True):
            if row[0] < 0:
                raise MalformedMessage(asked, "token", row[0], 0, i)
    logprobs = channel in HAS_LOGPROBS
    scores = take_rows("f") if logprobs else None
    ranks = take("i", rows) if logprobs else None
    masks, weights = None, None
    if header.features & SECTIONED:
        masks, weights = decode_extra(frame, padded(at), header.batch, asked)
    return ReferenceStep(
        channel=channel,
        dialect="compact",
        flag=header.flag,
        stop_flag=header.stop_flag,
        batch=header.batch,
        cols=header.cols,
        rows=rows,
        counts=counts,
        ids=ids,
        scores=scores,
        ranks=ranks,
        seq=header.seq,
        masks=masks,
        weight_version=weights,
    )


# ---- Fragments -------------------------------------------------------------------------------------------


def split(frame: bytes, limit: int) -> list[bytes]:
    """Cut a whole frame into messages of at most `limit` bytes; all but the last have exactly that many."""
    if len(frame) <= limit:
        return [frame]
    header, body, piece = FrameHeader.unpack(frame), frame[HEADER_SIZE:], limit - HEADER_SIZE
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    return [
        header._replace(fragment=index, fragments=len(pieces)).pack() + part
        for index, part in enumerate(pieces)
    ]

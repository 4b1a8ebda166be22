"""Compact frames through FastDeploy's ZeroMQ socket, in plain Python: what their sections say of a step."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from .frames import HEADER_SIZE, FrameHeader, seal
from .sections import MASKS, SECTIONED, decode_masks, divided, padded, section
from .structs import CHANNELS


class Streamed(NamedTuple):
    """A step of one token a request, or of a pooling model."""

    slots: int
    tokens: Any
    rows: Any
    masks: Any
    prompts: Any
    pooled: Any
    sender: int
    number: int
    span: tuple[int, int]


def open_streamed(frame: bytes) -> Streamed:
    """Read a frame that is as it should be."""
    header = FrameHeader.unpack(frame)
    assert len(frame) > 10_000 or seal(frame) == frame  # slow in Python
    at, batch, n, cols = HEADER_SIZE, header.batch, header.rows, header.cols
    counts = np.frombuffer(frame, "<i4", batch, at).tolist()
    at += 4 * batch
    ids = np.frombuffer(frame, "<i4", n * cols, at).reshape(n, cols)
    at += 4 * n * cols
    rows = None
    if CHANNELS[header.channel] == "topk":
        scores = np.frombuffer(frame, "<f4", n * cols, at).reshape(n, cols)
        at += 4 * n * cols
        ranks = np.frombuffer(frame, "<i4", n, at)
        at += 4 * n
        rows = {}
    tokens, row = [], 0
    for slot, count in enumerate(counts):
        if count < 1:
            tokens.append(count)
            continue
        tokens.append(int(ids[row, 0]))
        if rows is not None:
            rows[slot] = ids[row].tolist(), scores[row].tolist(), int(ranks[row])
        row += 1
    masks, prompts, pooled, span = None, {}, {}, (0, batch)
    begin = padded(at) if header.features & SECTIONED else len(frame)
    for name, _, inside in divided(frame, begin, CHANNELS[header.channel]):
        if name == MASKS:
            masks = decode_masks(inside, batch, CHANNELS[header.channel])
        elif name == b"span":
            span = struct.unpack("<ii", inside)
        elif name == b"tokens":
            _tokens(inside, tokens, rows)
        elif name == b"prompt":
            prompts = {slot: _prompt(shape, content) for slot, _, shape, content in _parts(inside, "prompt")}
        elif name == b"pooled":
            tokens = None
            for slot, kind, shape, content in _parts(inside):
                pooled[slot] = np.frombuffer(content, kind).reshape(shape)
    return Streamed(batch, tokens, rows, masks, prompts, pooled, header.sender, header.seq, span)


def _tokens(inside: bytes, tokens: list[int], rows: Any) -> None:
    at = 0
    while at < len(inside):
        slot, columns, tokens[slot] = struct.unpack_from("<iiq", inside, at)
        at += 16
        if columns:
            form = f"<{columns}q{columns}fq"
            numbers = struct.unpack_from(form, inside, at)
            rows[slot] = list(numbers[:columns]), list(numbers[columns:-1]), numbers[-1]
            at += struct.calcsize(form)


def _parts(inside: bytes, what: str = "") -> Any:
    at = 0
    while at < len(inside):
        slot, dimensions, kind = struct.unpack_from("<ii8s", inside, at)
        name = kind.rstrip(b"\0").decode()
        shape = struct.unpack_from(f"<{dimensions}q", inside, at + 16)
        at += 16 + 8 * dimensions
        cells = int(np.prod(shape))
        size = 12 * cells + 8 * shape[0] if what else cells * np.dtype(name).itemsize
        yield slot, name, shape, inside[at : at + size]
        at += size


def _prompt(shape: tuple[int, int], content: bytes) -> Any:
    cells = shape[0] * shape[1]
    ids = np.frombuffer(content, "<i8", cells).reshape(shape)
    scores = np.frombuffer(content, "<f4", cells, 8 * cells).reshape(shape)
    return ids, scores, np.frombuffer(content, "<i8", shape[0], 12 * cells)


def with_section(frame: bytes, name: bytes, content: bytes, marks: int = 1) -> bytes:
    """The frame with one section more, sealed."""
    frame += bytes(-len(frame) % 8) + section(name, marks, content)
    header = FrameHeader.unpack(frame)
    header = header._replace(features=header.features | SECTIONED, total=len(frame))
    return seal(header.pack() + frame[HEADER_SIZE:])

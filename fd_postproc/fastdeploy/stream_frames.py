"""A step over FastDeploy's ZeroMQ socket as a compact frame: its sections, to and from arrays.

The frame itself is `Sampled`'s and the gate's.  What its body has no place for is in sections, which
docs/wire-protocol.md describes in "Frames through FastDeploy's ZeroMQ socket".  Little-endian, in C order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from .._core import (
    MASKS,
    POOLED,
    PROMPT,
    SECTION_REQUIRED,
    SPAN,
    TOKENS,
    Sampled,
    _masks_bytes,
    _section,
)

MOST_DIMENSIONS = 8
_SPAN = struct.Struct("<ii")
_PART = struct.Struct("<ii8s")
_TOKEN = struct.Struct("<iiq")
_POOLED = ("float32", "float16", "float64")

Array = np.ndarray[Any, Any]


class Content(NamedTuple):
    """The content of a frame."""

    slots: int  # of the step
    tokens: Any = None  # of each slot, int64; None in a step of a pooling model
    # token ids and log-probabilities of shape (rows, columns), ranks of shape (rows,); of the first slots
    rows: Any = None
    masks: list[Any] | None = None  # sampling masks by slot
    # by slot, what `rows` holds for the tokens of a prompt; ids and ranks are int64
    prompts: Mapping[int, tuple[Any, Any, Any]] = MappingProxyType({})
    pooled: Mapping[int, Array] = MappingProxyType({})  # by slot, what a pooling model has made
    sender: int = 0  # which process sends it
    number: int = 0  # how many frames it has sent before
    span: tuple[int, int] | None = None  # of a part of a step: its first slot, and how many it has


def packed(content: Content) -> bytes:
    """Pack the frame.

    Raises
    ------
    ValueError, TypeError
        If it has no room for something, which is named.
    """
    slots, sections = content.slots, []
    first, n = content.span or (0, slots)
    here = range(first, first + n)
    prompts = {slot: rows for slot, rows in content.prompts.items() if slot in here}
    tokens = np.full(slots, -1) if content.tokens is None else content.tokens
    sampled = Sampled(tokens, content.rows, slots, first, first + n, prompts)
    if sampled.apart:
        sections.append((TOKENS, b"".join(_token(slot, sampled) for slot in sampled.apart)))
    if content.masks is not None:
        if len(content.masks) != slots:
            raise ValueError(f"{len(content.masks)} sampling masks for {slots} slots")
        sections.append((MASKS, _masks_bytes({slot: content.masks[slot] for slot in here}, slots)))
    if prompts:
        sections.append((PROMPT, b"".join(_prompt(*one) for one in prompts.items())))
    if content.tokens is None:
        sections.append((POOLED, b"".join(_pooled(*one) for one in content.pooled.items())))
    if content.span is not None:
        sections.append((SPAN, _SPAN.pack(*content.span)))
    extra = b"".join(_section(name, SECTION_REQUIRED, inside) for name, inside in sections)
    return sampled.frame(extra, content.sender, content.number)


def _token(slot: int, sampled: Sampled) -> bytes:
    token, row = sampled.token(slot)
    return _TOKEN.pack(slot, len(row) // 12, token) + row


def _as(values: Array, dtype: type, what: str) -> Array:
    """Convert the values to another width; raise ValueError if one changes."""
    values = np.ascontiguousarray(values)
    if values.dtype == dtype:
        return values
    if not (values.dtype.kind == "i" == np.dtype(dtype).kind):
        raise ValueError(f"{what} of dtype {values.dtype}")
    converted: Array = values.astype(dtype)
    if not np.array_equal(converted, values):
        raise ValueError(f"{what}: a number has no room in {np.dtype(dtype)}")
    return converted


def _prompt(slot: int, rows: tuple[Array, Array, Array]) -> bytes:
    ids, scores, ranks = rows
    if ids.ndim != 2 or scores.shape != ids.shape or ranks.shape != ids.shape[:1]:
        raise ValueError(
            f"log-probabilities of a prompt of shapes {ids.shape}, {scores.shape}, {ranks.shape}"
        )
    arrays = (_as(ids, np.int64, "ids"), _as(scores, np.float32, "scores"), _as(ranks, np.int64, "ranks"))
    return _part(slot, "prompt", ids.shape, *arrays)


def _pooled(slot: int, output: Array) -> bytes:
    if output.dtype.name not in _POOLED or output.ndim > MOST_DIMENSIONS:
        raise ValueError(f"a pooling output of dtype {output.dtype} and {output.ndim} dimensions")
    return _part(slot, output.dtype.name, output.shape, np.ascontiguousarray(output))


def _part(slot: int, kind: str, shape: tuple[int, ...], *arrays: Array) -> bytes:
    head = _PART.pack(slot, len(shape), kind.encode()) + np.array(shape, np.int64).tobytes()
    return head + b"".join(array.tobytes() for array in arrays)


# ---- what arrives --------------------------------------------------------------------------------------


class _Bytes:
    """Reader of a section from front to back, never behind its end."""

    def __init__(self, content: Any) -> None:
        self._content, self.at = memoryview(content), 0

    def left(self) -> int:
        return len(self._content) - self.at

    def cut(self, length: int) -> memoryview:
        if not 0 <= length <= self.left():
            raise ValueError(f"a section ends after {self.left()} bytes of {length}")
        self.at += length
        return self._content[self.at - length : self.at]

    def record(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.cut(form.size))

    def array(self, dtype: str, *shape: int) -> Array:
        count = 1
        for length in shape:
            if length < 0:
                raise ValueError(f"a section has an array of shape {shape}")
            count *= length
        return np.frombuffer(self.cut(count * np.dtype(dtype).itemsize), dtype).reshape(shape)


Sections = Mapping[bytes, memoryview]
Rows = tuple[Array, Array, Array]


def span_in(sections: Sections, slots: int) -> tuple[int, int]:
    """Which slots the frame speaks of: the first, and how many.

    Raises
    ------
    ValueError
        If there are no such slots.  So do the other functions, each of its section.
    """
    inside = sections.get(SPAN)
    if inside is None:
        return 0, slots
    if len(inside) != _SPAN.size:
        raise ValueError(f"{len(inside)} bytes of a span")
    first, n = _SPAN.unpack(inside)
    if not (first >= 0 and 0 <= n <= slots - first):
        raise ValueError(f"the frame has slots {first} to {first + n} of a step of {slots}")
    return first, n


def tokens_in(sections: Sections, slots: int) -> dict[int, tuple[int, Rows | None]]:
    """Tokens that the body does not hold, by slot, each with its log-probabilities or None."""
    numbers, tokens = _Bytes(sections.get(TOKENS, b"")), {}
    while numbers.left():
        slot, columns, token = numbers.record(_TOKEN)
        if not 0 <= slot < slots or token < 0 or columns < 0:
            raise ValueError(f"a section has token {token} of slot {slot}, with {columns} columns")
        row = None
        if columns:
            ids, scores = numbers.array("<i8", 1, columns), numbers.array("<f4", 1, columns)
            row = ids, scores, numbers.array("<i8", 1)
        tokens[slot] = token, row
    return tokens


def prompts_in(sections: Sections, slots: int) -> dict[int, Rows]:
    """Log-probabilities of prompts, by slot."""
    inside, prompts = _Bytes(sections.get(PROMPT, b"")), {}
    for slot, kind, shape in _parts_in(inside, slots):
        if kind != "prompt" or len(shape) != 2:
            raise ValueError(f"a part of the frame is {kind!r} with {len(shape)} dimensions, not a prompt")
        ids, scores = inside.array("<i8", *shape), inside.array("<f4", *shape)
        prompts[slot] = ids, scores, inside.array("<i8", shape[0])
    return prompts


def pooled_in(sections: Sections, slots: int) -> dict[int, Array] | None:
    """Outputs of a pooling model, by slot; None if the step is another model's."""
    if POOLED not in sections:
        return None
    inside, outputs = _Bytes(sections[POOLED]), {}
    for slot, kind, shape in _parts_in(inside, slots):
        if kind not in _POOLED:
            raise ValueError(f"a pooling output of the frame is of dtype {kind!r}")
        outputs[slot] = inside.array(kind, *shape)
    return outputs


def _parts_in(inside: _Bytes, slots: int) -> Iterator[tuple[int, str, list[int]]]:
    """(slot, kind, shape) of each part; who asks takes its arrays."""
    while inside.left():
        slot, dimensions, kind = inside.record(_PART)
        if not (0 <= slot < slots and 0 <= dimensions <= MOST_DIMENSIONS):
            raise ValueError(f"a part of the frame is of slot {slot}, with {dimensions} dimensions")
        yield slot, kind.rstrip(b"\0").decode("ascii", "replace"), inside.array("<i8", dimensions).tolist()

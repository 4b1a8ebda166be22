"""A step of FastDeploy's ZeroMQ road in one piece: numbers at fixed places instead of pickled objects.

docs/wire-protocol.md, "Frames over ZeroMQ", describes every byte.  Arrays are little-endian and in C order:

=========  =============================================================================================
section    content
=========  =============================================================================================
tokens     int64[slots]: a token, or a code
logprobs   int32 rows and columns; ids int32[rows, columns]; scores float32 likewise; ranks int32[rows]
masks/2    sampling masks, by slot, as in a compact frame
span       int32 first slot, int32 slots of the step, of which this frame has some
weights    which weights of the model have made the step: UTF-8; may be passed over
prompt     parts of int32 slot and number of dimensions, 8 bytes kind, int64 shape, then the arrays: ids
           int64, scores float32, ranks int64
pooled     such parts, each of one array of the dtype that the kind names
compact    a compact frame of the channel ``spec`` or ``spec_topk``, which says all of the step
=========  =============================================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._core import (
    MASKS,
    MOST_SECTIONS,
    SECTION_REQUIRED,
    WEIGHTS,
    _divided,
    _masks_bytes,
    _masks_of,
    _rows_bytes,
    _section,
    _tokens_bytes,
    _weights_bytes,
)

MAGIC = b"fdstep/2"
MOST_SLOTS, MOST_DIMENSIONS = 1 << 16, 8
MOST_BYTES = 1 << 30
"""Of a whole frame: 256 slots with the log-probabilities of a vocabulary of 500,000 fit."""
_HEAD = struct.Struct("<8siiQQ")
_SPAN = struct.Struct("<ii")
_PART = struct.Struct("<ii8s")
_POOLED = ("float32", "float16", "float64")

Array = npt.NDArray[Any]


class Content(NamedTuple):
    """What a frame holds.

    Attributes
    ----------
    slots : int
    tokens : tensor or ndarray of int64, shape (slots,), or None
        None in a step of a pooling model, or of `compact`.
    rows : tuple of tensor or ndarray, or None
        Token ids and log-probabilities (float32) of shape (rows, columns), ranks of shape (rows,); of the
        first slots, which may be fewer than all.  Those of a frame that was opened are int32.
    masks : list of (array_like of int) or None
        Sampling masks by slot.
    prompts : dict of int to tuple of ndarray
        By slot, what `rows` holds for the tokens of a prompt; ids and ranks are int64.
    pooled : dict of int to ndarray
        By slot, what a pooling model has made.
    compact : bytes-like or None
        A compact frame of a step of speculative decoding.
    sender, number : int
        Who has sent it, and how many before.
    span : tuple of (int, int), or None
        Of a part of a step: which slot of the step is the first here, and how many the step has.
    row : int
        Which of `rows` is that of the first slot here.
    weights : str or None
        Which weights of the model have made the step.
    """

    slots: int
    tokens: Any = None
    rows: Any = None
    masks: list[Any] | None = None
    prompts: Mapping[int, tuple[Any, Any, Any]] = MappingProxyType({})
    pooled: Mapping[int, Array] = MappingProxyType({})
    compact: Any = None
    sender: int = 0
    number: int = 0
    span: tuple[int, int] | None = None
    row: int = 0
    weights: str | None = None


def packed(content: Content) -> bytes:
    """The frame.

    Raises
    ------
    ValueError, TypeError
        If it has no room for something, which is named.
    """
    slots, sections = content.slots, []
    if content.tokens is not None:
        tokens = _tokens_bytes(content.tokens)
        if len(tokens) != 8 * slots:
            raise ValueError(f"{len(tokens) // 8} tokens for {slots} slots")
        sections.append((b"tokens", tokens))
    if content.rows is not None:
        ids, scores, ranks = content.rows
        sections.append((b"logprobs", _rows_bytes(ids, scores, ranks, slots, content.row)))
    if content.masks is not None:
        masks = dict(enumerate(content.masks))
        if len(masks) != slots:
            raise ValueError(f"{len(masks)} sampling masks for {slots} slots")
        sections.append((MASKS, _masks_bytes(masks, slots)))
    if content.prompts:
        sections.append((b"prompt", b"".join(_prompt(*one) for one in content.prompts.items())))
    if content.pooled:
        sections.append((b"pooled", b"".join(_pooled(*one) for one in content.pooled.items())))
    if content.compact is not None:
        sections.append((b"compact", content.compact))
    if content.span is not None:
        sections.append((b"span", _SPAN.pack(*content.span)))
    count = len(sections) + (content.weights is not None)
    parts = [_HEAD.pack(MAGIC, slots, count, content.sender, content.number)]
    parts += [_section(name, SECTION_REQUIRED, inside) for name, inside in sections]
    if content.weights is not None:
        parts.append(_section(WEIGHTS, 0, _weights_bytes(content.weights)))
    size = sum(map(len, parts))
    if size > MOST_BYTES or not 0 <= slots <= MOST_SLOTS:
        raise ValueError(
            f"a step of {slots} slots and {size} bytes; a frame has {MOST_SLOTS} and {MOST_BYTES} at most"
        )
    return b"".join(parts)


def _as(values: Array, dtype: type, what: str) -> Array:
    """The values in another width; ValueError if that changes one."""
    values = np.ascontiguousarray(values)
    if values.dtype == dtype:
        return values
    if not (values.dtype.kind == "i" == np.dtype(dtype).kind):
        raise ValueError(f"{what} of dtype {values.dtype}")
    made: Array = values.astype(dtype)
    if not np.array_equal(made, values):
        raise ValueError(f"{what}: a number has no room in {np.dtype(dtype)}")
    return made


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


# ---- the way back --------------------------------------------------------------------------------------


class _Bytes:
    """Reads a frame from front to back, never behind its end."""

    def __init__(self, content: Any) -> None:
        self._content, self.at = memoryview(content), 0

    def left(self) -> int:
        return len(self._content) - self.at

    def cut(self, length: int) -> memoryview:
        if not 0 <= length <= self.left():
            raise ValueError(f"the frame ends after {self.left()} bytes of {length}")
        self.at += length
        return self._content[self.at - length : self.at]

    def record(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.cut(form.size))

    def array(self, dtype: str, *shape: int) -> Array:
        count = 1
        for length in shape:
            if length < 0:
                raise ValueError(f"the frame has an array of shape {shape}")
            count *= length
        return np.frombuffer(self.cut(count * np.dtype(dtype).itemsize), dtype).reshape(shape)


def is_frame(content: Any) -> bool:
    """Whether an object that was received is a frame, of whatever version."""
    return isinstance(content, bytes) and content[:7] == MAGIC[:7]


class Frame(NamedTuple):
    """A frame's head, and its sections by name."""

    slots: int
    sender: int
    number: int
    sections: dict[bytes, memoryview]
    span: tuple[int, int]  # see Content; of a whole step: 0, slots


KNOWN = (b"tokens", b"logprobs", MASKS, b"prompt", b"pooled", b"compact", b"span", WEIGHTS)


def sections_of(content: bytes) -> Frame:
    """Divide a frame; what is in the sections is not looked at.

    Raises
    ------
    ValueError
        If it does not add up, or has a required section that this version does not know.
    """
    frame = _Bytes(content)
    magic, slots, count, sender, number = frame.record(_HEAD)
    if magic != MAGIC:
        raise ValueError(f"a frame of version {magic[7:]!r}, this reads {MAGIC[7:]!r}")
    if not (0 <= slots <= MOST_SLOTS and 0 <= count <= MOST_SECTIONS):
        raise ValueError(
            f"a frame of {slots} slots and {count} sections; at most {MOST_SLOTS} and {MOST_SECTIONS}"
        )
    found: dict[bytes, memoryview] = {}
    sections = _divided(content, frame.at)
    if len(sections) != count:
        raise ValueError(f"the frame says that it has {count} sections, and has {len(sections)}")
    for name, marks, inside in sections:
        if name in KNOWN:
            found[name] = inside
        elif marks & SECTION_REQUIRED:
            raise ValueError(
                f"the frame has a section {name!r}, without which it cannot be understood, and which this "
                "version does not know: use the same fd_postproc on both sides"
            )
    beside = found.keys() - {b"compact", WEIGHTS}
    if b"compact" in found and beside:
        raise ValueError(f"the frame has a compact step, and sections {sorted(beside)!r} beside it")
    if b"tokens" in found and len(found[b"tokens"]) != 8 * slots:
        raise ValueError(f"{len(found[b'tokens'])} bytes of tokens for {slots} slots")
    return Frame(slots, sender, number, found, _span_in(found.get(b"span"), slots))


def _span_in(inside: Any, slots: int) -> tuple[int, int]:
    if inside is None:
        return 0, slots
    if len(inside) != _SPAN.size:
        raise ValueError(f"{len(inside)} bytes of a span")
    first, whole = _SPAN.unpack(inside)
    if not (0 <= first <= whole - slots and whole <= MOST_SLOTS):
        raise ValueError(f"the frame has slots {first} to {first + slots} of a step of {whole}")
    return first, whole


def masks_of(frame: Frame) -> dict[int, Any]:
    """Its sampling masks by slot; empty if it has none."""
    inside = frame.sections.get(MASKS)
    return {} if inside is None else _masks_of(inside, frame.slots)


def weights_of(frame: Frame) -> str | None:
    """Which weights of the model have made the step, if the worker has said so."""
    inside = frame.sections.get(WEIGHTS)
    return None if inside is None else bytes(inside).decode("utf-8", "replace")


def prompts_of(frame: Frame) -> dict[int, tuple[Array, Array, Array]]:
    """Its log-probabilities of prompts, by slot."""
    return _prompts_in(_Bytes(frame.sections.get(b"prompt", b"")), frame.slots)


def pooled_of(frame: Frame) -> dict[int, Array]:
    """Its outputs of a pooling model, by slot."""
    return _pooled_in(_Bytes(frame.sections.get(b"pooled", b"")), frame.slots)


def tokens_of(frame: Frame) -> Array | None:
    """Its tokens, a number for each slot."""
    inside = frame.sections.get(b"tokens")
    return None if inside is None else _Bytes(inside).array("<i8", frame.slots)


def rows_of(frame: Frame) -> tuple[Array, Array, Array] | None:
    """Its log-probabilities: ids, scores and ranks."""
    inside = frame.sections.get(b"logprobs")
    if inside is None:
        return None
    numbers = _Bytes(inside)
    rows, columns = numbers.array("<i4", 2).tolist()
    if not (0 <= rows <= frame.slots and columns > 0):
        raise ValueError(f"log-probabilities of {rows} rows and {columns} columns for {frame.slots} slots")
    ids, scores = numbers.array("<i4", rows, columns), numbers.array("<f4", rows, columns)
    return ids, scores, numbers.array("<i4", rows)


def opened(content: bytes) -> Content:
    """All that a frame holds; arrays share its memory.

    Raises
    ------
    ValueError
        If it does not add up: what is wrong is named.
    """
    frame = sections_of(content)
    by_slot = masks_of(frame)
    masks = [by_slot.get(slot, []) for slot in range(frame.slots)] if MASKS in frame.sections else None
    parts = tokens_of(frame), rows_of(frame), masks, prompts_of(frame), pooled_of(frame)
    compact = frame.sections.get(b"compact")
    span = frame.span if b"span" in frame.sections else None
    told = frame.sender, frame.number, span, 0, weights_of(frame)
    return Content(frame.slots, *parts, compact and bytes(compact), *told)


def _parts_in(inside: _Bytes, slots: int) -> Any:
    """(slot, kind, shape) of each part; who asks takes its arrays."""
    while inside.left():
        slot, dimensions, kind = inside.record(_PART)
        if not (0 <= slot < slots and 0 <= dimensions <= MOST_DIMENSIONS):
            raise ValueError(f"a part of the frame is of slot {slot}, with {dimensions} dimensions")
        yield slot, kind.rstrip(b"\0").decode("ascii", "replace"), inside.array("<i8", dimensions).tolist()


def _prompts_in(inside: _Bytes, slots: int) -> dict[int, tuple[Array, Array, Array]]:
    found = {}
    for slot, kind, shape in _parts_in(inside, slots):
        if kind != "prompt" or len(shape) != 2:
            raise ValueError(f"a part of the frame is {kind!r} with {len(shape)} dimensions, not a prompt")
        ids, scores = inside.array("<i8", *shape), inside.array("<f4", *shape)
        found[slot] = ids, scores, inside.array("<i8", shape[0])
    return found


def _pooled_in(inside: _Bytes, slots: int) -> dict[int, Array]:
    found = {}
    for slot, kind, shape in _parts_in(inside, slots):
        if kind not in _POOLED:
            raise ValueError(f"a pooling output of the frame is of dtype {kind!r}")
        found[slot] = inside.array(kind, *shape)
    return found

"""A step of FastDeploy's ZeroMQ road in one piece: numbers at fixed places instead of pickled objects.

::

    head      8 bytes "fdstep/1", then int32: slots, tokens (slots, or -1), rows and columns of
              log-probabilities, sections; 4 bytes 0
    tokens    int64[tokens]
    ids       int32[rows, columns], then scores float32[rows, columns], then ranks int32[rows]
    sections  each begins at a multiple of 8: a name of 8 bytes, int64 length, content

A reader refuses a section whose name it does not know, and passes over it if the name begins with "x".
``masks``: int64[slots + 1] where each slot's ids begin, then ids int64.  ``prompt`` and ``pooled``: parts of
int32 slot and number of dimensions, 8 bytes kind, int64 shape, then the arrays: ids int64, scores float32 and
ranks int64; or one array of the dtype that the kind names.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MAGIC = b"fdstep/1"
MOST_SLOTS, MOST_DIMENSIONS = 1 << 16, 8
_HEAD = struct.Struct("<8siiiii4x")
_SECTION = struct.Struct("<8sq")
_PART = struct.Struct("<ii8s")
_POOLED = ("float32", "float16", "float64")

Array = npt.NDArray[Any]


class Content(NamedTuple):
    """What a frame holds.

    Attributes
    ----------
    slots : int
    tokens : ndarray of int64, shape (slots,), or None
        None in a step of a pooling model.
    rows : tuple of ndarray or None
        Token ids (int32) and log-probabilities (float32) of shape (rows, columns), ranks (int32) of shape
        (rows,); of the first slots, which may be fewer than all.
    masks : list of ndarray or None
        Sampling masks by slot.
    prompts : dict of int to tuple of ndarray
        By slot, what `rows` holds for the tokens of a prompt; ids and ranks are int64.
    pooled : dict of int to ndarray
        By slot, what a pooling model has made.
    """

    slots: int
    tokens: Array | None
    rows: tuple[Array, Array, Array] | None = None
    masks: list[Array] | None = None
    prompts: Mapping[int, tuple[Array, Array, Array]] = MappingProxyType({})
    pooled: Mapping[int, Array] = MappingProxyType({})


def packed(content: Content) -> bytes:
    """The frame.

    Raises
    ------
    ValueError
        If it has no room for something, which is named.
    """
    parts, sections = [b""], []
    if content.masks is not None:
        masks = [np.asarray(mask).ravel() for mask in content.masks]
        if len(masks) != content.slots:
            raise ValueError(f"{len(masks)} sampling masks for {content.slots} slots")
        begins = np.cumsum([0, *map(len, masks)], dtype=np.int64)
        whole = np.concatenate([begins, *(_as(mask, np.int64, "a sampling mask") for mask in masks)])
        sections.append((b"masks", whole.tobytes()))
    if content.prompts:
        sections.append((b"prompt", b"".join(_prompt(*one) for one in content.prompts.items())))
    if content.pooled:
        sections.append((b"pooled", b"".join(_pooled(*one) for one in content.pooled.items())))
    tokens, shape = -1, (0, 0)
    if content.tokens is not None:
        tokens = content.slots
        parts.append(_as(content.tokens, np.int64, "tokens").tobytes())
    if content.rows is not None:
        ids, scores, ranks = content.rows
        if ids.ndim != 2 or scores.shape != ids.shape or ranks.shape != ids.shape[:1]:
            raise ValueError(f"log-probabilities of shapes {ids.shape}, {scores.shape} and {ranks.shape}")
        shape = len(ids), ids.shape[1]
        if shape[0] > content.slots or shape[1] == 0:
            raise ValueError(f"log-probabilities of shape {shape} for {content.slots} slots")
        parts += [_as(ids, np.int32, "ids").tobytes(), _as(scores, np.float32, "scores").tobytes()]
        parts.append(_as(ranks, np.int32, "ranks").tobytes())
    parts[0] = _HEAD.pack(MAGIC, content.slots, tokens, *shape, len(sections))
    for name, inside in sections:
        parts += [bytes(-sum(map(len, parts)) % 8), _SECTION.pack(name, len(inside)), inside]
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

    def __init__(self, content: bytes | memoryview) -> None:
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
    """Whether an object that was received is a frame."""
    return isinstance(content, bytes) and content[:7] == MAGIC[:7]


def opened(content: bytes) -> Content:
    """What a frame holds; arrays share its memory.

    Raises
    ------
    ValueError
        If it does not add up: what is wrong is named.
    """
    frame = _Bytes(content)
    magic, slots, tokens, rows, columns, sections = frame.record(_HEAD)
    if magic != MAGIC:
        raise ValueError(f"a frame of version {magic[7:]!r}, this reads {MAGIC[7:]!r}")
    if not (0 <= slots <= MOST_SLOTS and tokens in (-1, slots) and 0 <= rows <= slots and columns >= 0):
        raise ValueError(f"a frame of {slots} slots, {tokens} tokens, {rows} rows and {columns} columns")
    told = Content(slots, frame.array("<i8", slots) if tokens == slots else None)
    if columns:
        ids, scores = frame.array("<i4", rows, columns), frame.array("<f4", rows, columns)
        told = told._replace(rows=(ids, scores, frame.array("<i4", rows)))
    for _ in range(sections):
        frame.cut(-frame.at % 8)
        name, length = frame.record(_SECTION)
        inside, name = _Bytes(frame.cut(length)), name.rstrip(b"\0")
        if name == b"masks":
            told = told._replace(masks=_masks_in(inside, slots))
        elif name == b"prompt":
            told = told._replace(prompts=_prompts_in(inside, slots))
        elif name == b"pooled":
            told = told._replace(pooled=_pooled_in(inside, slots))
        elif not name.startswith(b"x"):
            raise ValueError(f"the frame has a section {name!r}, which this version does not know")
    return told


def _masks_in(inside: _Bytes, slots: int) -> list[Array]:
    begins = inside.array("<i8", slots + 1)
    ids = inside.array("<i8", inside.left() // 8)
    if begins[0] != 0 or begins[-1] != len(ids) or (np.diff(begins) < 0).any():
        raise ValueError("the sampling masks of the frame do not add up")
    places = begins.tolist()
    return [ids[begin:end] for begin, end in pairwise(places)]


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

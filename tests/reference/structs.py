"""The structs that FastDeploy's ops declare, and where a token lies in them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from ctypes import Structure, addressof, c_float, c_int32, c_int64, sizeof
from typing import Any, NamedTuple

from fd_postproc.core.layout import GPU, Layout

CHANNELS = ("plain", "topk", "spec", "spec_topk")
MTYPE = 1  # FastDeploy's only System V message type
COMPACT_MTYPE = 2  # ours
FILLER_ID, FILLER_SCORE = -1, 0.0  # what a legacy sender writes into columns that nobody asked for

# Elsewhere the sign of a slot's token says whether it holds one.
HAS_COUNTS = ("spec", "spec_topk")
HAS_LOGPROBS = ("topk", "spec_topk")


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
    else:
        # A packed sender leaves gaps here: rows are always top_k + 1 columns apart.
        slot = _struct(
            "Slot", ids=c_int32 * columns * draft, scores=c_float * columns * draft, ranks=c_int32 * draft
        )
        fields = {"words": c_int32 * 3, "counts": c_int32 * batch, "slots": slot * batch}
    return _struct(channel, mtype=c_int64, **fields)


def _struct(name: str, **fields: type) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(fields.items())})


def payload_size(channel: str, layout: Layout = GPU) -> int:
    """Bytes of a full message as FastDeploy sends it: the struct with its tail padding, less `mtype`."""
    return sizeof(structure(channel, layout)) - sizeof(c_int64)


class Capacity(NamedTuple):
    slots: int  # requests
    depth: int  # tokens of one request
    width: int  # columns of one token


def capacity_of(channel: str, layout: Layout) -> Capacity:
    return Capacity(
        slots=layout.spec_batch if channel == "spec" else layout.max_batch,
        depth=layout.max_draft if channel in HAS_COUNTS else 1,
        width=layout.top_k + 1 if channel in HAS_LOGPROBS else 1,
    )


class Row(NamedTuple):
    """Where one token lies: ids[first:first + cols], scores[first:first + cols], ranks[rank]."""

    ids: Any
    scores: Any
    first: int
    ranks: Any
    rank: int


def row_at(message: Any, channel: str, i: int, j: int, stride: int) -> Row:
    """Token j of request i.  `stride`: columns from one request to the next in a topk message."""
    if channel == "plain":
        return Row(message.ids, None, i, None, 0)
    if channel == "topk":
        return Row(message.ids, message.scores, stride * i, message.ranks, i)
    if channel == "spec":
        return Row(message.ids[i], None, j, None, 0)
    slot = message.slots[i]
    return Row(slot.ids[j], slot.scores[j], 0, slot.ranks, j)


def stride_of(dialect: str, cols: int, capacity: Capacity) -> int:
    return cols if dialect == "packed" else capacity.width


def ends_of(message: Any, channel: str, counts: list[int], cols: int, stride: int) -> Iterator[int]:
    """Where the last byte of each request ends.  Without counts, a slot is there whatever its token says."""
    for i, count in enumerate(counts):
        rows = count if channel in HAS_COUNTS else 1
        if rows > 0:
            last = row_at(message, channel, i, rows - 1, stride)
            array, n = (last.ids, last.first + cols) if last.ranks is None else (last.ranks, last.rank + 1)
            yield addressof(array) + 4 * n - addressof(message) - sizeof(c_int64)

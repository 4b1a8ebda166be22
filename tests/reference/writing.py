"""Writing messages."""

from __future__ import annotations

from ctypes import c_int32, c_int64, sizeof
from typing import Any

from fd_postproc.core.layout import GPU, Layout

from .frames import encode_frame
from .step import ReferenceStep
from .structs import (
    FILLER_ID,
    FILLER_SCORE,
    HAS_COUNTS,
    Capacity,
    capacity_of,
    ends_of,
    row_at,
    stride_of,
    structure,
)


def _check_fit(step: ReferenceStep, capacity: Capacity) -> None:
    def need(what: str, value: int, bound: int) -> None:
        if value > bound:
            text = f"the {step.channel} channel of this layout cannot carry the step"
            raise ValueError(f"{text}: {what} is {value}, at most {bound} fit")

    need("batch", step.batch, capacity.slots)
    need("columns", step.cols, capacity.width)
    for i, count in enumerate(step.counts):
        need(f"count of request {i}", count, capacity.depth)


def encode(step: ReferenceStep, dialect: str = "packed", *, layout: Layout = GPU) -> bytes:
    """Write a step as one message; see `fd_postproc.encode`.

    Packed and legacy are what FastDeploy's senders would write, up to the last live slot.
    A legacy message has all columns; those that the step lacks are filled with id -1 and score 0.0.  Slots
    without a token hold their code in every column, and zero scores and ranks."""
    channel, batch, capacity = step.channel, step.batch, capacity_of(step.channel, layout)
    if dialect == "compact":  # more requests on the spec channel
        capacity = capacity._replace(slots=layout.max_batch)
    _check_fit(step, capacity)
    if dialect == "compact":
        return encode_frame(step)

    message: Any = structure(channel, layout)()
    cols = stride = stride_of(dialect, step.cols, capacity)
    packed = step.cols if dialect == "packed" else 0
    if channel == "topk":
        message.words[:] = step.stop_flag, c_int32(batch | packed << 16).value
    elif channel == "spec_topk":
        message.words[:] = step.stop_flag, c_int32(step.flag | packed << 8).value, batch
    else:
        message.words[:] = step.stop_flag, batch
    if channel in HAS_COUNTS:
        message.counts[:batch] = step.counts

    filler = cols - step.cols
    r = 0
    for i, count in enumerate(step.counts):
        if count < 0 and channel not in HAS_COUNTS:
            to = row_at(message, channel, i, 0, stride)
            to.ids[to.first : to.first + cols] = [count] * cols
        for j in range(count):
            to = row_at(message, channel, i, j, stride)
            to.ids[to.first : to.first + cols] = step.ids[r] + [FILLER_ID] * filler
            if step.scores is not None and step.ranks is not None:
                to.scores[to.first : to.first + cols] = step.scores[r] + [FILLER_SCORE] * filler
                to.ranks[to.rank] = step.ranks[r]
            r += 1

    header = sizeof(message.words) + (4 * batch if channel in HAS_COUNTS else 0)
    end = max([header, *ends_of(message, channel, step.counts, cols, stride)])
    return bytes(message)[sizeof(c_int64) :][:end]

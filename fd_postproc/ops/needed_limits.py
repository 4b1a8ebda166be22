"""Needs of a step of some size: bytes by channel and dialect, messages, kernel limits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._core import LEAST_LIMIT, Step, encode, has_counts, has_logprobs, payload_size
from ..core.layout import Channel, Dialect, Layout
from ..queues import KernelLimits

# FastDeploy's own FAQ names these two values; they fit every channel of its layouts.
_MSGMAX = 1 << 20
_MSGMNB = 256 << 20


class Load(NamedTuple):
    """The expected size of a step."""

    batch: int = 256  # requests
    accepted: int = 2  # tokens of each, on channels with speculation
    columns: int = 21  # on channels with logprobs


class Need(NamedTuple):
    """Bytes of one step on a channel."""

    channel: Channel
    full: int  # FastDeploy's own message, whatever it carries
    packed: int | None  # ours for the load; None where the dialect cannot carry it
    compact: int | None


def example_step(channel: Channel, load: Load) -> Step:
    """A step as heavy as the load."""
    counts = np.full(load.batch, load.accepted if has_counts(channel) else 1, np.int32)
    rows = int(counts.sum())
    if not has_logprobs(channel):
        return Step.from_arrays(channel, counts, np.zeros((rows, 1), np.int32))
    cells = (rows, load.columns)
    ranks = np.ones(rows, np.int32)
    return Step.from_arrays(channel, counts, np.zeros(cells, np.int32), np.zeros(cells, np.float32), ranks)


def need(channel: Channel, load: Load, layout: Layout) -> Need:
    """Measure what a channel needs for a load, by encoding such a step."""
    step = example_step(channel, load)

    def size(dialect: Dialect) -> int | None:
        try:
            return len(encode(step, dialect, layout=layout))
        except ValueError:
            return None

    return Need(channel, payload_size(channel, layout), size("packed"), size("compact"))


def fragments(frame: int, limit: int) -> int | None:
    """Number of messages of `limit` bytes for a compact frame; None if it is too small."""
    if frame <= limit:
        return 1
    if limit < LEAST_LIMIT:
        return None
    header = len(encode(Step.from_arrays("plain", [], []), "compact"))  # a frame that carries nothing
    return -(-(frame - header) // (limit - header))


def wanted_limits(full: int, limits: KernelLimits) -> tuple[str, str]:
    """Settings that let FastDeploy's own messages of `full` bytes through; limits are never lowered."""
    largest = max(_MSGMAX, 1 << (full - 1).bit_length())
    return (
        f"kernel.msgmax={max(limits.msgmax, largest)}",
        f"kernel.msgmnb={max(limits.msgmnb, _MSGMNB)}",
    )

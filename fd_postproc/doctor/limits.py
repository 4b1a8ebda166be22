"""Kernel limits against what each channel and dialect needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core import LEAST_LIMIT, Step, encode, payload_size
from ..layout import Layout
from ..queues import KernelLimits
from .findings import Finding, Load, Scope

# FastDeploy's own FAQ names these two values; they fit every channel of its layouts.
_MSGMAX = 1 << 20
_MSGMNB = 256 << 20


@dataclass(frozen=True)
class Need:
    """Bytes of one step on a channel.

    Attributes
    ----------
    channel : str
    full : int
        FastDeploy's own message, whatever it carries.
    packed, compact : int or None
        Ours for the load; None where the dialect cannot carry it.
    """

    channel: str
    full: int
    packed: int | None
    compact: int | None


def example_step(channel: str, load: Load) -> Step:
    """A step as heavy as the load."""
    counts = np.full(load.batch, load.accepted if channel.startswith("spec") else 1, np.int32)
    rows = int(counts.sum())
    if not channel.endswith("topk"):
        return Step.from_arrays(channel, counts, np.zeros((rows, 1), np.int32))
    cells = (rows, load.columns)
    ranks = np.ones(rows, np.int32)
    return Step.from_arrays(channel, counts, np.zeros(cells, np.int32), np.zeros(cells, np.float32), ranks)


def need(channel: str, load: Load, layout: Layout) -> Need:
    """What a channel needs for a load, by encoding such a step."""
    step = example_step(channel, load)

    def size(dialect: str) -> int | None:
        try:
            return len(encode(step, dialect, layout=layout))
        except ValueError:
            return None

    return Need(channel, payload_size(channel, layout), size("packed"), size("compact"))


def fragments(frame: int, limit: int) -> int | None:
    """Messages that a compact frame takes where one may have `limit` bytes; None if it is too few for any."""
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


def limits_remedy(full: int, limits: KernelLimits) -> tuple[str, ...]:
    """How to let FastDeploy's own messages of `full` bytes through."""
    wanted = wanted_limits(full, limits)
    return (
        f"if FastDeploy's own ops send, as root: sysctl -w {' '.join(wanted)}",
        f"in Docker: docker run {' '.join('--sysctl ' + one for one in wanted)} "
        "(with --ipc=host or --ipc=container:NAME: set them there)",
        "then stop the service, remove its queues and start it: a queue keeps the size it was made with",
    )


def check_limits(limits: KernelLimits, scope: Scope) -> list[Finding]:
    """One finding for each channel."""
    needs = [need(channel, scope.load, scope.layout) for channel in scope.channels]
    room = min(limits.msgmax, limits.msgmnb)
    largest = max(one.full for one in needs)
    found = []
    for one in needs:
        data: dict[str, Any] = {
            "channel": one.channel,
            "full": one.full,
            "packed": one.packed,
            "compact": one.compact,
            "fragments": None,
        }
        ours = [_packed(one, room)]
        if one.compact is not None:
            data["fragments"] = fragments(one.compact, min(room, one.full))
            if one.packed is None or one.packed > room or one.channel.endswith("topk"):
                ours.append(_compact(one.compact, data["fragments"]))
        our_text = f"ours for this load: {', '.join(ours)}"
        if one.full <= room:
            seen = f"FastDeploy's own messages of {one.full:,} bytes fit; {our_text}"
            found.append(Finding("ok", "limits", "limits-fit", one.channel, seen, data=data))
            continue
        if one.full <= limits.msgmax:
            code, why = "limits-hang", "wait for ever: longer than kernel.msgmnb"
        else:
            code, why = "limits-too-small", "are refused: longer than kernel.msgmax"
        seen = f"FastDeploy's own messages of {one.full:,} bytes {why}; {our_text}"
        severity = "error" if scope.stock else "warning"
        remedy = limits_remedy(largest, limits)
        found.append(Finding(severity, "limits", code, one.channel, seen, remedy, data=data))
    return found


def _packed(one: Need, room: int) -> str:
    if one.packed is None:
        return "packed cannot carry it"
    return f"packed {one.packed:,} ({'fits' if one.packed <= room else 'too long'})"


def _compact(size: int, messages: int | None) -> str:
    if messages is None:
        return f"compact {size:,} (needs messages of {LEAST_LIMIT} bytes or more)"
    return f"compact {size:,} (fits{f' in {messages} fragments' if messages > 1 else ''})"

"""Sections behind the body of a compact frame, and what they hold.

A section is a name of 8 bytes, padded with 0; uint32 marks, whose bit 0 says that it is required; 4 bytes of
nothing; int64 length; the content; and 0s up to a multiple of 8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fd_postproc.errors import MalformedMessage

SECTIONED = 2  # in `features`
MOST_SECTIONS, MOST_EXTRA = 64, 1 << 20
REQUIRED = 1
MASKS, WEIGHTS = b"masks/2", b"weights"
ONE_MASK = -1
_HEAD = struct.Struct("<8sI4xq")

Masks = dict[int, Any]  # by slot: a list of ids, or a list of such lists


def padded(length: int) -> int:
    """The next multiple of 8."""
    return length + -length % 8


def section(name: bytes, marks: int, content: bytes) -> bytes:
    """One section."""
    return _HEAD.pack(name, marks, len(content)) + content + bytes(-len(content) % 8)


def encode_masks(masks: Masks, slots: int) -> bytes:
    """The content of the section of the masks."""
    counts, lists = [0] * slots, []
    for slot, one in sorted(masks.items()):
        by_token = bool(one) and isinstance(one[0], list)
        counts[slot] = len(one) if by_token else ONE_MASK
        lists += one if by_token else [one]
    begins = [sum(map(len, lists[:k])) for k in range(len(lists) + 1)]
    numbers = [slots, len(lists), *counts, *begins, *(number for one in lists for number in one)]
    return struct.pack(f"<{len(numbers)}i", *numbers)


def encode_extra(masks: Masks | None, weights: str | None, slots: int) -> bytes:
    """The sections of a step; empty if it needs none."""
    extra = b""
    if masks is not None:
        extra += section(MASKS, REQUIRED, encode_masks(masks, slots))
    if weights is not None:
        extra += section(WEIGHTS, 0, weights.encode())
    return extra


def decode_masks(content: bytes, slots: int, channel: str) -> Masks:
    """What the section of the masks holds."""

    def refuse(value: int, bound: int, where: int | None = None) -> None:
        raise MalformedMessage(channel, "masks", value, bound, where)

    if len(content) % 4 or len(content) < 12:
        refuse(len(content), 12)
    numbers = list(struct.unpack(f"<{len(content) // 4}i", content))
    told_slots, told_masks, *numbers = numbers
    if told_slots != slots:
        refuse(told_slots, slots)
    most = len(numbers) - 1 - slots
    if not 0 <= told_masks <= most:
        refuse(told_masks, most)
    counts, begins = numbers[:slots], numbers[slots : slots + told_masks + 1]
    ids, there = numbers[slots + told_masks + 1 :], 0
    for slot, count in enumerate(counts):
        if not ONE_MASK <= count <= told_masks - there:
            refuse(count, told_masks - there, slot)
        there += 1 if count == ONE_MASK else count
    if there != told_masks:
        refuse(told_masks, there)
    for k, begin in enumerate(begins):
        before = begins[k - 1] if k else 0
        if k == told_masks and begin >= before and begin != len(ids):
            refuse(begin, len(ids), k)
        if not before <= begin <= len(ids) or (k == 0 and begin):
            refuse(begin, before, k)
    lists = iter([ids[begin:end] for begin, end in pairwise(begins)])
    masks: Masks = {}
    for slot, count in enumerate(counts):
        if count == ONE_MASK:
            masks[slot] = next(lists)
        elif count > 0:
            masks[slot] = [next(lists) for _ in range(count)]
    return masks


def divided(frame: bytes, begin: int, channel: str) -> Iterator[tuple[bytes, int, bytes]]:
    """Name, marks and content of each section from `begin` on."""
    at, seen = begin, list[bytes]()
    while at < len(frame):
        if at > len(frame) - _HEAD.size:
            raise MalformedMessage(channel, "sections", at, len(frame))
        name, marks, length = _HEAD.unpack_from(frame, at)
        if length < 0 or padded(length) > len(frame) - at - _HEAD.size:
            raise MalformedMessage(channel, "sections", at, len(frame))
        if len(seen) == MOST_SECTIONS:
            raise MalformedMessage(channel, "sections", MOST_SECTIONS + 1, MOST_SECTIONS)
        if name in seen:
            raise MalformedMessage(channel, "sections", at + _HEAD.size, len(frame))
        seen.append(name)
        at += _HEAD.size
        yield name.rstrip(b"\0"), marks, frame[at : at + length]
        at += padded(length)


def decode_extra(frame: bytes, begin: int, slots: int, channel: str) -> tuple[Masks | None, str | None]:
    """Masks and weight version of a whole frame."""
    masks, weights = None, None
    for name, marks, content in divided(frame, begin, channel):
        if name == MASKS:
            masks = decode_masks(content, slots, channel)
        elif name == WEIGHTS:
            weights = content.decode("utf-8", "replace")
        elif marks & REQUIRED:
            number = int.from_bytes(name.ljust(8, b"\0"), "little", signed=True)
            raise MalformedMessage(channel, "section", number, 0)
    return masks, weights

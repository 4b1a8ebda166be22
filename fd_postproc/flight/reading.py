"""Reads a flight recorder's file: a live one, a dead process's, or one with arbitrary content.

Every entry has its place and a check word, so nothing in the file says where to read on, or how much.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass
from typing import NamedTuple

from .._core import CHANNELS, _check_words
from .codes import (
    BOOT_AT,
    BUSY_AT,
    BUSY_WORD,
    ENTRY_SIZE,
    HEAD,
    HEAD_SIZE,
    MAGIC,
    NODE_AT,
    NODE_SIZE,
    NOTE_AT,
    NOTE_SIZE,
    NUMBERS,
    QUEUE_BODY,
    STEP_BODY,
    VERSION,
    Kind,
)
from .files import writer_of

LONGEST_FILE = 1 << 30
_DIALECTS = ("legacy", "packed", "compact", None)


class FlightError(ValueError):
    """Raised for a file that is not a flight recorder's."""


class StepEntry(NamedTuple):
    """A processed step.  Times are monotonic seconds of the machine, stages seconds."""

    at: float
    frame: int | None
    channel: str
    length: int
    batch: int
    live: int
    rows: int
    sum: int
    receive: float
    build: float
    put: float
    results: int
    sender: int


class QueueEntry(NamedTuple):
    """State of the queue."""

    at: float
    messages: int
    bytes: int
    max_bytes: int
    msgmax: int
    last_sender: int
    last_receiver: int
    running: int
    transfers: int
    state: str
    ticks: int
    error: int
    reader_is_foreign: bool


class Event(NamedTuple):
    """Any other event; `codes.Kind` explains its numbers."""

    at: float
    kind: int
    slot: int
    numbers: tuple[int, ...]
    text: str


class Live(NamedTuple):
    """Slots with tokens, from the next step on."""

    at: float
    slots: frozenset[int]


class MessageEntry(NamedTuple):
    """A recorded message."""

    at: float
    mtype: int
    payload: bytes


Entry = StepEntry | QueueEntry | Event | Live | MessageEntry


@dataclass(frozen=True)
class Flight:
    """Content of a file, and what is known of the process that wrote it."""

    name: str
    side: str
    channel: str
    version: str
    pid: int
    queue_id: int
    key: int
    began_ns: int  # Unix time
    began: float  # monotonic seconds, as all times here
    busy_since: float | None  # since then a step is in hand
    writer: int | None  # the process that still writes it
    size: int  # bytes of the ring
    overwritten: int  # entries that newer ones have replaced
    torn: int  # incomplete entries where the writer is, or died: 1 at most
    damaged: int  # incomplete entries of another origin
    entries: list[Entry]  # in the order in which they were written
    boot: bytes = b""  # the kernel's boot id: monotonic times of others cannot be compared
    node: str = ""  # the engine's role and rank, where there are several
    note: str = ""  # why a worker has stopped using the save kernel


def is_flight(head: bytes) -> bool:
    """Whether a file's first bytes are a flight recorder's."""
    return head.startswith(MAGIC)


def read(path: str, most: int | None = None) -> Flight:
    """Read a file, or its newest entries only; with `most` 0 its head.

    Raises
    ------
    FlightError
        If it is not a flight recorder's, or not of this version; the text names it.
    OSError
        If it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket's
            raise
        raise FlightError(f"{path} is not a regular file") from None
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder: name a file in it", path)
        if not stat.S_ISREG(found.st_mode):
            raise FlightError(f"{path} is not a regular file")
        writer = writer_of(descriptor)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(HEAD_SIZE if most == 0 else min(found.st_size, LONGEST_FILE))
    finally:
        os.close(descriptor)
    return parse(data, path, writer, most)


def parse(data: bytes, name: str = "recording", writer: int | None = None, most: int | None = None) -> Flight:
    """Parse a file's bytes; raises FlightError as `read` does."""
    if not is_flight(data):
        raise FlightError(f"{name} is not a flight recorder's file")
    if len(data) < HEAD_SIZE:
        raise FlightError(f"{name} ends within its head, at byte {len(data)} of {HEAD_SIZE}")
    _, version, entry_size, n, pid, wall, mono, queue_id, key, texts, build = HEAD.unpack_from(data)
    if version != VERSION or entry_size != ENTRY_SIZE:
        raise FlightError(f"{name} has format version {version}; this program reads version {VERSION}")
    channel, _, side = texts.partition(b"\0")
    (busy,) = BUSY_WORD.unpack_from(data, BUSY_AT)
    entries, overwritten, torn, damaged = _entries(data, n, most)
    return Flight(
        name, _text(side), _text(channel), _text(build), pid, queue_id, key, wall, mono / 1e9,
        busy / 1e9 if busy else None, writer, n * ENTRY_SIZE, overwritten, torn, damaged, entries,
        data[BOOT_AT : BOOT_AT + 16], _text(data[NODE_AT : NODE_AT + NODE_SIZE]),
        _text(data[NOTE_AT : NOTE_AT + NOTE_SIZE]),
    )  # fmt: skip


def _text(data: bytes) -> str:
    """The text with ``?`` for unprintable characters."""
    return "".join(c if c.isprintable() else "?" for c in data.rstrip(b"\0").decode("utf-8", "replace"))


def _entries(data: bytes, n: int, most: int | None) -> tuple[list[Entry], int, int, int]:
    """The whole entries in order; the numbers of overwritten, torn and damaged ones."""
    import numpy as np

    n = min(n, (len(data) - HEAD_SIZE) // ENTRY_SIZE)
    if n < 1:
        return [], 0, 0, 0
    words = np.frombuffer(data, "<u8", n * ENTRY_SIZE // 8, HEAD_SIZE).reshape(n, ENTRY_SIZE // 8)
    numbers = words[:, 0]
    with np.errstate(over="ignore"):
        whole = np.frombuffer(_check_words(data, n), "<u4") == words[:, 1] & 0xFFFFFFFF
        whole &= (numbers % n == np.arange(n)) & (numbers > 0)
        if not whole.any():
            broken = int((words != 0).any(axis=1).sum())
            return [], 0, min(broken, 1), max(broken - 1, 0)
        newest = numbers[whole].max()
        whole &= newest - numbers < n
    broken = (words != 0).any(axis=1) & ~whole
    torn = bool(broken[(int(newest) + 1) % n])
    places = np.nonzero(whole)[0]
    places = places[np.argsort(numbers[places])][-most if most else 0 :]
    gone = max(int(newest) - n, 0)
    return _parsed(data, places.tolist(), numbers[places].tolist()), gone, int(torn), int(broken.sum()) - torn


def _parsed(data: bytes, places: list[int], numbers: list[int]) -> list[Entry]:
    """The whole entries, with their texts and bytes."""
    made: list[Entry] = []
    view, before = memoryview(data), -1
    live: set[int] = set()
    parts: list[bytes] = []  # of a text or a message; where one of them is gone, the rest is dropped
    for place, number in zip(places, numbers, strict=True):
        at = HEAD_SIZE + ENTRY_SIZE * place
        kind, flags, slot = data[at + 12], data[at + 13], int.from_bytes(data[at + 14 : at + 16], "little")
        when, body = (
            int.from_bytes(data[at + 16 : at + 24], "little", signed=True) / 1e9,
            view[at + 24 : at + 64],
        )
        follows, before = number == before + 1, number
        if kind in (Kind.TEXT, Kind.DATA):
            if follows and made:
                parts.append(bytes(body[: min(slot, len(body))]))
                if not flags & 1:
                    _give(made, kind, b"".join(parts))
                    parts = []
            continue
        parts = []
        if kind == Kind.LIVE:
            if slot == 0:
                live = set()
            for k, word in enumerate(NUMBERS.unpack(body)):
                word &= (1 << 64) - 1
                live.update(slot + 64 * k + bit for bit in range(64) if word >> bit & 1)
            if not flags & 1:
                made.append(Live(when, frozenset(live)))
        elif kind == Kind.STEP:
            frame, length, rows, total, receive, build, put, batch, results, sender = STEP_BODY.unpack(body)
            dialect, channel = _DIALECTS[flags & 3], CHANNELS[flags >> 2 & 3]
            stages = (_seconds(receive), _seconds(build), _seconds(put))
            made.append(
                StepEntry(
                    when, frame if dialect == "compact" else None, channel, length, batch, slot, rows, total,
                    *stages, results, sender,
                )
            )  # fmt: skip
        elif kind == Kind.QUEUE:
            a, b, c, d, e, f, running, transfers, state, ticks, code = QUEUE_BODY.unpack(body)
            letter = chr(state) if 33 <= state < 127 else ""
            made.append(
                QueueEntry(when, a, b, c, d, e, f, running, transfers, letter, ticks, -code, bool(flags & 1))
            )
        else:
            made.append(Event(when, kind, slot - 65536 if slot == 65535 else slot, NUMBERS.unpack(body), ""))
    return made


def _give(made: list[Entry], kind: int, data: bytes) -> None:
    """Attach a text or a message's bytes to its entry."""
    last = made[-1]
    if not isinstance(last, Event):
        return
    if kind == Kind.TEXT:
        made[-1] = last._replace(text=_text(data))
    elif last.kind == Kind.FRAME and len(data) == last.numbers[1]:
        made[-1] = MessageEntry(last.at, last.numbers[0], data)


def _seconds(value: float) -> float:
    return value if 0 <= value < 1e9 else 0.0


def now() -> float:
    """The clock of entries in seconds: the machine's, the same in every process."""
    return time.monotonic()

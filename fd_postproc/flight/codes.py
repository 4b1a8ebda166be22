"""Codes in a flight recorder's file; never changed, only added to, since files are kept."""

from __future__ import annotations

import struct
from enum import IntEnum
from hashlib import blake2b

VERSION = 2  # of the check words
MAGIC = b"\x89FDFLT\r\n"
HEAD = struct.Struct("<8sIIQqqqqi12x16s32s")
"""A file's head: magic, version, bytes of an entry, entries, process, Unix and monotonic time in ns, id and
key of the queue; channel and side, and version of fd_postproc, as texts."""
HEAD_SIZE, ENTRY_SIZE = 4096, 64
BUSY_WORD = struct.Struct("<Q")
"""Word at `BUSY_AT`: since when a step is in hand, monotonic ns, or 0."""
BUSY_AT = 264
BOOT_AT = 272
"""Place of the kernel's boot id, 16 bytes: monotonic times of one boot compare; 0 in older files."""
NODE_AT, NODE_SIZE = 288, 48
"""Place of a text: the engine's role and rank where there are several; empty in older files."""
NOTE_AT, NOTE_SIZE = 336, 600
"""Place of a text that stays as long as the process: why its worker no longer uses the save kernel."""

STEP_BODY = struct.Struct("<QIIIfffHHI")
"""Number of the frame, bytes, rows, sum; seconds to receive, build and put; batch, results, sender."""
QUEUE_BODY = struct.Struct("<IIIIiiHHIIi")
"""Messages, bytes, most bytes, msgmax; last sender and receiver; running and transferring requests; state and
CPU ticks of the sender; minus errno."""
NUMBERS = struct.Struct("<5q")


class Kind(IntEnum):
    """Kind of an entry, and the meaning of its five numbers."""

    STEP = 1  # `STEP_BODY`; slot: requests with tokens
    LIVE = 2  # slots with tokens, a bit each, from the number in slot on, as of the next step
    TEXT = 3  # belongs to the entry before
    QUEUE = 4  # `QUEUE_BODY`
    FRAME = 5  # a message: type, bytes; its bytes follow
    DATA = 6

    SEATED = 10  # a request is in a slot: hash
    BEGAN = 11  # its first token: hash, prompt tokens, microseconds since it arrived or -1
    ENDED = 12  # hash, tokens, `End`
    FAILED = 13  # ended with an error: hash; text
    PREEMPTED = 14  # hash
    ABORTED = 15  # hash
    LEFT = 16  # its slot was free, or another's, without a word: hash

    REFUSED = 20  # a message: value, bound, index, bytes; text: field
    LOST = 21  # a step; text
    INCOMPLETE = 22  # frames that never became whole: how many
    STALE = 23  # messages of an earlier run: how many
    UNDELIVERED = 24  # results; text
    QUEUE_MADE = 25  # msqid, key
    QUEUE_REMOVED = 26  # msqid
    QUEUE_ERROR = 27  # errno; text
    MISSING = 28  # frames, by their numbers: how many
    DOUBLED = 29
    REORDERED = 34
    OPEN = 37  # frames of which no more has come for a second: how many
    # 38 and 39, of earlier versions: who may use the queue, and how long the thread waited for a processor

    FELL_BACK = 30  # text
    ACTIVE = 31  # text
    UNHEALTHY = 35  # text: reason, and what is wrong
    HEALTHY = 36  # again
    SENT = 32  # a message: number, ns that it took, batch, 1 for a draft's; slot: the op
    SEND_FAILED = 33  # number; text

    CLOSED = 40  # the recorder ended in good order, or the process's exit has begun


class End(IntEnum):
    """A request's kind of end."""

    TOKEN = 0
    PREFILLED = 1  # it goes on in another instance
    RECOVERY = 2
    CLEARED = 3


def request_hash(name: str) -> int:
    """The hash of a request's id in the file: 63 bits, which do not reveal the id."""
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "little") >> 1

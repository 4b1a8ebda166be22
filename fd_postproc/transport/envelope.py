"""What the two ends of a ZeroMQ connection say to each other beside the frames.

ZeroMQ loses what is on its way when a connection breaks, and tells nobody.  So a sender keeps each frame
until the receiver's program has taken it, and sends it again after a new connection.

To the receiver: 32 bytes, then for `FRAME` the frame.  u32 magic, u8 version, u8 kind, u16 zero; u64 session,
random, of this sender and process; u64 number of the frame, from 0 (of the others: of the next one); u64
base, the lowest number that has not been acknowledged.  Back: u32 magic, u8 version, u8 kind, u16 zero, u64
session, u64 number.  Little-endian.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import NamedTuple

MAGIC = 0x515A4446  # the bytes FDZQ
VERSION = 1
FRAME, SYNC, FAREWELL = 1, 2, 3
TAKEN, HELLO, RESEND, LAST = 1, 2, 3, 4
"""`TAKEN`: all frames below `number` were taken.  `HELLO`: the answer to ZeroMQ's empty first message, by
which a receiver learns of a connection.  `RESEND`: the answer to `SYNC`: send from `number` on.  `LAST`: as
`TAKEN`, and the receiver is about to go: send nothing more through this connection, and answer with
`FAREWELL`.  Without that, what a socket has not read when it is closed would cost what it had said last."""

TO_RECEIVER = struct.Struct("<IBBHQQQ")
TO_SENDER = struct.Struct("<IBBHQQ")
_MOST_SESSIONS = 1024


class Answer(NamedTuple):
    """What a receiver said."""

    kind: int
    session: int
    number: int


def answer(kind: int, session: int = 0, number: int = 0) -> bytes:
    """What a receiver says."""
    return TO_SENDER.pack(MAGIC, VERSION, kind, 0, session, number)


def read_answer(data: bytes) -> Answer | None:
    """None if these bytes are none."""
    if len(data) != TO_SENDER.size:
        return None
    magic, version, kind, _, session, number = TO_SENDER.unpack(data)
    return Answer(kind, session, number) if (magic, version) == (MAGIC, VERSION) else None


class Ledger:
    """Which frame of each session a receiver takes next.

    Memory is fixed: of the sessions, the last 1,024 that were heard.
    """

    def __init__(self) -> None:
        self._due: OrderedDict[int, int] = OrderedDict()

    def due(self, session: int, base: int) -> int:
        """The number that comes next; of a session that is not known, the lowest that it still has."""
        due = self._due.get(session)
        if due is None or due < base:
            due = self._due[session] = base
            if len(self._due) > _MOST_SESSIONS:
                self._due.popitem(last=False)
        return due

    def took(self, session: int, number: int) -> None:
        """A frame was taken."""
        self._due[session] = number + 1
        self._due.move_to_end(session)

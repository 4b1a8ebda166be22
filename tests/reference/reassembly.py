"""Frames in pieces, put together again, and who has to give way when memory is short.

A sender that has completed a frame in pieces is known; all others are strangers, which share a room of their
own.  Every rule is applied to a plain table of senders, by looking at all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fd_postproc.core.layout import GPU, Layout
from fd_postproc.errors import MalformedMessage

from .frames import HEADER_SIZE, FrameHeader, check_service, decode_frame, frame_size, read_header
from .sections import MOST_EXTRA, padded
from .sequences import Sequences
from .step import ReferenceStep
from .structs import capacity_of

LEAST_ROOM = 512 << 10  # bytes for the frames of all strangers, less sections, at the least
MOST_KNOWN = 64  # known senders
MOST_REMEMBERED = 256  # strangers without an open frame, of which is remembered what they lost
KNOWN_ROOMS = 8  # the room of known senders, in rooms of strangers
ENTRY_COST = 192  # bytes that an open frame is charged with, beside its own
IDLE = 5.0  # seconds after which a sender goes first
SILENCE = 60.0  # seconds after which an unfinished frame is given up


@dataclass
class _Sender:
    heard: float  # seconds
    turn: int  # the same, but never twice
    completed: int = 0  # frames in pieces; 0: a stranger
    lost: int | None = None  # its last frame of which something is missing
    rested: int = 0  # the turn at which it was left without an open frame
    header: FrameHeader | None = None  # of the open frame's last piece; None: there is none
    body: bytes = b""

    @property
    def known(self) -> bool:
        return self.completed > 0

    @property
    def charge(self) -> int:
        """Bytes that the open frame is charged with: a known sender's is believed to come."""
        if self.header is None:
            return 0
        return ENTRY_COST + (self.header.total if self.known else HEADER_SIZE + len(self.body))

    @property
    def size(self) -> int:
        """What has come of the open frame, in powers of two; from 2 MiB on all are alike."""
        return min((HEADER_SIZE + len(self.body)).bit_length(), 22)


class Reassembler:
    """Puts fragments together again."""

    def __init__(self, channel: str, layout: Layout = GPU, *, service: int = 0) -> None:
        self.channel, self.layout, self.service = channel, layout, service
        self.fragments = self.incomplete = self.foreign = 0
        self._numbered = False  # whether a frame with the number has come
        self.sequences = Sequences()
        self._senders: dict[int, _Sender] = {}
        self._turn = 0
        most, capacity = layout.max_batch, capacity_of(channel, layout)
        longest = frame_size(channel, most, most * capacity.depth, capacity.width)
        self._room = max(padded(longest) + ENTRY_COST, LEAST_ROOM) + MOST_EXTRA

    def add(self, message: bytes, now: float = 0.0) -> ReferenceStep | None:
        """One message of type 2; the step that it completes, if any."""
        if self.service:
            try:
                check_service(message, self.channel, self.service, required=self._numbered)
            except MalformedMessage:
                self.foreign += 1
                raise
        header = read_header(message, self.channel, self.layout, whole=False)
        sender, body = header.sender, message[HEADER_SIZE:]
        if header.fragments == 1:
            try:
                step = decode_frame(message, self.channel, self.layout)
            except MalformedMessage as error:
                if error.field == "checksum":  # nobody knows whose it is
                    raise
                step, fault = None, error
            self._hear(sender, now)
            self._lose(sender)  # it has gone on to another frame
            if step is None:
                raise fault
            self._numbered |= bool(header.service)
            self.sequences.note(sender, header.seq)
            return step
        self.fragments += 1
        if header.fragment == 0:
            if len(message) > header.total:
                raise MalformedMessage(self.channel, "length", len(message), header.total)
            self._lose_silent(now)
            self._hear(sender, now, make=True)
            self._lose(sender)
            self._take(sender, header, body, now)
            return None
        self._hear(sender, now, make=True)
        if not self._continues(self._senders[sender], header, body):
            self._lose(sender)
            self._count_lost(sender, header.seq)
            self._rest(sender)
            return None
        self._take(sender, header, self._senders[sender].body + body, now)
        return self._finish(sender, header, now) if header.fragment == header.fragments - 1 else None

    def _finish(self, sender: int, header: FrameHeader, now: float) -> ReferenceStep | None:
        one = self._senders[sender]
        if HEADER_SIZE + len(one.body) != header.total:
            self._lose(sender)
            return None
        whole = header._replace(fragment=0, fragments=1).pack() + one.body
        one.header, one.body = None, b""
        try:
            step = decode_frame(whole, self.channel, self.layout)
        except MalformedMessage:
            self._rest(sender)
            raise
        one.completed += 1
        self._numbered |= bool(header.service)
        self.sequences.note(sender, header.seq)
        self._rest(sender)
        known = {name for name, other in self._senders.items() if other.known}
        if len(known) > MOST_KNOWN:
            last = min(known, key=lambda name: self._standing(name, now))
            self._lose(last)
            self._senders[last].completed = 0
            self._rest(last)
        return step

    @staticmethod
    def _continues(one: _Sender, header: FrameHeader, body: bytes) -> bool:
        """Is this the open frame's next fragment?"""
        return (
            one.header is not None
            and header.frame() == one.header.frame()
            and header.fragment == one.header.fragment + 1
            and HEADER_SIZE + len(one.body) + len(body) <= header.total
        )

    def _hear(self, sender: int, now: float, *, make: bool = False) -> None:
        self._turn += 1
        if sender in self._senders:
            self._senders[sender].heard, self._senders[sender].turn = now, self._turn
        elif make:
            self._senders[sender] = _Sender(now, self._turn)

    def _take(self, sender: int, header: FrameHeader, body: bytes, now: float) -> None:
        """So much has come of a frame now; others give way."""
        one = self._senders[sender]
        one.header, one.body = header, body
        room = KNOWN_ROOMS * self._room if one.known else self._room
        alike = {name: other for name, other in self._senders.items() if other.known == one.known}
        while sum(other.charge for other in alike.values()) > room:
            others = [name for name, other in alike.items() if other.header and other is not one]
            self._lose(min(others, key=lambda name: self._standing(name, now)))

    def _standing(self, sender: int, now: float) -> tuple[int, ...]:
        """The sender with the lowest goes first: an idle one, or one of whom little has come."""
        one = self._senders[sender]
        if now - one.heard >= IDLE:
            return 0, one.turn
        if one.known:
            return 1, one.completed, one.turn
        return 1, one.size, one.turn

    def _lose_silent(self, now: float) -> None:
        """Give up what has been silent for very long, strangers and small frames first."""
        silent = [name for name, one in self._senders.items() if one.header and now - one.heard >= SILENCE]

        def order(name: int) -> tuple[bool, int, int]:
            one = self._senders[name]
            return one.known, 0 if one.known else one.size, one.turn

        for name in sorted(silent, key=order):
            self._lose(name)

    def _lose(self, sender: int) -> None:
        """Give up the open frame of a sender, if it has one."""
        one = self._senders.get(sender)
        if one is not None and one.header is not None:
            header, one.header, one.body = one.header, None, b""
            self._count_lost(sender, header.seq)
            self._rest(sender)

    def _count_lost(self, sender: int, seq: int) -> None:
        if self._senders[sender].lost != seq:
            self._senders[sender].lost = seq
            self.incomplete += 1

    def _rest(self, sender: int) -> None:
        """A sender has no open frame any more.  Of strangers, only the last ones are remembered."""
        self._turn += 1
        self._senders[sender].rested = self._turn
        strangers = {name: one for name, one in self._senders.items() if not one.known}
        resting = {name: one.rested for name, one in strangers.items() if not one.header}
        if len(resting) > MOST_REMEMBERED:
            del self._senders[min(resting, key=resting.__getitem__)]

"""Writes a flight recorder's file, in entries.

Nothing here raises, waits or disturbs: without a file every call does nothing.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

from .._core import FlightRing
from ..core.layout import Channel
from ..queues import locate
from ..support.environment import FLIGHT, FLIGHT_TOKENS, is_on
from ..support.process_stat import process_stat
from . import files
from .codes import NOTE_AT, NOTE_SIZE, End, Kind, request_hash

_LONGEST_TEXT = 600  # bytes


class Recorder:
    """Recorder of one process; without a ring it records nothing.

    It `keeps_frames`, messages with their tokens, with ``FD_POSTPROC_FLIGHT_TOKENS``.
    """

    def __init__(self, ring: FlightRing | None = None, path: str | None = None) -> None:
        self.ring, self.path = ring, path
        self.keeps_frames = ring is not None and is_on(FLIGHT_TOKENS)
        self._seats: dict[int, str] = {}  # by slot, the request that was last seen there
        self._ended: set[tuple[int, str]] = set()  # of those, the ones whose end was recorded
        self._ends: tuple[Any, ...] = ()
        self._memory: Any = None

    @classmethod
    def begin(
        cls,
        side: str,
        channel: Channel,
        queue_id: int,
        log: Any,
        size: int | None = None,
        node: str = "",
    ) -> Recorder:
        """Make this process's file; without one, the log says why, and nothing is recorded.

        It has as many bytes as ``FD_POSTPROC_FLIGHT`` says, unless `size` does.  `node` is the engine's role
        and rank.
        """
        try:
            usual = FLIGHT.value << 20
            if not usual:
                return cls()
            made = files.make(side, channel, queue_id, locate(channel, queue_id), size or usual, node)
        except (OSError, ValueError) as error:
            log.warning(f"fd_postproc: no flight recorder: {error} ({FLIGHT}=0 turns it off)")
            return cls()
        ring = FlightRing(made.memory)
        recorder = cls(ring, made.path)
        recorder._memory = made.memory
        # At exit the file stays open, and says by its lock that the process is there, until that has ended.
        unlock = weakref.finalize(recorder, _unlock, made.descriptor, os.getpid())
        unlock.atexit = False
        recorder._ends = weakref.finalize(recorder, _close, ring, os.getpid()), unlock
        log.info(f"fd_postproc: flight recorder: {made.path} ('fd-postproc explain {os.getpid()}' reads it)")
        return recorder

    def end(self) -> None:
        """Record the end of the process."""
        if self.ring is not None:
            self.ring, self.keeps_frames, self._memory = None, False, None
            for end in self._ends:
                end()

    # ---- what happens ------------------------------------------------------------------------------

    def event(self, kind: Kind, slot: int = -1, *numbers: int, text: str = "") -> None:
        """Write an entry of up to five numbers, and a text."""
        if self.ring is not None:
            with contextlib.suppress(OverflowError, TypeError):  # a number from other code
                data = text.encode("utf-8", "replace")[:_LONGEST_TEXT] if text else None
                self.ring.event(kind, slot, *numbers, text=data)

    def note(self, text: str) -> None:
        """Write a text that no later entry replaces."""
        if self._memory is not None:
            data = text.encode("utf-8", "replace")[:NOTE_SIZE]
            self._memory[NOTE_AT : NOTE_AT + len(data)] = data

    def failure(self, kind: Kind, error: BaseException, slot: int = -1, *numbers: int) -> None:
        """Write an entry about an exception: kind and origin, as its text may be a user's."""
        if self.ring is not None:
            trace, where = error.__traceback__, ""
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None:
                code = trace.tb_frame.f_code
                where = f" in {os.path.basename(code.co_filename)}:{trace.tb_lineno} ({code.co_name})"
            self.event(kind, slot, *numbers, text=type(error).__name__ + where)
            self.ring.busy(False)

    def frame(self, payload: bytes, mtype: int) -> None:
        """Record a message."""
        if self.ring is not None:
            self.ring.frame(payload, mtype)

    def rest(self) -> None:
        """Record that no step is in progress."""
        if self.ring is not None:
            self.ring.busy(False)

    # ---- requests ----------------------------------------------------------------------------------

    def began(self, slot: int, name: str, prompt: Any, waited: float | None) -> None:
        """Record a request's first token, `waited` seconds after its arrival."""
        if self.ring is not None:
            self._take_seat(slot, name)
            self._ended.discard((slot, name))  # it came back
            micros = -1 if waited is None or not 0 <= waited < 1e9 else int(1e6 * waited)
            self.event(
                Kind.BEGAN, slot, request_hash(name), prompt if isinstance(prompt, int) else -1, micros
            )

    def ended(self, slot: int, name: str, tokens: int, how: End) -> None:
        """Record the end of a request."""
        if self.ring is not None:
            self._leave_seat(slot, name)
            self.event(Kind.ENDED, slot, request_hash(name), tokens, how)

    def failed(self, slot: int, name: str, error: BaseException) -> None:
        """Record the end of a request by an error of ours."""
        if self.ring is not None:
            self._leave_seat(slot, name)
            self.failure(Kind.FAILED, error, slot, request_hash(name))

    def let_go(self, kind: Kind, slot: int, name: str) -> None:
        """Record a release by the worker: `Kind.PREEMPTED` or `Kind.ABORTED`."""
        if self.ring is not None:
            self._leave_seat(slot, name)
            self.event(kind, slot, request_hash(name))

    def _leave_seat(self, slot: int, name: str) -> None:
        self._take_seat(slot, name)
        self._ended.add((slot, name))

    def _take_seat(self, slot: int, name: str) -> None:
        """Record a request's slot, which its previous request has left."""
        before = self._seats.get(slot)
        if before != name:
            self._vacate(slot)
            self._seats[slot] = name
            self.event(Kind.SEATED, slot, request_hash(name))

    def _vacate(self, slot: int) -> None:
        before = self._seats.pop(slot, None)
        if before is not None and (slot, before) not in self._ended:
            self.event(Kind.LEFT, slot, request_hash(before))
        self._ended.discard((slot, before or ""))

    def look(self, msqid: int, sender: int, tasks: Any, transfers: int, reader: int = 0) -> None:
        """Record the queue's state, its sender, and the request of each slot: about once a second.

        `reader` is another process that has taken a message since the look before; 0: none was seen.
        """
        if self.ring is None:
            return
        running = 0
        for slot, task in enumerate(tasks):
            name = None if task is None else getattr(task, "request_id", None)
            if isinstance(name, str):
                running += 1
                if self._seats.get(slot) != name and (slot, name) not in self._ended:
                    self._take_seat(slot, name)
            elif slot in self._seats:
                self._vacate(slot)
        self.ring.queue(msqid, running, transfers, *_state_of(sender), reader)


def _state_of(pid: int) -> tuple[int, int]:
    """A process's state letter from /proc, and its CPU ticks; 0, 0 if it does not exist."""
    try:
        fields = process_stat(pid)
        return ord(fields[0]), (int(fields[11]) + int(fields[12])) & 0xFFFFFFFF
    except (OSError, IndexError, ValueError, TypeError):
        return 0, 0


def _close(ring: FlightRing, pid: int) -> None:
    if os.getpid() == pid:  # a child's end is not the process's
        ring.event(Kind.CLOSED)
        ring.busy(False)


def _unlock(descriptor: int, pid: int) -> None:
    if os.getpid() == pid:
        files.close(descriptor)

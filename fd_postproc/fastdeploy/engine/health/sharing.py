"""Judges whether another service uses the queue: its frames come here, or it takes messages."""

from __future__ import annotations

from .liveness import Health

_LASTS_S = 10.0  # seconds for which what was seen counts


class Sharing:
    """Judge of who else uses the queue.

    Each of two services sees the other's frames only while both have steps, so what was seen counts for a
    while.
    """

    def __init__(self) -> None:
        self._foreign = 0  # refused frames, at the last look
        self._foreign_at: float | None = None
        self._refusal = ""
        self._reader = 0
        self._read_at: float | None = None

    def note_reader(self, now: float, reader: int) -> None:
        """Note that another process has taken a message; -1: one of another PID namespace."""
        self._reader, self._read_at = reader, now

    def look(self, now: float, foreign: int, refusal: str) -> Health | None:
        """The fault; None if there is none.

        Parameters
        ----------
        now : float
            Monotonic seconds.
        foreign : int
            Frames of another service that were refused, in total.
        refusal : str
            What was wrong with the message that was refused last.
        """
        if foreign > self._foreign:
            self._foreign, self._foreign_at, self._refusal = foreign, now, refusal
        if self._foreign_at is not None and now - self._foreign_at < _LASTS_S:
            return Health("other-service", self._refusal)
        if self._read_at is not None and now - self._read_at < _LASTS_S:
            return Health("two-readers", f"{reader_text(self._reader)} takes messages of this queue")
        return None


def reader_text(process: int) -> str:
    """Another reader of the queue, for a person; a number of 0 or less: it cannot be seen."""
    return f"process {process}" if process > 0 else "a process of another PID namespace"

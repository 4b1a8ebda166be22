"""Log lines about events that may happen thousands of times a second."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from .._core import Receiver, _last_sender_of
from ..core.layout import Channel
from ..queues import INCOMPLETE
from ..support.process_stat import process_name

SUMMARY_S = 10.0  # seconds between two summaries
MOST_FIRST = 5  # lines about new kinds in that time


class Complaints:
    """Logs the first event of each kind at once, and sums up later ones in one line every `SUMMARY_S`.

    `say` writes a line, and `clock` has seconds that never go back.
    """

    def __init__(self, say: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._waiting: Counter[str] = Counter()
        self._last: str | Callable[[], str] = ""
        self._since = self._due = -SUMMARY_S
        self._firsts = 0

    def tell(self, kind: str, text: str | Callable[[], str], count: int = 1) -> None:
        """Report that something of a kind has happened, `count` times.

        Events of the same kind are summed up together: there must be few kinds.  A text may be a function,
        which is called only if a line is written.
        """
        with self._lock:
            now = self._clock()
            if not self._waiting and now >= self._due:
                self._since, self._firsts = now, 0
            if kind not in self._known and self._firsts < MOST_FIRST:
                self._known.add(kind)
                self._firsts += 1
                self._due = max(self._due, now + SUMMARY_S)
                lines = [_made(text)]
            else:
                self._waiting[kind] += count
                self._last = text
                lines = self._summary(now)
        for line in lines:
            self._say(line)

    def flush(self) -> None:
        """Log the summary of what has accumulated, if it is due."""
        if self._waiting:
            with self._lock:
                lines = self._summary(self._clock())
            for line in lines:
                self._say(line)

    def _summary(self, now: float) -> list[str]:
        if not self._waiting or now < self._due:
            return []
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self._waiting.most_common())
        line, total = _made(self._last), self._waiting.total()
        if total > 1:
            line += f" ({total:,} times in the last {now - self._since:.0f} s: {kinds})"
        self._known |= self._waiting.keys()
        self._waiting.clear()
        self._since, self._due, self._firsts = now, now + SUMMARY_S, 0
        return [line]


def _made(text: str | Callable[[], str]) -> str:
    return text if isinstance(text, str) else text()


def last_sender_text(msqid: int) -> str:
    """The last process that wrote to a queue: most likely the one that floods it, if one does."""
    try:
        sender = _last_sender_of(msqid)
    except OSError:
        return f"queue msqid:{msqid} is gone"
    if not sender:
        return f"the last to write to queue msqid:{msqid} was a process of another PID namespace"
    name = process_name(sender, "which has ended")
    return f"the last to write to queue msqid:{msqid} was process {sender} ({name})"


def incomplete_text(msqid: int, channel: Channel) -> str:
    """The log line for a compact frame that was never completed."""
    return f"queue msqid:{msqid} ({channel}): {INCOMPLETE}; {last_sender_text(msqid)}"


_TROUBLES = {
    "missing": "frames are missing between those that came: they were refused, incomplete, given up by their "
    "sender, taken by another reader, or never sent",
    "doubled": "frames came whose numbers had come before: a program repeats messages, such as a replay",
    "reordered": "frames came after later ones: a program takes messages and puts them back",
}


def frames_text(trouble: str, receiver: Receiver) -> str:
    """The log line for one of the `TROUBLES` with compact frames, which a receiver has counted."""
    if trouble == "incomplete":
        return incomplete_text(receiver.msqid, receiver.channel)
    whose = ", ".join(
        f"{one[trouble]:,} of sender {number:016x}, from which {one['frames']:,} came and number "
        f"{one['next']:,} is due"
        for number, one in receiver.senders.items()
        if one[trouble]
    )
    where = getattr(receiver, "place", None) or f"queue msqid:{receiver.msqid} ({receiver.channel})"
    return f"{where}: {_TROUBLES[trouble]} ({whose or 'of senders that are forgotten'})"


class Backoff:
    """Growing wait before a failed action is tried again; the first retry has none.

    A failure at least `quiet` seconds after the last one counts as the first again.
    """

    def __init__(
        self,
        first: float = 0.01,
        longest: float = 1.0,
        quiet: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first, self._longest, self._quiet, self._clock = first, longest, quiet, clock
        self._failed = -quiet
        self._next = 0.0

    def failed(self) -> float:
        """Record a failure; return the seconds to wait."""
        now = self._clock()
        wait = self._next if now - self._failed < self._quiet else 0.0
        self._next = min(self._longest, max(self._first, 2 * wait))
        self._failed = now + wait
        return wait

"""Cache of the ops' Receivers and Senders."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from .._core import Receiver, Sender

End = TypeVar("End", Receiver, Sender)


class Pool(Generic[End]):
    """Cache of queue ends (Receivers or Senders), each used by one call at a time.

    A call takes an idle end, or makes one, and gives it back; so there are never more ends than concurrent
    calls.  Its `members` are all that exist, idle or not.
    """

    def __init__(self, kind: type[End]) -> None:
        self.members: list[End] = []
        self._idle: dict[Hashable, list[End]] = {}
        unused = kind.__new__(kind)  # has the names of all counters, before there is a queue
        self._gone: dict[str, int | float] = dict(unused.stats)  # counters of those that were dropped

    def take(self, key: Hashable, make: Callable[[], End]) -> End:
        """Take an end for the queue and settings of `key`."""
        try:
            return self._idle[key].pop()
        except (KeyError, IndexError):
            end = make()
            self.members.append(end)
            return end

    def give_back(self, key: Hashable, end: End, gone: bool) -> None:
        """Return an end to the cache; of one whose queue is gone only the counters stay."""
        if gone:
            self.members.remove(end)
            _add(self._gone, end.stats)
        else:
            self._idle.setdefault(key, []).append(end)

    def stats(self) -> dict[str, int | float]:
        """All counters, summed."""
        total = dict(self._gone)
        for end in list(self.members):
            _add(total, end.stats)
        return total


def _add(total: dict[str, int | float], stats: dict[str, int | float]) -> None:
    for name, value in stats.items():
        total[name] = total.get(name, 0) + value

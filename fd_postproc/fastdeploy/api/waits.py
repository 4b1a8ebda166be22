"""Has FastDeploy's generators wait at a feed with their limits of time, without task and timer.

They wait for each result with a time limit.  asyncio's own wait makes a task on Python 3.10 and 3.11, and a
timer always: 20 us for a result that is there, ours 1.
"""

from __future__ import annotations

import asyncio
import types
import weakref
from collections.abc import Generator
from typing import Any

from .connections import Inbox

LOOK_S = 1.0
"""Seconds between two looks: a stream without results from one to the next is left to FastDeploy's limits."""


class Asyncio(types.ModuleType):
    """The module ``asyncio`` with a `wait_for` that knows what a feed gives."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    def wait_for(awaitable: Any, timeout: Any) -> Any:
        """As asyncio's."""
        return awaitable.within(timeout) if type(awaitable) is Next else asyncio.wait_for(awaitable, timeout)


class Next:
    """The next group of results of a feed, which can be awaited."""

    __slots__ = ("_feed",)

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def __await__(self) -> Generator[Any, Any, Any]:
        group: Generator[Any, Any, Any] = self._feed.taken().__await__()
        return group

    async def within(self, seconds: float) -> Any:
        """The group; asyncio.TimeoutError if none comes in that time."""
        feed = self._feed
        if feed.group is None and feed.source.empty():
            if type(feed.source) is not Inbox:
                return await asyncio.wait_for(self, seconds)
            loop = asyncio.get_running_loop()
            begin = loop.time()
            feed.watch(loop)
            while feed.source.empty():
                if await feed.source.wait():
                    return await asyncio.wait_for(self, seconds - loop.time() + begin)
        return await feed.taken()


class Silence:
    """The one timer of an event loop for all inboxes: it ends waits without results."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # it is the key of this
        self._inboxes: weakref.WeakSet[Inbox] = weakref.WeakSet()
        self._is_due = False

    def watch(self, inbox: Inbox) -> None:
        """Look at an inbox now and then, as long as it is there."""
        self._inboxes.add(inbox)
        self._look_later()

    def _look_later(self) -> None:
        loop = self._loop()
        if loop is not None and not self._is_due and self._inboxes:
            self._is_due = True
            loop.call_later(LOOK_S, self.look)

    def look(self) -> None:
        """Look at all inboxes."""
        self._is_due = False
        for inbox in list(self._inboxes):
            inbox.look()
        self._look_later()


_silences: weakref.WeakKeyDictionary[Any, Silence] = weakref.WeakKeyDictionary()


def silence(loop: asyncio.AbstractEventLoop) -> Silence:
    """A loop's."""
    found = _silences.get(loop)
    if found is None:
        found = _silences[loop] = Silence(loop)
    return found

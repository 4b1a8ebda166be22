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
            inbox, begin = feed.source, feed.source.loop.time()
            watch(inbox)
            while inbox.empty():
                if await inbox.wait():
                    return await asyncio.wait_for(self, seconds - inbox.loop.time() + begin)
        return await feed.taken()


_watched: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Inbox]] = weakref.WeakKeyDictionary()
"""Inboxes by event loop; a loop that is in it has one timer for all of them."""


def watch(inbox: Inbox) -> None:
    """Have waits at an inbox end now and then, as long as it is there."""
    if inbox.loop not in _watched:
        _watched[inbox.loop] = weakref.WeakSet()
        inbox.loop.call_later(LOOK_S, _look, inbox.loop)
    _watched[inbox.loop].add(inbox)


def _look(loop: asyncio.AbstractEventLoop) -> None:
    for inbox in list(_watched[loop]):
        inbox.look()
    if _watched[loop]:
        loop.call_later(LOOK_S, _look, loop)
    else:
        del _watched[loop]

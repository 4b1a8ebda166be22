"""A lighter ``asyncio.wait_for``, for our queue that each stream waits at.

Before Python 3.12 ``wait_for`` makes a task for each wait: as much work as all the rest of a chunk.  At a
queue of ours (`stream_queue`) not even a coroutine or a timer is made.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ._chunks import Next


def wait_for(awaitable: Any, timeout: float | None) -> Any:
    """Wait as ``asyncio.wait_for`` does; return an awaitable.

    Raises
    ------
    TimeoutError
        After `timeout` seconds (asyncio's, which is Python's from 3.11 on).
    """
    if type(awaitable) is Next and timeout is not None and timeout > 0:
        return awaitable.within(timeout)
    return asyncio.wait_for(awaitable, timeout)


class Asyncio:
    """The module ``asyncio`` with other values for some names.

    Parameters
    ----------
    **others
        By name.
    """

    def __init__(self, **others: Any) -> None:
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        value = getattr(asyncio, name)
        setattr(self, name, value)
        return value

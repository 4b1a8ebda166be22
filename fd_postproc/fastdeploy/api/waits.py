"""A lighter ``asyncio.wait_for``, for the queue that each stream waits at.

Before Python 3.12 ``wait_for`` makes a task for each wait: as much work as all the rest of a chunk.  At a
queue of ours (`queues`) not even a coroutine or a timer is made.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from ._chunks import Next

NEEDED = (3, 11) <= sys.version_info < (3, 12)  # 3.10 cannot take a cancellation back


def wait_for(awaitable: Any, timeout: float | None) -> Any:
    """As ``asyncio.wait_for``: something to be awaited.

    Raises
    ------
    TimeoutError
        After `timeout` seconds (asyncio's, which is Python's from 3.11 on).
    """
    if type(awaitable) is Next and timeout is not None and timeout > 0:
        return awaitable.within(timeout)
    return wait_in_task(awaitable, timeout) if NEEDED else asyncio.wait_for(awaitable, timeout)


async def wait_in_task(awaitable: Any, timeout: float | None) -> Any:
    """As ``asyncio.wait_for``, for a coroutine, in the task that waits.

    Raises
    ------
    TimeoutError
        After `timeout` seconds; the coroutine is cancelled then.
    """
    if timeout is None or timeout <= 0 or not asyncio.iscoroutine(awaitable):
        return await asyncio.wait_for(awaitable, timeout)
    task: Any = asyncio.current_task()
    asked = task.cancelling()
    late: list[bool] = []

    def end() -> None:
        late.append(True)
        task.cancel()

    timer = task.get_loop().call_later(timeout, end)
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        if late and task.uncancel() <= asked:
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()


class Asyncio:
    """The module ``asyncio`` with something else in it.

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

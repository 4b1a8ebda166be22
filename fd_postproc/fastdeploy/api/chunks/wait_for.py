"""This module waits as ``asyncio.wait_for`` does, without a task for each wait, in Python before 3.12.

FastDeploy's generators wait for each result with a time limit.  On Python 3.10 and 3.11 asyncio makes a task
for each wait: 10 to 20 us a chunk.  From 3.12 on asyncio's own function does not, and stays.
"""

from __future__ import annotations

import asyncio
import sys
import types
from typing import Any

IS_OF_USE = sys.version_info < (3, 12)


async def wait_for(awaitable: Any, timeout: float | None) -> Any:
    """Wait as ``asyncio.wait_for`` does.

    Python 3.10 does not count cancellations: one that comes in the very turn of the timeout is lost there.

    Raises
    ------
    TimeoutError
        After `timeout` seconds (asyncio's, which is Python's from 3.11 on).
    """
    task: Any = asyncio.current_task()
    if timeout is None or timeout <= 0 or task is None:
        return await asyncio.wait_for(awaitable, timeout)
    is_late, before = False, task.cancelling() if hasattr(task, "cancelling") else None

    def give_up() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(timeout, give_up)
    try:
        return await awaitable
    except asyncio.CancelledError:
        if is_late and (before is None or task.uncancel() <= before):
            raise asyncio.TimeoutError from None
        raise
    finally:
        timer.cancel()


class Asyncio(types.ModuleType):
    """The module ``asyncio`` with our `wait_for`."""

    wait_for = staticmethod(wait_for)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

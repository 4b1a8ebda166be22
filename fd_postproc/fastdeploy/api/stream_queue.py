"""The queue between FastDeploy's dispatcher and a stream: asyncio's, with less work per result.

A result is put and waited for; asyncio's queue and ``wait_for`` make a coroutine, a future and a timer for
that, and ask several times which loop is running, a system call each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .. import seams
from .chunks._chunks import QuickQueue
from .chunks.model_fields import NotPlain
from .chunks.wait_for import Asyncio


class Queue(QuickQueue, asyncio.Queue):  # type: ignore[type-arg]
    """asyncio's queue without a limit."""

    def __init__(self) -> None:
        asyncio.Queue.__init__(self)
        self.attach(self._queue, self._getters)  # type: ignore[attr-defined]

    async def join(self) -> None:
        """Wait as asyncio's queue does."""
        if self._unfinished_tasks > 0:
            self._finished.clear()  # type: ignore[attr-defined]
        await asyncio.Queue.join(self)


def make_queue(*arguments: Any, **options: Any) -> Any:
    """Make our queue, or asyncio's own where it has a size limit."""
    return asyncio.Queue(*arguments, **options) if arguments or options else Queue()


def install(module: Any) -> Callable[[], None]:
    """Install our queues in FastDeploy's connection manager; return a function that restores.

    Parameters
    ----------
    module : module
        ``fastdeploy.entrypoints.openai.utils``.

    Raises
    ------
    NotPlain
        If it makes its queues in another way.
    """
    if vars(module).get("asyncio") is not asyncio:
        raise NotPlain("its queues are made in another way")
    return seams.install(
        "api stream_queue",
        (module, "asyncio", Asyncio(Queue=make_queue)),
    )

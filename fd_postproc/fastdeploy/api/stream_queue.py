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
from .chunks.wait_for import Asyncio, wait_for
from .trial import in_a_thread_of_its_own

CONNECTION = "get_connection"
"""FastDeploy's method that creates the queues."""


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
        If it makes its queues in another way, or ours does something that asyncio's does not.
    """
    make = vars(module.DealerConnectionManager).get(CONNECTION)
    if make is None or "Queue" not in make.__code__.co_names or vars(module).get("asyncio") is not asyncio:
        raise NotPlain("its queues are made in another way")
    difference = in_a_thread_of_its_own(_difference)
    if difference:
        raise NotPlain(difference)
    return seams.install(
        "api stream_queue",
        (module, "asyncio", Asyncio(Queue=make_queue)),
    )


def _difference() -> str | None:
    """The first difference between our queue and asyncio's; None if there is none."""
    theirs = _told(asyncio.Queue, asyncio.wait_for)
    try:
        ours = _told(Queue, wait_for)
    except Exception as error:
        return f"ours raises {type(error).__name__}: {error}"
    for one, other in zip(theirs, ours, strict=True):
        if one != other:
            return f"at asyncio's queue it is {one}, at ours {other}"
    return None


def _told(make: Callable[[], Any], wait: Callable[..., Any]) -> list[str]:
    """The events at a queue, run by hand in a loop that never runs by itself."""
    told: list[str] = []
    loop = asyncio.new_event_loop()

    def turn() -> None:
        loop.call_soon(loop.stop)
        loop.run_forever()

    async def take(name: str, queue: Any, limit: float | None) -> None:
        try:
            told.append(f"{name} got {await (queue.get() if limit is None else wait(queue.get(), limit))}")
        except BaseException as error:
            told.append(f"{name} {type(error).__name__}")
            raise

    try:
        for limit in (None, 10):
            queue = make()
            queue.put_nowait("early")
            tasks = [loop.create_task(take(name, queue, limit)) for name in ("first", "second", "third")]
            for _ in range(4):
                turn()
            tasks[1].cancel()
            queue.put_nowait(("a", 1))
            queue.put_nowait(["b"])
            for _ in range(4):
                turn()
            told.append(f"{[task.done() for task in tasks]} {queue.qsize()} {queue.empty()}")
            last = loop.create_task(take("last", queue, limit))
            for _ in range(4):
                turn()
            last.cancel()
            for _ in range(4):
                turn()
            told.append(f"{last.cancelled()} {queue.qsize()}")
        late = loop.create_task(take("late", make(), 0.001))
        loop.run_until_complete(asyncio.wait([late], timeout=10))
        told.append(type(late.exception()).__name__)
    finally:
        loop.close()
    return told

"""Waiting for messages in asyncio, without taking them.

System V has nothing that an event loop could wait on.  A thread checks whether a queue holds a message (of
another transport, it waits for a file descriptor); the
step itself is taken in the loop, by ``receive(0)``, after the last point at which a task can be cancelled.
So a cancelled task has taken nothing.  The thread starts with the first wait, and ends after a second
without a wait, or when the Receiver is closed.  A Receiver that is not used this way has no thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .checks import seconds
from .errors import QueueRemoved, ReceiverClosed

if TYPE_CHECKING:
    import asyncio

_SLICE_S = 0.02  # longest time that the thread keeps checking after the last task has stopped waiting
_IDLE_S = 1.0


class Watch:
    """Watcher that wakes tasks when a queue has a message.

    Parameters
    ----------
    look : callable
        ``look(msqid, seconds)`` waits at most that long, without the GIL, until there is a message or the
        queue is gone; returns whether that is so.
    msqid : int
    """

    def __init__(self, look: Callable[[int, float], bool], msqid: int) -> None:
        self._look = look
        self._msqid = msqid
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._runs = False
        self._over = False

    @property
    def of_this_process(self) -> bool:
        """Whether this process has the thread, which a fork does not copy."""
        return self._pid == os.getpid()

    async def wait(self, timeout: float | None) -> None:
        """Wait until the queue may hold a message, `close` is called, or `timeout` seconds have passed."""
        import asyncio

        loop = asyncio.get_running_loop()
        entry = loop, loop.create_future()
        with self._changed:
            self._waiting.append(entry)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="fd_postproc-asyncio", daemon=True).start()
            self._changed.notify()
        try:
            await asyncio.wait((entry[1],), timeout=timeout)
        finally:
            with self._changed:
                if entry in self._waiting:
                    self._waiting.remove(entry)

    def close(self) -> None:
        """Wake all tasks, and end the thread."""
        self._over = True
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            woken, self._waiting = self._waiting, []
            self._changed.notify()
        for loop, future in woken:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(_tell, future)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._over, _IDLE_S)
                if self._over or not self._waiting:
                    self._runs = False
                    break
            if self._look(self._msqid, _SLICE_S):
                self._wake()
        self._wake()  # a task that came at the very last moment checks for itself


def readable(descriptor: int, seconds: float) -> bool:
    """Whether a file descriptor is readable within a time, for `Watch`."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _tell(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def receive(receiver: Any, timeout: Any) -> Any:
    """The coroutine of `fd_postproc.Receiver.receive_async`."""
    import asyncio

    end = None if timeout is None else time.monotonic() + seconds(timeout)
    await asyncio.sleep(0)  # a queue that is never empty must not keep the loop's other tasks from running
    while True:
        step = receiver.receive(0)
        if step is not None:
            return step
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            return None
        await receiver._watched().wait(left)


async def following(receiver: Any) -> Any:
    """The next step for ``async for``."""
    try:
        return await receive(receiver, None)
    except (ReceiverClosed, QueueRemoved):
        if receiver._was_removed:
            raise StopAsyncIteration from None
        raise

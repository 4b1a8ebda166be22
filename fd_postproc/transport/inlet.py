"""What the two receiving ends have in common: waiting, being closed, warning."""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import select
import threading
import time
import weakref

from . import Dropped

log = logging.getLogger("fd_postproc")

_LOG_EVERY_S = 10.0


class Inlet(abc.ABC):
    """Receiving end of an address.  One thread at a time takes messages; any thread may close it.

    Attributes
    ----------
    address : str
        Where senders find it.
    descriptor : int
        A file descriptor that becomes readable when `take` may have something.
    found : bytes, Dropped or None
        What was taken.  Who has it makes it None; until then, as when a signal handler raises an exception
        on the way there, `take` returns it again.
    """

    address: str

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._over = False
        self.found: bytes | Dropped | None = None
        self._warned: dict[str, float] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._wake).atexit = False
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self.descriptor = self._epoll.fileno()
        self._open = contextlib.ExitStack()  # closed once: in `close`, as garbage, at the end, in a child
        self._end = weakref.finalize(self, self._open.close)
        _alive.add(self)

    def take(self, timeout: float | None) -> bytes | Dropped | None:
        """Take the next message, or the report of a dropped one.

        None once `timeout` seconds have passed (None: never), or after `close`.  Waits without the GIL and
        without polling; signal handlers run.
        """
        until = None if timeout is None else time.monotonic() + min(timeout, 1e6)
        with self._guard:
            while not self._over and self.found is None:
                self._next()
                left = None if until is None else max(0.0, until - time.monotonic())
                if self.found is not None or left == 0:
                    break
                self._epoll.poll(left)
        if self._over:
            self._end_if_idle()
        return self.found

    @abc.abstractmethod
    def _next(self) -> None:
        """Find the next message without waiting; None only if nothing that was read is left."""

    def close(self) -> None:
        """Close, and wake the waiting thread; untaken messages are lost."""
        self._over = True
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wake, 1)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        """The thread that takes, or comes last, closes the sockets: two must not be in them."""
        if self._guard.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._guard.release()

    def _warn(self, text: str, *values: object) -> None:
        """Log a text with the values of now, not more often than every ten seconds."""
        now = time.monotonic()
        if now - self._warned.get(text, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._warned[text] = now
            log.warning(text, *values)


_alive: weakref.WeakSet[Inlet] = weakref.WeakSet()


def _in_child() -> None:
    """A child of a fork would keep address and connections open when its parent has ended."""
    for inlet in list(_alive):
        inlet._epoll.close()
        inlet._end()


os.register_at_fork(after_in_child=_in_child)

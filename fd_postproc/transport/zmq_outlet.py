"""The sending end over ZeroMQ: a DEALER socket that connects, and a thread that keeps what is on its way.

The thread hears what the receiver has taken, and sends again what a broken connection has lost, also while
the program does something else.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import select
import threading
import time
import weakref
from collections import deque

from ..errors import QueueError
from .addresses import Address
from .curve import Curve
from .envelope import FAREWELL, FRAME, HELLO, LAST, MAGIC, RESEND, SYNC, TO_RECEIVER, VERSION, read_answer
from .sockets import configure, failed, library

log = logging.getLogger("fd_postproc")

_RECONNECT_MS = 20
_RECONNECT_MOST_MS = 1000
_LAST_WORDS_MS = 100


_alive: set[_Link] = set()


class _Link:
    """What the thread and the sender share.  Every use of the socket is under the lock."""

    _wake = -1  # what wakes the thread, an event's descriptor; none if the constructor raised before

    def __init__(self, address: Address, hwm: int, linger: float, curve: Curve | None) -> None:
        zmq = self._zmq = library()
        self._address = address
        self.pid = os.getpid()
        self.hwm, self._linger = hwm, linger
        self.changed = threading.Condition(threading.Lock())
        self._session = int.from_bytes(os.urandom(8), "little")
        self._frames: deque[bytearray] = deque()
        self._base = 0  # number of the first of them
        self._due = 0  # number of the one to be sent next
        self._asked = 0  # number of the one that was to be sent next when the last connection began
        self._is_held = False  # the receiver goes: nothing more before the next connection
        self._until: float | None = None  # when the thread gives up; None: not yet
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        try:
            configure(zmq, self._socket, address, curve)
            self._socket.set(zmq.IMMEDIATE, 1)  # nothing is queued for a peer that is not there
            self._socket.set(zmq.PROBE_ROUTER, 1)  # each connection begins with an empty message
            self._socket.set(zmq.SNDHWM, 0)  # the limit is here: self._frames
            self._socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
            self._socket.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_MOST_MS)
            if curve is not None:
                self._socket.curve_serverkey = curve.peers[0].encode()
            self._socket.connect(address.text)
        except BaseException as error:
            with self.changed:
                self._shut()
            if isinstance(error, zmq.ZMQError):
                raise failed(zmq, error, f"connecting to {address.text}") from None
            raise
        self._descriptor = self._socket.get(zmq.FD)
        _alive.add(self)
        self.thread = threading.Thread(target=self._run, name="fd_postproc-zmq", daemon=True)
        self.thread.start()

    @property
    def waiting(self) -> int:
        return len(self._frames)

    @property
    def is_full(self) -> bool:
        return len(self._frames) >= self.hwm

    @property
    def is_connected(self) -> bool:
        if self._socket.closed:
            return False
        return bool(self._socket.get(self._zmq.EVENTS) & self._zmq.POLLOUT)

    def add(self, frame: bytearray) -> bool:
        """A frame; false if there is no room.  The lock is held."""
        if self._until is not None:
            raise ValueError("the Sender is closed")
        if self.is_full:
            self.progress()
            if self.is_full:
                return False
        self._frames.append(frame)
        self.progress()
        return True

    def progress(self) -> None:
        """Hear and send all that can be heard and sent now.  The lock is held."""
        zmq, socket = self._zmq, self._socket
        is_open = not self._is_held
        while True:
            events = socket.get(zmq.EVENTS)
            if events & zmq.POLLIN:
                self._hear(socket.recv(zmq.NOBLOCK))
                is_open = not self._is_held
            elif is_open and events & zmq.POLLOUT and self._due < self._base + len(self._frames):
                is_open = self._send_next()
            else:
                return

    def _send_next(self) -> bool:
        frame = self._frames[self._due - self._base]
        self._write_head(frame, FRAME, self._due)
        try:
            self._socket.send(frame, self._zmq.NOBLOCK)
        except self._zmq.Again:
            return False
        self._due += 1
        return True

    def _write_head(self, message: bytearray, kind: int, number: int) -> None:
        TO_RECEIVER.pack_into(message, 0, MAGIC, VERSION, kind, 0, self._session, number, self._base)

    def _hear(self, data: bytes) -> None:
        said = read_answer(data)
        end = self._base + len(self._frames)
        if said is None:
            return
        if said.kind == HELLO:
            self._asked = self._due  # later ones follow the question on the same connection
            self._is_held = False
            self._say(SYNC)
        elif said.session == self._session and self._base <= said.number <= end:
            while self._base < said.number:
                self._frames.popleft()
                self._base += 1
            self._due = max(self._due, self._base)
            if said.kind == RESEND and said.number < self._asked:
                log.warning(
                    "%s: a connection was lost; %d steps that were on their way are sent again",
                    self._address.text,
                    self._asked - said.number,
                )
                self._due = said.number
            elif said.kind == LAST:
                self._is_held = True
                self._say(FAREWELL)
            self.changed.notify_all()

    def _say(self, kind: int) -> None:
        message = bytearray(TO_RECEIVER.size)
        self._write_head(message, kind, self._due)
        with contextlib.suppress(self._zmq.Again):  # gone: the next connection has its own hello
            self._socket.send(message, self._zmq.NOBLOCK)

    def end(self, wait: bool = True) -> None:
        """Let the thread end: once everything was taken, or the linger time has passed.

        Any thread, at any time; nothing is locked, for garbage may be collected anywhere.
        """
        until = time.monotonic() + (self._linger if wait else 0.0)
        self._until = until if self._until is None else min(self._until, until)
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        waiting.register(self._wake, select.POLLIN)
        while True:
            with self.changed:
                self.progress()
                until = self._until
                left = None if until is None else until - time.monotonic()
                if left is not None and (left <= 0 or not self._frames):
                    self._say(FAREWELL)
                    self._socket.linger = _LAST_WORDS_MS
                    self._shut()
                    return
            waiting.poll(None if left is None else left * 1000)
            with contextlib.suppress(OSError):
                os.eventfd_read(self._wake)

    def _shut(self) -> None:
        self._socket.close()
        self._context.term()
        _alive.discard(self)
        self.changed.notify_all()

    def __del__(self) -> None:
        if self._wake >= 0:
            os.close(self._wake)  # not before: whoever ends the thread writes to it


class ZmqOutlet:
    """See `fd_postproc.transport.Outlet`.

    Parameters
    ----------
    address : Address
    hwm : int
        Frames that may be on their way: put in, and not taken yet.
    linger : float
        Seconds for which the end waits for what is on its way.
    curve : Curve or None
    """

    def __init__(self, address: Address, hwm: int, linger: float, curve: Curve | None) -> None:
        self._address, self._hwm, self._linger, self._curve = address, hwm, linger, curve
        if curve is not None and len(curve.peers) != 1:
            raise ValueError(f"a Sender has one receiver: curve.peers holds {len(curve.peers)} keys, not 1")
        self._link = _Link(address, hwm, linger, curve)
        self._finalizer = weakref.finalize(self, _abandon, self._link)
        self._finalizer.atexit = False

    def put(self, frame: bytearray) -> bool:
        with self._link.changed:
            return self._link.add(frame)

    def put_waiting(self, frame: bytearray, timeout: float | None) -> bool:
        link, pid = self._link, os.getpid()
        until = None if timeout is None else time.monotonic() + timeout
        with link.changed:
            while not link.add(frame):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                link.changed.wait(left)
                if os.getpid() != pid:
                    raise QueueError(
                        errno.EINTR,
                        f"sending to {self._address.text}: a signal handler forked in the middle of it; the "
                        "parent process sends this step",
                    )
        return True

    @property
    def unacknowledged(self) -> int:
        return self._link.waiting

    @property
    def trouble(self) -> str:
        with self._link.changed:
            there = self._link.is_connected
        held = f"{self._link.waiting} steps are on their way, the high-water mark (hwm={self._hwm})"
        if there:
            return f"{held}, and the receiver takes none"
        return f"{held}, and no receiver is connected: start it, or check the address and its keys"

    def again(self) -> ZmqOutlet:
        return ZmqOutlet(self._address, self._hwm, self._linger, self._curve)

    def close(self, wait: bool) -> int:
        self._link.end(wait)
        self._link.thread.join()
        return self._link.waiting


def _abandon(link: _Link) -> None:
    """A Sender that nobody closed, and that is garbage now: its thread goes on for a while."""
    if os.getpid() == link.pid:
        link.end()


@atexit.register
def _wait_for_all() -> None:
    """At the end of the process: what was sent gets its time, whether the Sender was closed or not."""
    links = [link for link in _alive if link.pid == os.getpid()]
    for link in links:
        link.end()
    for link in links:
        link.thread.join()

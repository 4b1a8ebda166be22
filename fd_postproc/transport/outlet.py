"""The sending end: a PUSH socket that connects; messages wait in ZeroMQ."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket as plain_sockets
import threading
import time
import weakref
from collections import deque
from typing import Any

from ..errors import QueueError
from .addresses import Address
from .curve import Curve, context, library, set_keys

log = logging.getLogger("fd_postproc")

_RECONNECT_MS = 20
_RECONNECT_MOST_MS = 1000
_UNCLOSED_S = 0.5  # at the end of the process, for what Senders that were not closed have left
_LET_GO_S = 1.0
_NAP_S = 0.002
_BUFFER = 8192  # bytes of messages that libzmq may have taken and not written


class Outlet:
    """The sending end of an address.  One thread at a time sends; any may close it.

    Parameters
    ----------
    address : Address
    hwm : int
        Messages that may wait, ZeroMQ's high-water mark of the socket.
    linger : float
        Seconds for which `close` waits for those.
    curve : Curve or None
    """

    def __init__(self, address: Address, hwm: int, linger: float, curve: Curve | None) -> None:
        if curve is not None and len(curve.peers) != 1:
            raise ValueError(f"a Sender has one receiver: curve.peers holds {len(curve.peers)} keys, not 1")
        zmq = self._zmq = library()
        self._arguments = address, hwm, linger, curve
        self._address, self._hwm, self._pid = address, hwm, os.getpid()
        self._guard = threading.Lock()
        self._over = False
        self._pending: deque[Any] = deque()  # of messages that ZeroMQ has not handed to the kernel yet
        self._sizes: deque[int] = deque(maxlen=hwm + 256)  # of the last messages
        self._connection = self._heard = -1  # ZeroMQ's descriptor, and its last event that matters
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._wake).atexit = False
        self._context = made = context(zmq)
        made.linger = made.rcvhwm = 0  # at a mark of events, ZeroMQ's own thread would wait for us
        self._socket = socket = made.socket(zmq.PUSH)
        try:
            if curve is not None:
                set_keys(socket, address, curve)
                socket.curve_serverkey = curve.peers[0].encode()
            socket.sndhwm = hwm
            socket.reconnect_ivl = _RECONNECT_MS
            socket.reconnect_ivl_max = _RECONNECT_MOST_MS
            socket.ipv6 = ":" in address.host
            socket.copy_threshold = 0  # ZeroMQ tells when it has let a message go, however short
            self._events = socket.get_monitor_socket(
                zmq.EVENT_CONNECTED
                | zmq.EVENT_DISCONNECTED
                | zmq.EVENT_HANDSHAKE_SUCCEEDED
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            )
            socket.connect(address.text)
        except BaseException as error:
            made.destroy(linger=0)
            if isinstance(error, zmq.ZMQError):
                raise QueueError(error.errno, f"connecting to {address.text}: {error}") from None
            raise
        self._forget = weakref.finalize(
            self, _leave, self._pid, address.text, self._pending, (made, socket, self._events)
        )

    def put(self, frame: bytes, timeout: float | None = 0.0) -> bool:
        """Hand over a frame, waiting without the GIL while it is full; false if it stays so."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._guard:
            while not self._over:
                if self._is_put(frame):
                    return True
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                poller = self._zmq.Poller()
                poller.register(self._socket, self._zmq.POLLOUT)
                poller.register(self._wake, self._zmq.POLLIN)
                poller.poll(None if left is None else min(left, 1e6) * 1000 + 1)
                if os.getpid() != self._pid:
                    text = f"sending to {self._address.text}: a signal handler forked in the middle of it"
                    raise QueueError(errno.EINTR, f"{text}; the parent process sends this step")
        raise ValueError("the Sender was closed")

    def _is_put(self, frame: bytes) -> bool:
        self._hear()
        while self._pending and self._pending[0].done:
            self._pending.popleft()
        try:
            self._pending.append(self._socket.send(frame, self._zmq.NOBLOCK, copy=False, track=True))
        except self._zmq.Again:
            return False
        self._sizes.append(len(frame))
        return True

    def again(self) -> Outlet:
        """Another one like it, for the child of a fork."""
        return Outlet(*self._arguments)

    def close(self, seconds: float) -> tuple[int, str]:
        """End, after a wait for what is left.  How many messages were not sent, and why."""
        self._over = True
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wake, 1)
        if not self._guard.acquire(timeout=_LET_GO_S):  # a signal handler closes it in the middle of a send
            return _unsent(self._pending), "it was closed during a call"
        try:
            unsent = self._flush(seconds)
            return unsent, self._trouble if unsent else ""
        finally:
            self._forget.detach()
            self._context.destroy(linger=0)
            self._guard.release()

    def _flush(self, seconds: float) -> int:
        """Wait until all is in the hands of the kernel; how many messages are not, perhaps.

        ZeroMQ lets go of short messages when they are in a buffer of its own, which it drops at the end.  It
        writes whenever the kernel has room, so a connection with room has nothing left.
        """
        until = time.monotonic() + seconds
        with contextlib.suppress(self._zmq.NotDone, IndexError):
            self._pending[-1].wait(seconds)
        while (has_room := self._has_room()) is False and time.monotonic() < until:
            time.sleep(_NAP_S)
        time.sleep(_NAP_S)
        unsent = _unsent(self._pending)
        if not (has_room and self._has_room()):
            room, older = _BUFFER, list(self._sizes)[: len(self._sizes) - unsent]
            while room > 0 and older:
                room -= older.pop()
                unsent += 1
        return unsent

    def _has_room(self) -> bool:
        self._hear()
        looking = select.poll()
        if self._connection >= 0:
            looking.register(self._connection, select.POLLOUT)
        return self._connection < 0 or bool(looking.poll(0))

    def _hear(self) -> None:
        """What has become of the connection."""
        from zmq.utils.monitor import recv_monitor_message

        zmq = self._zmq
        while self._events.get(zmq.EVENTS) & zmq.POLLIN:
            told = recv_monitor_message(self._events, zmq.NOBLOCK)
            event = told["event"]
            if event == zmq.EVENT_CONNECTED:
                self._connection = told["value"]
                continue
            if event == zmq.EVENT_DISCONNECTED:
                self._connection = -1
                if self._heard == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    event = -1
                elif self._heard == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    continue
            self._heard = event

    @property
    def trouble(self) -> str:
        """Why it is full, for a person: the limit, and whether a receiver is there."""
        return f"hwm={self._hwm} steps wait to be sent, and {self._trouble}"

    @property
    def _trouble(self) -> str:
        """Why nothing gets through, and what to do about it."""
        self._hear()
        address = self._address
        if self._heard == self._zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return "a receiver is connected, and takes none"
        if self._heard == self._zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return "the receiver does not know this Sender's key: put its public key into curve.peers there"
        if self._heard > 0:
            return (
                "the connection was refused before any step was sent: does curve.peers hold the receiver's "
                "public key, and have both ends keys, or neither?"
            )
        try:
            if address.kind == "tcp":
                plain_sockets.getaddrinfo(address.host, address.port)
        except OSError as error:
            return f"the host {address.host!r} cannot be found ({error.strerror}): check its spelling"
        return f"no receiver is connected at {address.text}: start it, or check the address"


def _unsent(pending: deque[Any]) -> int:
    return sum(not one.done for one in pending)


_left: list[tuple[str, deque[Any], tuple[Any, ...]]] = []  # by Senders that were not closed


def _leave(pid: int, address: str, pending: deque[Any], sockets: tuple[Any, ...]) -> None:
    """Of a Sender that was not closed, ZeroMQ sends what is left, as long as it has its sockets."""
    if os.getpid() == pid:
        _left.append((address, pending, sockets))
        for one in [one for one in _left if not _unsent(one[1])]:
            _left.remove(one)
            one[2][0].destroy(linger=0)


def _at_exit() -> None:
    """What Senders that were not closed have left gets a moment, and what is lost then is told."""
    until = time.monotonic() + _UNCLOSED_S
    while any(_unsent(pending) for _, pending, _ in _left) and time.monotonic() < until:
        time.sleep(_NAP_S)
    for address, pending, _ in _left:
        if unsent := _unsent(pending):
            log.warning(
                "a Sender to %s was not closed: %d of its last steps were not sent and are lost.  close() "
                "it, or use it in a with statement, to wait for them and to be told why",
                address,
                unsent,
            )


weakref.finalize(Outlet, _at_exit)  # after those of all Outlets, which are made later

"""The receiving end over ZeroMQ: a ROUTER socket that is bound.

It says what was taken, so that senders keep the rest: the messages of a receiver that is closed or killed go
to the next one at this address.
"""

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
from collections import OrderedDict
from typing import Any

from ..checks import permission_bits
from ..errors import QueueError
from .addresses import Address
from .curve import Curve
from .envelope import (
    FAREWELL,
    FRAME,
    HELLO,
    LAST,
    MAGIC,
    RESEND,
    SYNC,
    TAKEN,
    TO_RECEIVER,
    VERSION,
    Ledger,
    answer,
)
from .sockets import configure, failed, library

log = logging.getLogger("fd_postproc")

_HELD = 1000  # messages of one sender that may wait here, beyond what its socket holds
_LEAST_MOST = 16 << 20
_ACKNOWLEDGE_EVERY = 32
_LAST_WORDS_S = 1.0
_MOST_PEERS = 1024


class ZmqInlet:
    """See `fd_postproc.transport.Inlet`.

    Parameters
    ----------
    address : Address
    mode : int
        Permission bits of an ipc address's file: who may write to it may connect.
    longest : int
        Bytes of the longest frame.  Messages are refused one by one above it, but a peer that sends one of
        more than twice that (at least 16 MiB) is disconnected before the memory is allocated.
    curve : Curve or None
    """

    def __init__(self, address: Address, mode: int, longest: int, curve: Curve | None) -> None:
        mode = permission_bits(mode)
        zmq = self._zmq = library()
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._over = False
        self._file = ""  # to be removed at the end
        self._ledger = Ledger()
        self._owed: dict[bytes, tuple[int, int]] = {}  # by peer, the session and the number that is due
        self._peers: OrderedDict[bytes, int] = OrderedDict()  # each one's session
        self._taken = 0  # since they were last paid
        self._next: tuple[bytes, int, int, Any, int] | None = None  # read, and not taken yet
        self._context = zmq.Context()
        self._authenticator: Any = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._wake)
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            configure(zmq, self._socket, address, curve)
            self._socket.set(zmq.RCVHWM, _HELD)
            self._socket.set(zmq.ROUTER_MANDATORY, 1)  # a peer that is gone is an error, not silence
            self._socket.set(zmq.MAXMSGSIZE, max(2 * longest, _LEAST_MOST))
            if curve is not None:
                self._authenticate(curve)
            self.address = self._bind(address, mode)
        except BaseException:
            self._shut()
            raise
        if not address.is_local and curve is None:
            log.warning(
                "%s can be reached from other hosts, and has no keys: whoever reaches it can forge tokens; "
                "bind 127.0.0.1, or give curve=",
                self.address,
            )
        self.descriptor: int = self._socket.get(zmq.FD)
        self._waiting = select.poll()
        self._waiting.register(self.descriptor, select.POLLIN)
        self._waiting.register(self._wake, select.POLLIN)
        weakref.finalize(self, _abandon, self._pid, self._socket, self._context)

    def _authenticate(self, curve: Curve) -> None:
        from zmq.auth.thread import ThreadAuthenticator

        self._socket.curve_server = True
        self._socket.zap_domain = b"fd_postproc"
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("fd_postproc", _Allowed(curve.peers))

    def _bind(self, address: Address, mode: int) -> str:
        if address.kind == "ipc":
            _refuse_if_taken(address)
        try:
            self._socket.bind(address.text)
        except self._zmq.ZMQError as error:
            remedies = {
                errno.EADDRINUSE: "another Receiver is there: close it, or choose another address",
                errno.EADDRNOTAVAIL: "this host has no such interface or address",
                errno.ENOENT: "make its directory first",
            }
            raise failed(self._zmq, error, f"binding {address.text}", remedies.get(error.errno)) from None
        if address.kind == "ipc":
            self._file = address.path
            os.chmod(address.path, mode)
        found: bytes = self._socket.get(self._zmq.LAST_ENDPOINT)
        return found.rstrip(b"\0").decode()

    def take(self, timeout: float | None) -> tuple[Any, int] | None:
        with self._guard:
            found = self._take(timeout)
        if self._over:
            self._shut_if_idle()
        return found

    def _take(self, timeout: float | None) -> tuple[Any, int] | None:
        until = None if timeout is None else time.monotonic() + timeout
        while not self._over:
            if (found := self._take_now()) is not None:
                return found
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._waiting.poll(None if left is None else min(left, 1e6) * 1000)
            if os.getpid() != self._pid:
                raise QueueError(
                    errno.EINTR,
                    f"receiving at {self.address}: a signal handler forked in the middle of it; the parent "
                    "process receives on",
                )
        return None

    def _take_now(self) -> tuple[Any, int] | None:
        """The next frame, if it is here; and those who wait for word of it get it, if no other follows."""
        found, self._next = self._next or self._read(), None
        if found is None:
            return None
        peer, session, number, part, begin = found
        if peer:
            self._ledger.took(session, number)
            self._owed[peer] = session, number + 1
        self._taken += 1
        if self._taken < _ACKNOWLEDGE_EVERY:
            self._next = self._read()
        if self._next is None:
            self._settle()
        return part, begin

    def _read(self) -> tuple[bytes, int, int, Any, int] | None:
        """Answer what is no frame, up to the next that is one: whose, its session and number; where it is."""
        zmq, socket = self._zmq, self._socket
        while socket.get(zmq.EVENTS) & zmq.POLLIN:
            peer = socket.recv(zmq.NOBLOCK)
            part = socket.recv(zmq.NOBLOCK, copy=False)
            while socket.get(zmq.RCVMORE):  # nobody of ours sends several parts: the last one is judged
                part = socket.recv(zmq.NOBLOCK, copy=False)
            data = part.buffer
            if len(data) == 0:
                self._say(peer, answer(HELLO))
                continue
            if len(data) < TO_RECEIVER.size:
                return b"", 0, 0, part, 0
            magic, version, kind, _, session, number, base = TO_RECEIVER.unpack_from(data)
            if magic != MAGIC or version != VERSION or not FRAME <= kind <= FAREWELL:
                return b"", 0, 0, part, 0
            self._peers[peer] = session
            if len(self._peers) > _MOST_PEERS:
                self._peers.popitem(last=False)
            due = self._ledger.due(session, base)
            if kind == SYNC:
                self._say(peer, answer(RESEND, session, due))
            elif kind == FAREWELL:
                del self._peers[peer]
            elif number == due:
                return peer, session, number, part, TO_RECEIVER.size
            elif number < due:  # it was taken, and the word of that was lost
                self._owed[peer] = session, due
            # Beyond what is due: what is missing will be sent again after the SYNC that is on its way.
        return None

    def _settle(self) -> None:
        owed, self._owed, self._taken = self._owed, {}, 0
        for peer, (session, number) in owed.items():
            self._say(peer, answer(TAKEN, session, number))

    def _say(self, peer: bytes, text: bytes) -> bool:
        try:
            self._socket.send_multipart((peer, text), self._zmq.NOBLOCK)
        except self._zmq.ZMQError:  # it is gone
            return False
        return True

    def close(self) -> None:
        self._over = True
        if os.getpid() != self._pid:
            return
        os.eventfd_write(self._wake, 1)
        self._shut_if_idle()

    def _shut_if_idle(self) -> None:
        """The thread that takes, or that comes last, shuts the socket: two must not be in it."""
        if self._guard.acquire(blocking=False):
            try:
                if not self._socket.closed:
                    self._part()
                    self._shut()
            finally:
                self._guard.release()

    def _part(self) -> None:
        """Tell all senders what was taken last, and have their answer, or a second, before the end."""
        until = time.monotonic() + _LAST_WORDS_S
        self._next = None
        for peer, session in list(self._peers.items()):
            due = self._ledger.due(session, 0)
            if not self._say(peer, answer(LAST, session, due)):
                del self._peers[peer]
        self._waiting.unregister(self._wake)
        while self._peers and (left := until - time.monotonic()) > 0:
            if self._read() is None and self._peers:
                self._waiting.poll(left * 1000)

    def _shut(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        if self._file:  # while it is still this socket's: the next receiver makes its own
            with contextlib.suppress(OSError):
                os.unlink(self._file)
        self._socket.close()
        self._context.term()


class _Allowed:
    """For pyzmq's authenticator: whose keys are let in."""

    def __init__(self, peers: tuple[str, ...]) -> None:
        self._keys = {peer.encode() for peer in peers}

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self._keys


def _refuse_if_taken(address: Address) -> None:
    """ZeroMQ would take an ipc address away from a receiver that lives."""
    with plain_sockets.socket(plain_sockets.AF_UNIX, plain_sockets.SOCK_STREAM) as probe:
        try:
            probe.connect(address.path)
        except OSError:
            return
    raise QueueError(
        errno.EADDRINUSE,
        f"binding {address.text}: another Receiver is there: close it, or choose another address",
    )


def _abandon(pid: int, socket: Any, context: Any) -> None:
    """A Receiver that nobody closed."""
    if os.getpid() == pid and not socket.closed:
        socket.close(0)
        context.term()

"""The receiving end without keys: reads PUSH sockets' messages from plain sockets.

ZeroMQ's own PULL socket is not safe here.  It keeps the parts of a message that never ends without a
limit, and libzmq 4.3.5 aborts the process when a peer that has sent a PING behind the high-water mark
hangs up.  This end reads ZMTP 3 with the mechanism NULL (https://rfc.zeromq.org/spec/23), nothing else,
and keeps of each connection at most one frame.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import time
from collections.abc import Iterable

from . import Dropped
from .addresses import Address
from .inlet import Inlet, log
from .listening import file_at, listen, text_of

_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a ZMTP frame
_GREETING = 64
_HELLO = (
    b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    + b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL"
)  # fmt: skip
_LONGEST = (1 << 63) - 1  # ZMTP allows no more
_LONGEST_COMMAND = 4096
_CHUNK = 1 << 16
_ROOM = 64 << 20  # bytes of frames that have come in part, of all connections
_MOST_PEERS = 4096
_AT_ONCE = 16  # messages, or connections, between two looks at the others
_GONE = (BlockingIOError, ConnectionError)  # a peer that does not listen


class _Stranger(Exception):
    """Raised when a peer's data is not a PUSH socket's."""


class _Peer:
    """A connection, and its received data that is not taken yet.

    A signal handler may raise after any call here.  So bytes are received and kept in one call, and cut off
    last, together with what is known of the rest.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.arrived: list[bytes] = []
        self.data = bytearray()
        self.counted = 0  # bytes of it in `PlainInlet._held`
        self.answered: list[int] = []  # not empty once our greeting is sent
        self.has_greeted = self.has_sent = False
        self.more = 0  # parts of the present message follow
        self.to_skip = 0  # bytes
        self.heard = time.monotonic()

    def greet(self) -> None:
        """Send our greeting, once; the peer may send messages from then on, so it is kept."""
        if not self.answered:
            with contextlib.suppress(*_GONE):
                self.answered += map(self.connection.send, (_HELLO,))

    def next(self, longest: int) -> bytes | Dropped | None:
        """The message at the beginning of `data`, cut off there; None while more has to come."""
        data = self.data
        while self.arrived:
            data += self.arrived[0]
            del self.arrived[0]
        if not self.has_greeted:
            if len(data) < _GREETING:
                return None
            mechanism = data[12:32].rstrip(b"\0").decode("ascii", "backslashreplace")
            if data[0] != 0xFF or data[9] != 0x7F or data[10] < 3:
                raise _Stranger("no ZeroMQ, or an older one than 4.0")
            if mechanism != "NULL":
                raise _Stranger(f"the mechanism {mechanism}: a sender with keys, at an address without")
            del data[:_GREETING]
            self.has_greeted = True
        while True:
            if self.to_skip:
                skipped = min(self.to_skip, len(data))
                del data[:skipped]
                self.to_skip -= skipped
            if self.to_skip or len(data) < 2 or (data[0] & _LONG and len(data) < 9):
                return None
            flags, begin = data[0], 9 if data[0] & _LONG else 2
            size = min(int.from_bytes(data[1:begin], "big"), _LONGEST)
            end = begin + size
            if not flags & _COMMAND and (self.more or flags & _MORE or size > longest):
                found = Dropped("parts", 2) if flags & _MORE else Dropped("length", size)
                is_next_part, self.more, self.to_skip = self.more, flags & _MORE, end
                if not is_next_part:
                    return found
                continue
            if size > _LONGEST_COMMAND and flags & _COMMAND:
                raise _Stranger(f"a command of {size} bytes")
            if len(data) < end:
                return None
            payload = bytes(memoryview(data)[begin:end])
            if flags & _COMMAND:
                _obey(self.connection, payload)
            del data[:end]
            if not flags & _COMMAND:
                return payload


def _obey(connection: socket.socket, command: bytes) -> None:
    """Answer a PING; READY needs no answer, since ours is sent at once."""
    if command[:5] == b"\4PING":
        context = command[7:23]
        with contextlib.suppress(*_GONE):
            connection.send(bytes((_COMMAND, 5 + len(context))) + b"\4PONG" + context)
    elif command[:6] == b"\5READY" and b"\4PUSH" not in command:
        raise _Stranger("a socket that is no PUSH")


class PlainInlet(Inlet):
    """Receiving end at ipc, with a file of this mode, or tcp; passes over longer messages."""

    def __init__(self, address: Address, mode: int, longest: int) -> None:
        super().__init__()
        self._longest = longest
        self._most = min(_MOST_PEERS, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
        self._peers: dict[int, _Peer] = {}
        self._ready: dict[_Peer, None] = {}  # in turn; each may have a message in hand
        self._held = 0  # bytes of all peers' data
        self._turns = 0
        self._listener = listen(address, mode)
        self.address = text_of(address, self._listener)
        self._epoll.register(self._listener, select.EPOLLIN)
        self._open.callback(_close_all, self._peers)
        self._open.callback(self._listener.close)
        if address.kind == "ipc":  # first: no other Receiver takes the address while this one listens
            self._open.callback(_remove, os.getpid(), address.path, file_at(address.path))
        if not address.is_local:
            log.warning(
                "%s can be reached from other hosts, and has no keys: whoever reaches it can forge tokens; "
                "bind 127.0.0.1, or give curve=",
                self.address,
            )

    def _next(self) -> None:
        self._turns += 1
        if not self._ready or self._turns % _AT_ONCE == 0:
            self._look()
        while self._ready:
            peer = next(iter(self._ready))
            try:
                self.found = peer.next(self._longest)
            except _Stranger as error:
                self._warn("a connection to %s was refused: it sent %s", self.address, error)
                self._drop(peer)
                continue
            self._count(peer)
            del self._ready[peer]
            if self.found is not None:
                self._ready[peer] = None  # the others first: it may have much
                peer.has_sent |= type(self.found) is bytes
                break

    def _count(self, peer: _Peer) -> None:
        size = len(peer.data) + (len(peer.arrived[0]) if peer.arrived else 0)
        self._held += size - peer.counted
        peer.counted = size

    def _look(self) -> None:
        """Accept and read what is there, a limited amount."""
        for descriptor, _ in self._epoll.poll(0, _AT_ONCE):
            if descriptor == self._listener.fileno():
                self._accept()
            elif (peer := self._peers.get(descriptor)) is not None and peer not in self._ready:
                self._read(peer)

    def _read(self, peer: _Peer) -> None:
        self._ready[peer] = None
        peer.greet()  # a signal handler's exception may have ended `_accept` before
        try:
            peer.arrived += map(peer.connection.recv, (_CHUNK,))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno is None:  # a signal handler's TimeoutError
                raise
            peer.arrived.append(b"")
        if not peer.arrived[-1]:
            self._drop(peer)
            return
        peer.heard = time.monotonic()
        self._count(peer)
        while self._held > _ROOM + self._longest:
            self._evict((one for one in self._peers.values() if one.counted), "too much has come in part")

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            mute = (peer for peer in self._peers.values() if not peer.has_sent)
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # none is left, or it has gone again, or there are no more descriptors
                if error.errno is None:
                    raise
                full = error.errno in (errno.EMFILE, errno.ENFILE)
                if full and not self._evict(mute, "no descriptor is left"):
                    time.sleep(0.01)
                return
            full = len(self._peers) >= self._most
            if full and not self._evict(mute, f"{self._most} are connected"):
                connection.close()
                continue
            self._peers[connection.fileno()] = peer = _Peer(connection)
            try:
                connection.setblocking(False)
                self._epoll.register(connection, select.EPOLLIN)
            except BaseException:
                self._drop(peer)
                raise
            peer.greet()

    def _evict(self, those: Iterable[_Peer], why: str) -> bool:
        """Close the one silent longest of those, rather one that has sent no message."""
        self._warn("a connection to %s is closed: %s", self.address, why)
        one = min(those, key=lambda peer: (peer.has_sent, peer.heard), default=None)
        if one is not None:
            self._drop(one)
        return one is not None

    def _drop(self, peer: _Peer) -> None:
        self._held -= peer.counted
        peer.counted = 0
        self._ready.pop(peer, None)
        self._peers.pop(peer.connection.fileno(), None)
        peer.connection.close()


def _remove(pid: int, path: str, file: tuple[int, int] | None) -> None:
    """Remove a path if it still is the socket of this process."""
    if os.getpid() == pid and file_at(path) == file:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _close_all(peers: dict[int, _Peer]) -> None:
    for peer in peers.values():
        peer.connection.close()
    peers.clear()

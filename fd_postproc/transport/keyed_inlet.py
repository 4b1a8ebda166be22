"""The receiving end with keys: a PULL socket, and the answers to ZeroMQ's questions about keys.

Before a peer has shown a known key, nothing that it sends is kept but the words of the handshake.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import Any

from . import Dropped
from .addresses import Address
from .curve import Curve, context, library, set_keys
from .inlet import Inlet
from .listening import listen, text_of

_HWM = 64  # messages of one sender that may wait here
_HANDSHAKE_MS = 5000


class KeyedInlet(Inlet):
    """Receiving end at tcp; who sends a message of more than twice `longest` is disconnected."""

    def __init__(self, address: Address, longest: int, curve: Curve) -> None:
        zmq = self._zmq = library()
        super().__init__()
        self._longest = longest
        self._keys = {peer.encode() for peer in curve.peers}
        made = context(zmq)
        self._open.callback(_end, os.getpid(), made)
        self._end.atexit = False  # a daemon thread may be in the socket
        self._questions = made.socket(zmq.REP)
        self._questions.bind("inproc://zeromq.zap.01")
        self._socket = socket = made.socket(zmq.PULL)
        set_keys(socket, address, curve)
        socket.curve_server = True
        socket.zap_domain = b"fd_postproc"
        socket.rcvhwm = _HWM
        socket.maxmsgsize = 2 * longest
        socket.handshake_ivl = _HANDSHAKE_MS
        listener = listen(address, 0o600)
        self.address = text_of(address, listener)
        socket.ipv6 = "[" in self.address
        socket.set(zmq.USE_FD, listener.detach())
        socket.bind(self.address)
        for one in (socket, self._questions):
            self._epoll.register(one.get(zmq.FD), select.EPOLLIN)

    def _next(self) -> None:
        again, at_once = self._zmq.Again, self._zmq.NOBLOCK
        with contextlib.suppress(again):
            while True:
                self._answer(self._questions.recv_multipart(at_once))
        with contextlib.suppress(again):
            frame, *others = self._socket.recv_multipart(at_once)
            is_short = len(frame) <= self._longest
            found = frame if is_short else Dropped("length", len(frame))
            self.found = Dropped("parts", 2) if others else found

    def _answer(self, question: list[bytes]) -> None:
        """Answer a request; see https://rfc.zeromq.org/spec/27."""
        from zmq.utils import z85

        key = z85.encode(question[6]) if len(question) == 7 else b""
        if key not in self._keys:
            text = "a connection to %s was refused: the key %s is not among curve.peers"
            self._warn(text, self.address, key.decode())
        status = b"200" if key in self._keys else b"400"
        self._questions.send_multipart([b"1.0", question[1], status, b"", b"", b""])


def _end(pid: int, context: Any) -> None:
    """In the child of a fork, the sockets are the parent's."""
    if os.getpid() == pid:
        context.destroy(linger=0)

"""pyzmq: imported when an address is given, and the options that both ends have in common."""

from __future__ import annotations

import errno
from typing import Any

from ..errors import QueueError, queue_error
from .addresses import Address
from .curve import Curve

_HEARTBEAT_MS = 2000  # between two signs of life over tcp, where a peer may go without a word
_SILENCE_MS = 10_000


def library() -> Any:
    """The module ``zmq``.

    Raises
    ------
    QueueError
        If it is not installed, or lacks what is needed.
    """
    try:
        import zmq
    except ImportError as error:
        raise QueueError(
            errno.ENOPKG,
            f"an address needs pyzmq, which cannot be imported ({error}); pip install 'fd_postproc[zmq]'",
        ) from None
    return zmq


def configure(zmq: Any, socket: Any, address: Address, curve: Curve | None) -> None:
    """Options of either end."""
    socket.linger = 0
    if address.kind == "tcp":
        socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
        socket.set(zmq.IPV6, int(":" in address.host))
    if curve is not None:
        if address.kind != "tcp":
            raise ValueError(
                f"address {address.text!r} takes no curve: its file's permission bits guard it; keys are for "
                "tcp"
            )
        if not zmq.has("curve"):
            raise QueueError(errno.ENOPKG, "this pyzmq was built without CURVE; pip install --upgrade pyzmq")
        socket.curve_secretkey = curve.secret.encode()
        socket.curve_publickey = zmq.curve_public(curve.secret.encode())


def failed(zmq: Any, error: Any, doing: str, remedy: str | None = None) -> QueueError:
    """The exception for one of ZeroMQ's."""
    code = error.errno or errno.EIO
    if code in (errno.EACCES, errno.EPERM, errno.EAGAIN):
        return queue_error(code, doing, remedy)
    text = f"{doing}: {zmq.strerror(code)}" + (f"; {remedy}" if remedy else "")
    return QueueError(code, text)

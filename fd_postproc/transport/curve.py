"""Keys of CurveZMQ, for encryption and authentication over tcp; and pyzmq, which has them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..checks import kind_of
from ..errors import QueueError
from .addresses import Address

_LENGTH = 40
_DESCRIPTORS = 24  # of a context with threads, sockets and connections, and some more
_Z85 = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]+")


@dataclass(frozen=True)
class Curve:
    """Secret key of one end, and the public keys of its peers.

    Keys have 40 characters (Z85), as ``zmq.curve_keypair()`` makes them: first the public, then the
    secret one.

    Parameters
    ----------
    secret : str or bytes
        This end's own.  It never leaves the process, and is not shown.
    peers : str, bytes, or iterable of these
        Of a Sender: its receiver's public key.  Of a Receiver: those of all senders that it lets in.

    Raises
    ------
    TypeError, ValueError
        If something is no key.
    """

    secret: str = field(repr=False)
    peers: tuple[str, ...]

    def __init__(self, secret: str | bytes, peers: str | bytes | Iterable[str | bytes]) -> None:
        try:
            several = (peers,) if isinstance(peers, (str, bytes)) else tuple(peers)
        except TypeError:
            raise TypeError(f"peers must be a key, or several, not {kind_of(peers)}") from None
        if not several:
            raise ValueError("peers is empty: give the public key of each other end")
        object.__setattr__(self, "secret", _checked("secret", secret))
        object.__setattr__(self, "peers", tuple(_checked("peers", peer) for peer in several))


def _checked(name: str, key: object) -> str:
    key = key.decode("ascii", "replace") if isinstance(key, bytes) else key
    if not isinstance(key, str):
        raise TypeError(f"{name}: a key must be a str or bytes of {_LENGTH} characters, not {kind_of(key)}")
    if len(key) != _LENGTH or _Z85.fullmatch(key) is None:
        raise ValueError(
            f"{name}: a key has {_LENGTH} characters of Z85, as zmq.curve_keypair() makes them; this has "
            f"{len(key)}, or others"
        )
    return key


def library() -> Any:
    """The module ``zmq``; a `QueueError` if it is not installed."""
    try:
        import zmq
    except ImportError as error:
        text = f"an address needs pyzmq, which cannot be imported ({error}); pip install 'fd_postproc[zmq]'"
        raise QueueError(errno.ENOPKG, text) from None
    return zmq


def context(zmq: Any) -> Any:
    """A context; for want of descriptors a `QueueError`, where libzmq would abort the process."""
    taken: list[int] = []
    try:
        while len(taken) < _DESCRIPTORS:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        text = f"an address needs {_DESCRIPTORS} descriptors: {error.strerror}; raise ulimit -n"
        raise QueueError(error.errno or errno.EMFILE, text) from None
    finally:
        for one in taken:
            os.close(one)
    return zmq.Context()


def set_keys(socket: Any, address: Address, curve: Curve) -> None:
    """Set the keys of an end."""
    if address.kind != "tcp":
        raise ValueError(
            f"address {address.text!r} takes no curve: its file's permission bits guard it; keys are for tcp"
        )
    zmq = library()
    if not zmq.has("curve"):
        raise QueueError(errno.ENOPKG, "this pyzmq was built without CURVE; pip install --upgrade pyzmq")
    socket.curve_secretkey = curve.secret.encode()
    socket.curve_publickey = zmq.curve_public(curve.secret.encode())

"""Keys of CurveZMQ: who may talk to whom over tcp, encrypted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..checks import kind_of

_LENGTH = 40


@dataclass(frozen=True)
class Curve:
    """One end's secret key, and the public keys of those whom it talks to.

    Keys are texts of 40 characters (Z85), as ``zmq.curve_keypair()`` makes them: first the public, then the
    secret one.

    Parameters
    ----------
    secret : str
        This end's own.  It never leaves the process, and is not shown.
    peers : str or iterable of str
        Of a Sender: its receiver's public key.  Of a Receiver: those of all senders that it lets in.

    Raises
    ------
    TypeError, ValueError
        If something is no key.
    """

    secret: str = field(repr=False)
    peers: tuple[str, ...]

    def __init__(self, secret: str, peers: str | Iterable[str]) -> None:
        try:
            peers = (peers,) if isinstance(peers, str) else tuple(peers)
        except TypeError:
            raise TypeError(f"peers must be a key, or several, not {kind_of(peers)}") from None
        for name, key in (("secret", secret), *(("peers", peer) for peer in peers)):
            if not isinstance(key, str):
                raise TypeError(f"{name}: a key must be a str of {_LENGTH} characters, not {kind_of(key)}")
            if len(key) != _LENGTH or not key.isascii() or not key.isprintable():
                raise ValueError(
                    f"{name}: a key has {_LENGTH} printable characters, as zmq.curve_keypair() makes them, "
                    f"not {len(key)}"
                )
        if not peers:
            raise ValueError("peers is empty: give the public key of each other end")
        object.__setattr__(self, "secret", secret)
        object.__setattr__(self, "peers", peers)

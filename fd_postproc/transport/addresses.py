"""What an address says: ``ipc:///run/fd/steps``, ``tcp://127.0.0.1:5570``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from ..checks import kind_of, shown

_LONGEST_PATH = 107  # sun_path of a Unix socket, less its zero
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\[\]:/@;]+):(\*|[0-9]{1,5})")
_FORMS = "'ipc:///an/absolute/path' or 'tcp://host:port'"


@dataclass(frozen=True)
class Address:
    """An address that was checked.

    Attributes
    ----------
    text : str
        As it was written.
    kind : {"ipc", "tcp"}
    path : str
        Of the socket, for ipc; else empty.
    host : str
        For tcp; else empty.
    port : int
        For tcp; 0: the kernel chooses.
    """

    text: str
    kind: Literal["ipc", "tcp"]
    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether only this host can reach it."""
        if self.kind == "ipc" or self.host == "localhost":
            return True
        import ipaddress

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name, an interface, *
            return False


def is_address(text: str) -> bool:
    """Whether a text is meant as an address."""
    return "://" in text


def parse(address: object, *, bind: bool = False) -> Address:
    """Check an address; `bind`: it is a receiver's, which may leave the port to the kernel.

    Raises
    ------
    TypeError
        If it is no text.
    ValueError
        If it is no address that can be used.
    """
    if not isinstance(address, str):
        raise TypeError(f"address must be a str, {_FORMS}, not {kind_of(address)}")
    kind, colon, rest = address.partition("://")
    if kind == "ipc" and colon:
        if not rest.startswith("/"):
            why = "a name without a file has no owner and no permission bits" if rest[:1] == "@" else ""
            why = why or "a relative one would depend on each process's working directory"
            raise ValueError(
                f"address {shown(address)} needs an absolute path, as in 'ipc:///run/fd/steps': {why}"
            )
        if len(os.fsencode(rest)) > _LONGEST_PATH:
            raise ValueError(
                f"address {shown(address)} has a path of {len(os.fsencode(rest))} bytes; the kernel allows "
                f"{_LONGEST_PATH} for a socket: choose a shorter one"
            )
        return Address(address, "ipc", path=rest)
    found = _HOST_AND_PORT.fullmatch(rest) if kind == "tcp" else None
    if found is None:
        raise ValueError(f"address {shown(address)} is not {_FORMS}")
    host, port = found[1].strip("[]"), found[2]
    if port not in ("*", "0") and int(port) > 65535:
        raise ValueError(f"address {shown(address)}: port {port} is above 65535")
    if not bind and (host == "*" or port in ("*", "0")):
        raise ValueError(
            f"address {shown(address)} is one to listen at; a Sender needs the receiver's own host and port, "
            "as its Receiver.address says them"
        )
    return Address(address, "tcp", host=host, port=0 if port == "*" else int(port))

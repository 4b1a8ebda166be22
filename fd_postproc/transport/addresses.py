"""Addresses: ``ipc:///run/fd/steps``, ``tcp://127.0.0.1:5570``."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from ..checks import kind_of, shown

_LONGEST_PATH = 107  # sun_path of a Unix socket, less its zero
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\[\]:/@;]+):(\*|[0-9]{1,5})")
_FORMS = "'ipc:///an/absolute/path' or 'tcp://host:port'"


class Address(NamedTuple):
    """A valid address: ``"ipc"`` and a path, or ``"tcp"``, host, and port (0: any)."""

    text: str
    kind: str
    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether only this host can connect."""
        if self.kind == "ipc" or self.host == "localhost":
            return True
        import ipaddress

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name, or *
            return False


def parse(address: object, *, bind: bool = False) -> Address:
    """Parse an address; with `bind` it is a receiver's, which may leave the port to the kernel.

    Raises
    ------
    TypeError, ValueError
        If it is no text, or no address that can be used.
    """
    if not isinstance(address, str):
        raise TypeError(f"address must be a str, {_FORMS}, not {kind_of(address)}")
    this = f"address {shown(address)}"
    kind, _, rest = address.partition("://")
    if address.startswith("ipc://"):
        if not rest.startswith("/"):
            why = "a name without a file has no owner and no permission bits" if rest[:1] == "@" else ""
            why = why or "a relative one would depend on each process's working directory"
            raise ValueError(f"{this} needs an absolute path, as in 'ipc:///run/fd/steps': {why}")
        try:
            size = len(os.fsencode(rest))
        except UnicodeEncodeError:
            size = 0
        if size == 0 or "\0" in rest:
            raise ValueError(f"{this} has characters that no path can have")
        if size > _LONGEST_PATH:
            raise ValueError(
                f"{this} has a path of {size} bytes; the kernel allows {_LONGEST_PATH} for a socket: "
                "choose a shorter one"
            )
        return Address(address, "ipc", path=rest)
    found = _HOST_AND_PORT.fullmatch(rest) if kind == "tcp" else None
    if found is None:
        raise ValueError(f"{this} is not {_FORMS}")
    host, port = found[1].strip("[]"), int(found[2].replace("*", "0"))
    if port > 65535:
        raise ValueError(f"{this}: port {port} is above 65535")
    if not bind and (host == "*" or port == 0):
        raise ValueError(
            f"{this} is one to listen at; a Sender needs the receiver's own host and port, as its "
            "Receiver.address says them"
        )
    return Address(address, "tcp", host=host, port=port)

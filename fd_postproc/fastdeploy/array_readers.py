"""Capability flag: an API process that accepts arrays as one value binds an abstract Unix socket.

The name is an abstract socket's (a ``\\0`` first), made of the path at which the process receives results.
The kernel removes it when the process ends, whatever the reason, and nothing is left on a disk.  A stock API
server has no such name, nor has one whose plug-in has another form of arrays: it gets lists.
"""

from __future__ import annotations

import contextlib
import socket

FORM = "arrays/1"
"""The form of the values, `headers/packed_array.h`; another one has another number."""


def name_of(path: str) -> bytes:
    """The name of the process that receives results at a path of FastDeploy's ZeroMQ socket."""
    return b"\0fd_postproc/" + f"{FORM}{path.removeprefix('ipc://')}".encode()[:90]


def announce(path: str) -> socket.socket | None:
    """Say that this process reads arrays, until the socket is closed; None: another one has the name."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(name_of(path))
    except OSError:
        held.close()
        return None
    return held


def reads_arrays(path: str) -> bool:
    """Whether the process that receives results at a path has said that it reads arrays."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as asking:
        try:
            asking.connect(name_of(path))
        except OSError:
            return False
        return True

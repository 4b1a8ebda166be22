"""Capability flags: an API process says what it takes by binding abstract Unix sockets.

A name is an abstract socket's (a ``\\0`` first), made of the path at which the process receives results.
The kernel removes it when the process ends, whatever the reason, and nothing is left on a disk.  A stock API
server has no such name, nor has one whose plug-in has another form of arrays: it gets lists.
"""

from __future__ import annotations

import contextlib
import socket

FORM = "arrays/1"
"""Arrays are read as one value of this form, `headers/packed_array.h`; another one has another number."""
JOINED = "joined/1"
"""A result that a stream interval has joined says what its tokens say one by one."""


def name_of(path: str, form: str = FORM) -> bytes:
    """The name of the process that receives results at a path of FastDeploy's ZeroMQ socket."""
    return b"\0fd_postproc/" + f"{form}{path.removeprefix('ipc://')}".encode()[:90]


def announce(path: str, form: str = FORM) -> socket.socket | None:
    """Say that this process takes a form, until the socket is closed; None: another one has the name."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(name_of(path, form))
    except OSError:
        held.close()
        return None
    return held


def has_announced(path: str, form: str) -> bool:
    """Whether the process that receives results at a path has said that it takes a form."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as asking:
        try:
            asking.connect(name_of(path, form))
        except OSError:
            return False
        return True


def reads_arrays(path: str) -> bool:
    """Whether the process that receives results at a path has said that it reads arrays."""
    return has_announced(path, FORM)

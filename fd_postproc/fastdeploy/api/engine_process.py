"""This module identifies the engine's process for the API server, and tells whether it is alive.

The engine listens at a Unix socket for requests.  The kernel names the process that made the socket listen.
Its start time in ``/proc`` distinguishes it from a later process with the same number.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from ...support.process_stat import KnownProcess

_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


class Unknown(Exception):
    """Raised when the engine's process cannot be identified; the message says why."""


def socket_file(path: str) -> tuple[int, int] | None:
    """Identity of a socket's file, which changes when it is made anew; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def listener(path: str) -> KnownProcess:
    """Find the process that listens at a Unix socket, by a connection that sends nothing.

    Raises
    ------
    Unknown
        If nothing listens there, or the process cannot be seen from here.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            raise Unknown(f"{path}: {errno.errorcode.get(error.errno or 0)}, {error.strerror}") from error
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    if pid <= 0:
        raise Unknown(f"the process that listens at {path} is in another PID namespace")
    try:
        process = KnownProcess.of(pid)
    except (OSError, IndexError) as error:
        raise Unknown(f"process {pid}, which made {path} listen, cannot be seen in /proc: {error}") from error
    if not process.is_alive():
        raise Unknown(f"process {pid}, which made {path} listen, has ended")
    return process

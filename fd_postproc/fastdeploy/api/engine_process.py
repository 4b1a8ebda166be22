"""This module identifies the engine's process for the API server, and tells whether it is alive.

The engine listens at a Unix socket for requests.  The kernel names the process that made the socket listen.
Its start time in ``/proc`` distinguishes it from a later process with the same number.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import NamedTuple

from ...process_stat import process_stat

_STATE, _THREADS, _START = 0, 17, 19  # fields of /proc/PID/stat, from the third on
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


class Unknown(Exception):
    """Raised when the engine's process cannot be identified; the message says why."""


class EngineProcess(NamedTuple):
    """A process that listens at the engine's socket.

    Attributes
    ----------
    pid : int
    start : str
        Its start time in clock ticks since boot, as ``/proc/PID/stat`` has it.
    """

    pid: int
    start: str

    def is_alive(self) -> bool:
        """Whether the process is alive; a stopped, busy or swapped-out one is, a zombie is not.

        What cannot be read counts as alive.
        """
        try:
            fields = process_stat(self.pid)
            return fields[_START] == self.start and not _has_ended(fields)
        except (FileNotFoundError, ProcessLookupError):
            return False
        except (OSError, IndexError, ValueError):
            return True


def _has_ended(fields: list[str]) -> bool:
    """Whether all threads of a process are zombies; the first thread may end before the others."""
    return fields[_STATE] in ("X", "x") or (fields[_STATE] == "Z" and int(fields[_THREADS]) <= 1)


def socket_file(path: str) -> tuple[int, int] | None:
    """Identity of a socket's file, which changes when it is made anew; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def listener(path: str) -> EngineProcess:
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
        process = EngineProcess(pid, process_stat(pid)[_START])
    except (OSError, IndexError) as error:
        raise Unknown(f"process {pid}, which made {path} listen, cannot be seen in /proc: {error}") from error
    if not process.is_alive():
        raise Unknown(f"process {pid}, which made {path} listen, has ended")
    return process

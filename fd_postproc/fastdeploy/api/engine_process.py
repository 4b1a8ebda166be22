"""Identifies the engine's process for the API server, and says whether it is alive.

The engine listens at a Unix socket for requests.  The kernel names the process that made the socket listen.
Its start time in ``/proc`` distinguishes it from a later process with the same number.

gVisor before June 2026 names the process that asks instead.  An API process that was forked from the engine
has the listening socket, too, and the engine is its parent.  Any other goes by the socket, which refuses
connections when the last process that has it has ended.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

from ...support.process_stat import KnownProcess, listens
from ..events.log import api_log

_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
REFUSED = 4  # looks in a row, after which an engine without a number has ended


class NoEngine(Exception):
    """Raised when the engine's process cannot be identified; the message says why."""


def socket_file(path: str) -> tuple[int, int] | None:
    """Identity of a socket's file, which changes when it is made anew; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


@dataclass(eq=False)
class Unnumbered:
    """An engine whose process has no number here; its socket says whether it is alive."""

    path: str
    pid: str = "of unknown number"
    _refused: int = 0

    def is_alive(self) -> bool:
        """Whether the socket takes connections, or has refused fewer than `REFUSED` in a row."""
        self._refused = 0 if listens(self.path) else self._refused + 1
        return self._refused < REFUSED


def peer_of(path: str) -> int:
    """The process that listens at a Unix socket, by the kernel: 0 is one of another PID namespace.

    Raises
    ------
    NoEngine
        If nothing listens there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            raise NoEngine(f"{path}: {errno.errorcode.get(error.errno or 0)}, {error.strerror}") from error
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid


def listener(path: str) -> KnownProcess | Unnumbered:
    """Find the process that listens at a Unix socket, by a connection that sends nothing.

    Raises
    ------
    NoEngine
        If nothing listens there, or the process has ended or cannot be seen from here.
    """
    pid = peer_of(path)
    if pid == os.getpid():
        return _without_its_number(path)
    if pid <= 0:
        raise NoEngine(f"the process that listens at {path} is in another PID namespace")
    try:
        process = KnownProcess.of(pid)
    except (OSError, IndexError) as error:
        raise NoEngine(
            f"process {pid}, which made {path} listen, cannot be seen in /proc: {error}"
        ) from error
    if not process.is_alive():
        raise NoEngine(f"process {pid}, which made {path} listen, has ended")
    return process


def _without_its_number(path: str) -> KnownProcess | Unnumbered:
    """The engine, where the kernel names this process in its place; the log says so."""
    said = f"fd_postproc: the kernel says that this process listens at {path}, as gVisor did before June 2026"
    parent = os.getppid()
    if _is_from(parent, path):
        process = KnownProcess.of(parent)
        api_log().warning(f"{said}: the engine is the parent process, {parent}, which has that socket")
        return process
    api_log().warning(f"{said}: the engine counts as alive while its socket takes connections")
    return Unnumbered(path)


def _is_from(parent: int, path: str) -> bool:
    """Whether this process has a socket bound to a path from its parent, which has it, too."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # not the parent's, or no socket
            if os.path.samestat(os.stat(f"/proc/{parent}/fd/{name}"), os.fstat(int(name))):
                one = socket.socket(fileno=int(name))
                try:
                    if one.getsockname() == path:
                        return True
                finally:
                    one.detach()
    return False

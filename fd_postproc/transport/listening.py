"""Sockets that listen at an address; only a dead process's socket is removed from a path."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator

from ..errors import QueueError, queue_error
from .addresses import Address

_BACKLOG = 4096  # the kernel takes the smaller of this and net.core.somaxconn
_LOCK_S = 2.0
_TAKEN = "another program listens there: close it, or choose another address"
_REMEDIES = {
    ("ipc", errno.ENOENT): "make its directory first",
    ("ipc", errno.EADDRINUSE): _TAKEN,
    ("tcp", errno.EADDRINUSE): _TAKEN,
    ("tcp", errno.EADDRNOTAVAIL): "this host has no such address",
    ("tcp", errno.EACCES): "ports below 1024 are root's: choose a higher one",
}
_KINDS = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link"}


def listen(address: Address, mode: int) -> socket.socket:
    """Open a listening socket, which is not inherited and does not block.

    Raises
    ------
    QueueError
        If the address cannot be had; the text says what is there, and what to do.
    """
    try:
        one = _at_path(address, mode) if address.kind == "ipc" else _at_port(address)
    except QueueError:
        raise
    except socket.gaierror as error:
        why = f"the host {address.host!r} cannot be found ({error.strerror}): check its spelling"
        raise _refused(address, errno.EADDRNOTAVAIL, why) from None
    except OSError as error:
        code = error.errno or errno.EIO
        raise _refused(address, code, _REMEDIES.get((address.kind, code))) from None
    one.setblocking(False)
    return one


def text_of(address: Address, listener: socket.socket) -> str:
    """The address of a socket that listens, with the port that it has."""
    if address.kind == "ipc":
        return address.text
    host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def file_at(path: str) -> tuple[int, int] | None:
    """The identity of the file at a path."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        return found.st_dev, found.st_ino
    return None


def _refused(address: Address, code: int, why: str | None) -> QueueError:
    doing = f"listening at {address.text}"
    if code in (errno.EACCES, errno.EPERM):
        return queue_error(code, doing, why)
    return QueueError(code, f"{doing}: {os.strerror(code)}" + (f"; {why}" if why else ""))


def _at_port(address: Address) -> socket.socket:
    any_host = address.host == "*"
    family, _, _, _, where = socket.getaddrinfo(
        None if any_host else address.host,
        address.port,
        family=socket.AF_INET if any_host else socket.AF_UNSPEC,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE,
    )[0]
    one = socket.create_server(where, family=family, backlog=_BACKLOG)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted ones inherit it
    return one


def _at_path(address: Address, mode: int) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(one.fileno(), mode)  # the file gets these bits, less the umask, when it is made
        with _locked(address):
            _make_way(address)
            one.bind(address.path)
            os.chmod(address.path, mode)
            one.listen(_BACKLOG)
    except BaseException:
        one.close()
        raise
    return one


@contextlib.contextmanager
def _locked(address: Address) -> Iterator[None]:
    """Lock a directory while its sockets are checked and one is made."""
    folder = os.open(os.path.dirname(address.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    why = "another program holds a lock on its directory: choose one of your own"
                    raise _refused(address, errno.EAGAIN, why) from None
                time.sleep(0.01)
        yield
    finally:
        os.close(folder)


def _make_way(address: Address) -> None:
    """Remove the socket of a dead process of this user; refuse anything else there."""
    try:
        found = os.lstat(address.path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something that is no socket")
        raise _refused(address, errno.EEXIST, f"{kind} is there, and is left alone: choose another address")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(address.path) != errno.ECONNREFUSED:
            raise _refused(address, errno.EADDRINUSE, _TAKEN)
    if found.st_uid != os.geteuid():
        why = f"a dead socket of user {found.st_uid} is there: its owner may remove it"
        raise _refused(address, errno.EEXIST, why)
    os.unlink(address.path)

"""A flight recorder's files: their folders, their writers, and the removal of old ones.

They lie in memory (``/dev/shm``) where there is such a folder: writing to a file on a disk may wait for it.
One file a process, in a folder that only its user can look into.  The process that writes a file holds a
lock on it, which the kernel takes back whatever the process dies of.  That lock alone says whether a file is
in use: a container has the same process numbers at each start, and two of them may share a folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from .._version import __version__
from ..support.environment import FLIGHT_FOLDER
from .codes import BOOT_AT, ENTRY_SIZE, HEAD, HEAD_SIZE, MAGIC, NODE_AT, NODE_SIZE, VERSION

SUFFIX = ".flight"
KEPT = 4
"""Limit of files of ended processes, of each side and queue."""
KEPT_IN_ALL = 64
"""Limit of them all: a service that is started with another port each time has another queue."""
SERIES_NS = 3600 * 10**9
"""A run that begins so soon after the one before belongs to a series of restarts."""
_SHARED = "/dev/shm"
_FLOCK = struct.Struct("hhqqixxxx")  # struct flock of 64-bit Linux


_open: set[tuple[int, int, int]] = set()  # files that a process writes itself: process, device, inode


class Made(NamedTuple):
    """A new file."""

    path: str
    memory: mmap.mmap
    descriptor: int  # which has the lock


class Run(NamedTuple):
    """Age of an ended process's file.  Runs of this boot sort last, by the monotonic clock.

    The wall clock may have been set between two files.  Files of other boots have nothing but its time.
    """

    is_of_this_boot: bool
    began_ns: int
    name: str


def folders() -> list[str]:
    """Folders of files, the usual one first."""
    if FLIGHT_FOLDER.text:
        return [FLIGHT_FOLDER.text]
    places = [place for place in (_SHARED, temporary_folder()) if os.path.isdir(place)] or [_SHARED]
    return [os.path.join(place, f"fd_postproc-{os.geteuid()}") for place in dict.fromkeys(places)]


def temporary_folder() -> str:
    """Folder of temporary files; ``/dev/shm`` where tempfile finds none that it can write to."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return _SHARED


def other_users() -> list[int]:
    """Users whose processes have files where this user's have none."""
    found = set()
    for place in {*map(os.path.dirname, folders())}:
        with contextlib.suppress(OSError):
            for name in os.listdir(place):
                user = name.removeprefix("fd_postproc-")
                if user != name and user.isdigit() and int(user) != os.geteuid():
                    found.add(int(user))
    return sorted(found)


@contextlib.contextmanager
def _opened(folder: str, make: bool = False) -> Iterator[int]:
    """Open a folder that only this user can write to; refuse another user's."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    where = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fault = _fault(os.fstat(where))
        if fault:
            raise PermissionError(errno.EPERM, f"{fault}: name another folder in {FLIGHT_FOLDER}", folder)
        yield where
    finally:
        os.close(where)


def _fault(folder: os.stat_result) -> str:
    """The fault of a folder; empty if it can be used."""
    if not stat.S_ISDIR(folder.st_mode):
        return "not a folder"
    if folder.st_uid != os.geteuid():
        return f"it belongs to user {folder.st_uid}"
    if stat.S_IMODE(folder.st_mode) & 0o022:
        return f"others may write to it (mode {stat.S_IMODE(folder.st_mode):04o})"
    return ""


def fault_of(folder: str, size: int) -> str:
    """Say why no file of a size can be made in a folder, which may be missing; nothing is made or removed."""
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        above = os.path.dirname(os.path.abspath(folder))
        if not os.path.isdir(above):
            return f"there is no folder {above} to make it in"
        if not os.access(above, os.W_OK | os.X_OK):
            return f"it cannot be made: {above} may not be written to"
        place = above
    except OSError as error:
        return error.strerror or str(error)
    else:
        if stat.S_ISLNK(found.st_mode):
            return "a link: name the folder itself"
        fault = _fault(found)
        if fault:
            return fault
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return "it may not be written to"
        place = folder
    room = os.statvfs(place)
    if room.f_bavail * room.f_frsize < size:
        return f"a file takes {size:,} bytes, {room.f_bavail * room.f_frsize:,} are free"
    return ""


def make(side: str, channel: str, queue_id: int, key: int, size: int, node: str = "") -> Made:
    """Make the file of a process's side, of so many bytes, for a queue as of `queues.locate`.

    `node` is the engine's role and rank, for a person.

    Raises
    ------
    OSError
        If it cannot be, or there is no room: all of it is taken at once, so that no write can fail later.
    """
    errors = []
    for folder in folders():
        try:
            with _opened(folder, make=True) as where:
                if folder.startswith(_SHARED) and not FLIGHT_FOLDER.text:
                    _leave_half(where, folder, size)
                else:
                    _clean(where)
                made = _made(folder, where, side, channel, queue_id, key, size)
                text = node.encode()[:NODE_SIZE]
                made.memory[NODE_AT : NODE_AT + len(text)] = text
                return made
        except OSError as error:
            errors.append(error)
    raise errors[0] if errors else FileNotFoundError(errno.ENOENT, "no folder for it")


def _made(folder: str, where: int, side: str, channel: str, queue_id: int, key: int, size: int) -> Made:
    stem = f"{side}-{queue_id}-{os.getpid()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for name in (stem, *(f"{stem}-{n}" for n in range(2, 100))):
        try:
            descriptor = os.open(name + SUFFIX, flags, 0o600, dir_fd=where)
        except FileExistsError:  # of another processor of this process, or one that had its number
            continue
        try:
            fcntl.lockf(
                descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # first: no process may remove an empty file
            os.posix_fallocate(descriptor, 0, size)
            memory = mmap.mmap(descriptor, size)
            os.fchmod(descriptor, 0o400)  # a slip such as ": > FILE" would end this process (SIGBUS)
        except OSError:
            os.close(descriptor)
            os.unlink(name + SUFFIX, dir_fd=where)
            raise
        fields = (ENTRY_SIZE, (size - HEAD_SIZE) // ENTRY_SIZE, os.getpid(), time.time_ns())
        texts = (f"{channel}\0{side}".encode(), __version__.encode()[:32])
        HEAD.pack_into(memory, 0, MAGIC, VERSION, *fields, time.monotonic_ns(), queue_id, key, *texts)
        memory[BOOT_AT : BOOT_AT + 16] = _boot()
        _open.add(_identity(os.fstat(descriptor)))
        return Made(os.path.join(folder, name + SUFFIX), memory, descriptor)
    raise FileExistsError(
        errno.EEXIST, "a hundred files of this process", os.path.join(folder, stem + SUFFIX)
    )


def close(descriptor: int) -> None:
    """Close a file of `make`: it is an ended process's from now on."""
    _open.discard(_identity(os.fstat(descriptor)))
    os.close(descriptor)


def _identity(file: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), file.st_dev, file.st_ino


def writer_of(descriptor: int) -> int | None:
    """The process that still writes a file; None without one, or for this process itself."""
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:  # a file system without locks
        return None
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else pid


def _leave_half(where: int, folder: str, size: int) -> None:
    """Keep half of the shared memory free: a container has little, and shares it."""
    ended = _clean(where)
    while True:
        found = os.fstatvfs(where)
        if (found.f_bavail - found.f_blocks / 2) * found.f_frsize >= size:
            return
        if not ended:
            raise OSError(errno.ENOSPC, "less than half of the shared memory would stay free", folder)
        _remove(ended.pop(), where)


def _boot() -> bytes:
    """The kernel's boot id, 16 bytes; zeros if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


@contextlib.contextmanager
def _file(name: str, where: int) -> Iterator[int]:
    """Open a file of a folder; neither a FIFO nor a terminal may keep us here."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=where)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _age(name: str, where: int, boot: bytes) -> Run:
    """The age of a file, for sorting."""
    with contextlib.suppress(OSError, struct.error), _file(name, where) as file:
        head = os.pread(file, BOOT_AT + 16, 0)
        if any(boot) and head[BOOT_AT:] == boot:
            return Run(True, HEAD.unpack_from(head)[6], name)
    return Run(False, os.stat(name, dir_fd=where, follow_symlinks=False).st_mtime_ns, name)


def _clean(where: int) -> list[str]:
    """Remove files of ended processes; return the names of those that stay, the ones to go last first."""
    now = time.monotonic_ns()
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in _ended(where):
        side, queue_id, _ = _NAME.fullmatch(run.name).groups()  # type: ignore[union-attr]
        groups.setdefault((side, queue_id), []).append(run)
    ranks = [one for runs in groups.values() for one in enumerate(_by_worth(runs, now))]
    ranks.sort(key=lambda one: (-one[0], one[1]), reverse=True)
    stay = [run.name for rank, run in ranks if rank < KEPT][:KEPT_IN_ALL]
    for _, run in ranks:
        if run.name not in stay:
            _remove(run.name, where)
    return stay


def _by_worth(runs: list[Run], now: int) -> list[Run]:
    """Ended runs of a side and queue: the first of the last series of restarts, then the newest ones.

    In a restart loop the first run is the one that served; the others say how it fails to start.
    """
    runs = sorted(runs, reverse=True)
    after, first = Run(True, now, ""), runs[0]
    for first in runs:
        if first.is_of_this_boot != after.is_of_this_boot or after.began_ns - first.began_ns > SERIES_NS:
            break
        after = first
    return [first, *(run for run in runs if run is not first)]


def _ended(where: int) -> list[Run]:
    """Files of ended processes."""
    boot, ended = _boot(), []
    for name in os.listdir(where):
        if process_of(name) is None:
            continue
        with contextlib.suppress(OSError):  # others clean up as well
            found = os.stat(name, dir_fd=where, follow_symlinks=False)
            # No process has written to an empty one yet.  To close one's own file would end the lock on it.
            if not found.st_size or _identity(found) in _open:
                continue
            with _file(name, where) as file:
                writer = writer_of(file)
            if writer is None:
                ended.append(_age(name, where, boot))
    return ended


def _remove(name: str, where: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=where)


def listed() -> list[str]:
    """Paths of all files, the newest first."""
    found, boot = [], _boot()
    for folder in folders():
        with contextlib.suppress(OSError), _opened(folder) as where:
            for name in os.listdir(where):
                if name.endswith(SUFFIX):
                    with contextlib.suppress(OSError):
                        found.append((_age(name, where, boot), os.path.join(folder, name)))
    return [path for _, path in sorted(found, reverse=True)]


def removed_files(process: int) -> list[str]:
    """Paths by which files of a running process can be read although their names were removed.

    systemd-logind removes a user's files in shared memory at the user's last logout (RemoveIPC).
    """
    found, folder = [], f"/proc/{process}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                file, removed, _ = os.readlink(path).partition(f"{SUFFIX} (deleted)")
                if removed and process_of(file + SUFFIX) == process:
                    found.append(path)
    return found


_NAME = re.compile(r"(engine|worker)-(-?[0-9]+)-([0-9]+)(?:-[0-9]+)?\.flight")


def process_of(path: str) -> int | None:
    """The process in a file's name; None if the name is not one of ours."""
    named = _NAME.fullmatch(os.path.basename(path))
    return int(named[3]) if named else None

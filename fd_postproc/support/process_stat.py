"""Facts about a process: from ``/proc``, and whether one listens."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field

_MOST_PROCESSES, _MOST_THREADS = 64, 1024  # of a family, and of each in it, that `cpu_seconds` reads
_CPU_TIMES = slice(11, 15)  # utime, stime, cutime, cstime
_STATE, _THREADS, _START = 0, 17, 19  # fields of /proc/PID/stat, from the third on


def process_stat(pid: int | str) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the name: state, parent, ... (proc_pid_stat(5), from the third).

    Raises
    ------
    OSError
        FileNotFoundError and ProcessLookupError: there is none, or ``/proc`` hides it.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name, in parentheses, may hold any bytes, spaces and parentheses too.
        return file.read(4096).rpartition(b")")[2].decode("ascii", "replace").split()


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process and its descendants, all threads included; None where it cannot be read.

    Descendants that have ended count if they were waited for.
    """
    ticks, family = 0, [pid]
    for one in family:  # which grows
        try:
            ticks += sum(map(int, process_stat(one)[_CPU_TIMES]))
            family += _children(one)[: _MOST_PROCESSES - len(family)]
        except (OSError, ValueError):  # it has ended; or /proc hides it
            if one == pid:
                return None
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    """The living children of a process; none where the kernel does not list them."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task")[:_MOST_THREADS]:  # a child is its thread's that made it
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read(4096).split())
        except OSError:
            continue
    return found


def start_of(pid: int | str) -> int:
    """Start time of a process in clock ticks since boot; OSError or IndexError if it cannot be seen."""
    return int(process_stat(pid)[_START])


@dataclass
class KnownProcess:
    """A process that was seen alive.

    A restored snapshot (CRIU) keeps the numbers of processes, and gives each a new start time.  So whoever
    finds that its own start time has changed learns the other's anew, once: the number names it as before.

    Attributes
    ----------
    pid : int
    start : int
        Its start time in clock ticks since boot, which distinguishes it from a later one with its number.
    observer : int
        The start time of the process that saw it, then.
    """

    pid: int
    start: int
    observer: int = field(compare=False)

    @classmethod
    def of(cls, pid: int) -> KnownProcess:
        """The process that has a number now; OSError or IndexError if it cannot be seen."""
        observer = start_of("self")  # first: a restore in between makes it look older than it is
        return cls(pid, start_of(pid), observer)

    def is_alive(self) -> bool:
        """Whether the process is alive; a stopped, busy or swapped-out one is, a zombie is not.

        What cannot be read counts as alive.
        """
        try:
            fields = process_stat(self.pid)
            observer = start_of("self")  # second: what was read before a restore is read again
            if observer != self.observer:
                fields = process_stat(self.pid)
                self.start, self.observer = int(fields[_START]), observer
            return int(fields[_START]) == self.start and not _is_dead(fields)
        except (FileNotFoundError, ProcessLookupError):
            return False
        except (OSError, IndexError, ValueError):
            return True


def has_ended(pid: int) -> bool:
    """Whether no living process of this PID namespace has a number; no, where that cannot be found out."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's, which exists; or no number of a process
        pass
    try:
        return _is_dead(process_stat(pid))
    except (OSError, IndexError, ValueError):  # /proc hides it
        return False


def _is_dead(fields: list[str]) -> bool:
    """Whether all threads of a process are zombies; the first thread may end before the others."""
    return fields[_STATE] in ("X", "x") or (fields[_STATE] == "Z" and int(fields[_THREADS]) <= 1)


def listens(path: str) -> bool:
    """Whether a process listens at a Unix socket; what cannot be found out counts as one that does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        return connection.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)


def process_of_thread(thread: int) -> int:
    """The process of a thread; the number itself where there is no such thread."""
    try:
        with open(f"/proc/{thread}/status", errors="replace") as file:
            return next(int(line[5:]) for line in file if line.startswith("Tgid:"))
    except (OSError, StopIteration):
        return thread


def process_name(pid: int, otherwise: str) -> str:
    """A process's short name, which any user can choose; `otherwise` where there is no such process."""
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return otherwise

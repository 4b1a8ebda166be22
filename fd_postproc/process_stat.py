"""Facts about a process from ``/proc``."""

from __future__ import annotations


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

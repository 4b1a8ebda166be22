"""Facts about a process from ``/proc``."""

from __future__ import annotations


def process_stat(pid: int | str) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the name: state, parent, ... (proc_pid_stat(5), from the third).

    Parameters
    ----------
    pid : int or str
        Or ``"self"``.

    Raises
    ------
    OSError
        FileNotFoundError and ProcessLookupError: there is none, or ``/proc`` hides it.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name, in parentheses, may hold any bytes, spaces and parentheses too.
        return file.read(4096).rpartition(b")")[2].decode("ascii", "replace").split()

"""Processes that use queues: the last user of a queue, and the directories of a process.

Everything is read from /proc.  A process of another user, or of another PID namespace, may not be visible;
what cannot be known is reported as such and never taken for dead.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from .. import queues
from ..errors import QueueError
from ..support.process_stat import has_ended, process_name


@dataclass(frozen=True)
class User:
    """The last sender or the last receiver of a queue."""

    pid: int  # 0 if none, or if the process is not in this PID namespace
    used_at: int  # Unix time, 0 if never
    # "nobody"; "alive": a process has this number, maybe a later one; "dead"; "elsewhere": another
    # namespace
    state: str
    name: str = ""  # of the process that has this number now

    @property
    def gone(self) -> bool:
        """Whether the process cannot use the queue any more."""
        return self.state == "dead"

    def __str__(self) -> str:
        if self.state == "nobody":
            return "nobody yet"
        if self.state == "elsewhere":
            return f"a process of another PID namespace, {age(self.used_at)}"
        return f"process {self.pid} ({'dead' if self.gone else self.name}), {age(self.used_at)}"


def age(when: int) -> str:
    """The time since a Unix time by the wall clock, as text; nothing is decided by it."""
    seconds = max(int(time.time()) - when, 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def last_user(pid: int, used_at: int) -> User:
    """Find the state of the process that used a queue last, by what the kernel keeps with the queue.

    Where only the number is 0, the process is outside this PID namespace.  The kernel keeps the wall clock's
    time, which may have been set since.  So a later process with the number of a dead one looks like
    it, and a live user is never taken for dead.
    """
    if not used_at:
        return User(0, 0, "nobody")
    if not pid:
        return User(0, used_at, "elsewhere")
    if has_ended(pid):
        return User(pid, used_at, "dead")
    return User(pid, used_at, "alive", process_name(pid, "?") or "?")


@dataclass(frozen=True)
class Place:
    """A file that keys are made of, as a process opens it."""

    kind: str  # "shm" for /dev/shm, "cwd" for a working directory
    device: int
    inode: int
    path: str = field(compare=False)  # for a person
    lookup: str = field(compare=False)  # path under which this process finds the same file

    def __str__(self) -> str:
        return self.path

    def key(self, queue_id: int, ftok: str) -> int | None:
        """The key of an id here; None if the file does not exist."""
        try:
            return queues.queue_key(queue_id, self.lookup, ftok)
        except (QueueError, ValueError):
            return None


def place(kind: str, lookup: str, path: str | None = None) -> Place | None:
    """A file, shown as `path`; None if it cannot be read."""
    try:
        stat = os.stat(lookup)
    except OSError:
        return None
    return Place(kind, stat.st_dev, stat.st_ino, path or lookup, lookup)


def places_of(pid: int) -> list[Place]:
    """Working directory and /dev/shm of another process."""
    try:
        cwd = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        cwd = "?"
    found = [
        place("cwd", f"/proc/{pid}/cwd", cwd),
        # a path through another process's root meets that process's mounts
        place("shm", f"/proc/{pid}/root/dev/shm", "/dev/shm"),
    ]
    return [one for one in found if one is not None]

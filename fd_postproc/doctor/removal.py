"""Removes queues that dead processes left."""

from __future__ import annotations

from dataclasses import replace

from ..errors import QueueMissing
from ..queues import inspect_queue, remove_queue
from .processes import last_user, waiting
from .snapshot import Queue, Snapshot


def leftovers(snapshot: Snapshot) -> list[Queue]:
    """Queues whose last sender and last receiver are dead.

    An unused queue is not among them: its maker cannot be known.
    """
    return [queue for queue in snapshot.queues if queue.leftover]


def remove_leftover(queue: Queue) -> str | None:
    """Remove a queue if it is still what it was, and its users still dead.

    A process that has opened the queue but never sent or received, and is not inside msgsnd or msgrcv at
    this moment, cannot be seen: stop the service first.

    Parameters
    ----------
    queue : Queue
        One of `leftovers`.

    Returns
    -------
    str or None
        Why it was not removed; None if it was.

    Raises
    ------
    QueuePermission
        If it belongs to another user.
    """
    before = queue.info
    try:
        now = inspect_queue(before.msqid)
    except QueueMissing:
        return "it is gone already"
    if replace(now, max_bytes=None) != replace(before, max_bytes=None):
        return "it was used in the meantime"
    sleepers = waiting()
    if any(one.msqid == now.msqid for one in sleepers):
        return "a process waits in it now"
    if any(one.msqid is None for one in sleepers):
        return "processes wait in queues that this user may not see; try as root"
    users = last_user(now.last_sender, now.sent_at), last_user(now.last_receiver, now.received_at)
    if not replace(queue, info=now, sender=users[0], receiver=users[1], waiting=()).leftover:
        return "a process with the pid of its last user is alive"
    remove_queue(now.msqid)
    return None

"""Drains messages of a killed run from the queue.

A queue outlives the processes that use it, and its number comes from a port, so that the next run reads what
the last one left: tokens of ended requests, in slots that belong to other requests by then.

When the token processor is constructed, this service's worker has not been started: whatever waits then is
stale.  But that is known to be the right queue only if the environment already names one of the
configuration's ports; FastDeploy's versions differ in when they set it.  Else the messages that wait at the
construction are only counted, queue by queue, and run() drops as many from the one that is this service's: a
queue gives its messages in their order.

No clock decides.  The kernel stamps a queue with the wall clock, which may be set at any time.

A last sender that cannot be seen is in another PID namespace: that of this container before it was restarted,
or that of another service which shares the IPC namespace.  The messages of the first are stale, those of the
second belong to its engine.  So the queue is watched for `WATCH_S` seconds: if anything is sent or received
meanwhile, a service is at work, and nothing is dropped.  What is left then is refused by its number where it
is a compact frame (docs/wire-protocol.md, 13.8); FastDeploy's own messages have none.
"""

from __future__ import annotations

import time
from typing import Any

import sysv_ipc

from ... import queues
from ...core.layout import Channel
from ...errors import QueueError
from ...support.environment import KEEP_STALE, QUEUE_ID, is_on
from ...support.process_stat import start_of

_LONGEST = 1 << 20  # bytes; no message of FastDeploy's is longer
WATCH_S, _LOOKS = 2.0, 20  # for which a queue of unseen users is watched, in so many looks


class StaleMessages:
    """Drain of a channel's queue, once at construction or at run().

    The ports of `cfg` are the numbers that a queue of this service can have.
    """

    def __init__(self, channel: Channel, cfg: Any, log: Any) -> None:
        self.channel, self.cfg, self.log = channel, cfg, log
        self._drained_key: int | None = None
        self._waiting: dict[int, int] = {}  # messages at the construction, by msqid

    def at_construction(self) -> int:
        """Drain all messages, if the queue is this service's; return their number."""
        if QUEUE_ID.text.strip() in own_queue_ids(self.cfg):
            return self._look(everything=True)
        try:
            self._waiting = {queue.msqid: queue.messages for queue in queues.list_queues()}
        except (QueueError, OSError) as error:
            self.log.warning(f"fd_postproc: stale messages could not be counted: {error}")
        return 0

    def at_run(self) -> int:
        """Drain messages from before the worker's start, unless `at_construction` has done it."""
        return self._look(everything=False)

    def _look(self, *, everything: bool) -> int:
        try:
            key = queues.locate(self.channel)
            if key == self._drained_key:
                return 0
            self._drained_key = key
            queue = sysv_ipc.MessageQueue(key, max_message_size=_LONGEST)
            return self._drain(queue, everything)
        except sysv_ipc.ExistentialError:
            return 0  # it does not exist yet
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self.log.warning(f"fd_postproc: looking for stale messages failed: {what}")
            return 0

    def _drain(self, queue: sysv_ipc.MessageQueue, everything: bool) -> int:
        waiting = queue.current_messages
        if not waiting:
            return 0
        sent = time.strftime("%F %T", time.localtime(queue.last_send_time))
        unseen = _is_unseen(queue)
        sender = "a process of another PID namespace" if unseen else f"process {queue.last_send_pid}"
        last = f"the last sent {sent} by {sender}"
        what = f"queue msqid:{queue.id} holds {waiting} messages, {last}"
        if is_on(KEEP_STALE):
            self.log.warning(f"fd_postproc: {what}; {KEEP_STALE} keeps them")
            return 0
        stale = waiting
        if unseen and _is_in_use(queue):
            self.log.warning(
                f"fd_postproc: {what}, and messages come or go: another service uses this queue; none is "
                "dropped; give each service its own IPC namespace or port"
            )
            return 0
        if not (everything or _is_from_an_older_process(queue)):
            stale = min(waiting, self._waiting.get(queue.id, 0))
        if not stale:
            self.log.info(f"fd_postproc: {what}; that is since this process began, so they are kept")
            return 0
        drained = 0
        while drained < stale and queues.take_raw(queue):  # none: another process has read the rest
            drained += 1
        self.log.warning(
            f"fd_postproc: {what}; {drained} of them were left from an earlier run, and were dropped "
            f"({KEEP_STALE}=1 keeps them)"
        )
        return drained


def own_queue_ids(cfg: Any) -> set[str]:
    """Queue ids that FastDeploy's versions derive from a configuration."""
    parallel = getattr(cfg, "parallel_config", cfg)
    rank = getattr(parallel, "local_data_parallel_id", 0)
    ports: list[Any] = [getattr(parallel, "local_engine_worker_queue_port", None)]
    listed = getattr(parallel, "engine_worker_queue_port", None)
    ports += listed if isinstance(listed, (list, tuple)) else [listed]
    ids = set()
    for port in ports:
        if isinstance(port, (int, str)) and str(port).isdecimal():
            ids |= {str(port), str(int(port) + (rank if isinstance(rank, int) else 0))}
    return ids


def _is_unseen(queue: sysv_ipc.MessageQueue) -> bool:
    """Whether the last sender is in another PID namespace."""
    return int(queue.last_send_pid) == 0


def _is_in_use(queue: sysv_ipc.MessageQueue) -> bool:
    """Whether anything is sent to a queue, or received from it, while it is watched."""
    before = _traffic(queue)
    for _ in range(_LOOKS):
        time.sleep(WATCH_S / _LOOKS)
        if _traffic(queue) != before:
            return True
    return False


def _traffic(queue: sysv_ipc.MessageQueue) -> tuple[int, ...]:
    """What changes with a message; the two times are compared with nothing but themselves."""
    users = queue.last_send_pid, queue.last_receive_pid
    return (queue.current_messages, queue.last_send_time, queue.last_receive_time, *users)


def _is_from_an_older_process(queue: sysv_ipc.MessageQueue) -> bool:
    """Whether the last message is from a process that runs for longer than this one: another run's worker."""
    try:
        return start_of(queue.last_send_pid) < start_of("self")
    except OSError:  # it does not exist
        return False

"""Queue identity, administration and limits.

Keys of queues; making, listing and removing queues; and what the kernel allows.  The hot path is not
here: `fd_postproc.Receiver` talks to the kernel directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import logging
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import sysv_ipc

from .core.layout import Channel
from .errors import QueueError, QueueRemoved, queue_error
from .support.checks import file_path, permission_bits, shown, whole_number
from .support.environment import QUEUE_ID
from .support.process_stat import process_of_thread

__all__ = [
    "CHANNEL_PATHS",
    "KernelLimits",
    "QueueInfo",
    "QueueRemoved",
    "inspect_queue",
    "kernel_limits",
    "key_text",
    "list_queues",
    "locate",
    "open_queue",
    "queue_id_from_env",
    "queue_key",
    "remove_queue",
]

log = logging.getLogger("fd_postproc")

CHANNEL_PATHS = {"plain": "/dev/shm", "topk": "/dev/shm", "spec": "./", "spec_topk": "/dev/shm"}
"""File whose inode is part of a channel's key, as in FastDeploy.

``spec`` uses the working directory: both processes must run in the same one.  The other three share a key.
"""

INCOMPLETE = (
    "a frame in pieces was never completed; most likely another reader of the queue has taken the rest of it "
    "('ipcs -q -p' names the last one), or its sender died or gave up"
)
"""For a log: what becomes of steps in pieces that two readers share."""

_LEAST, _GREATEST = -(1 << 31), (1 << 31) - 1


def key_text(key: int) -> str:
    """A key as ``ipcs -q`` prints it: ``0xb0101f42``, for a key that is -1341120702 as a signed number.

    Raises
    ------
    TypeError, ValueError
        If it is not a 32-bit number.
    """
    key = whole_number(key, "key", _LEAST, 0xFFFFFFFF)
    return f"{key & 0xFFFFFFFF:#010x}"


def _int32(value: int) -> int:
    """The low 32 bits of a number as C's int."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def queue_id_from_env() -> int:
    """Queue id that FastDeploy's ops would use: ``INFERENCE_MSG_QUEUE_ID``, else 1.

    Raises
    ------
    ValueError
        If the variable is not a decimal 32-bit number; an empty one counts as unset.  (FastDeploy's ops abort
        the process in both cases.)
    """
    number: int = QUEUE_ID.value
    return number


def queue_key(queue_id: int, path: str, ftok: str = "custom") -> int:
    """System V key of a queue.

    Parameters
    ----------
    queue_id : int
        FastDeploy's number of the queue.
    path : str
        An existing file; its device and inode numbers go into the key.
    ftok : {"custom", "libc"}
        ``"custom"`` is FastDeploy's own rule: 4 bits of the device, 8 of the inode, 20 of the id.
        ``"libc"`` is what FastDeploy used before: 8 of the id, 8 of the device, 16 of the inode, so that
        ids 256 apart share a queue.

    Returns
    -------
    int
        A 32-bit signed number, never 0.

    Raises
    ------
    QueueError
        If the path cannot be accessed.  (FastDeploy continues with key -1, which all such callers share.)
    TypeError
        If `queue_id` is not a whole number, or `path` not a path.
    ValueError
        If `queue_id` does not fit 32 bits, or the key would be 0, which means a private queue that no
        other process can open.
    """
    if ftok not in ("custom", "libc"):
        raise ValueError(f"ftok {shown(ftok)} is not one of 'custom', 'libc'")
    queue_id = whole_number(
        queue_id, "queue_id", _LEAST, _GREATEST, "it is normally the number of a TCP port"
    )
    path = file_path(path)
    try:
        stat = os.stat(path)
    except OSError as error:
        text = f"the key of queue {queue_id} is made of {path!r}: {error.strerror}"
        raise QueueError(error.errno, text) from None
    if ftok == "custom":
        key = (stat.st_dev & 0xF) << 28 | (stat.st_ino & 0xFF) << 20 | queue_id & 0xFFFFF
    else:
        key = (queue_id & 0xFF) << 24 | (stat.st_dev & 0xFF) << 16 | stat.st_ino & 0xFFFF
    if _int32(key) == 0:
        raise ValueError(f"queue id {queue_id} with path {path!r} gives key 0: a private queue; use another")
    return _int32(key)


def locate(
    channel: Channel,
    queue_id: int | None = None,
    *,
    key: int | None = None,
    path: str | None = None,
    ftok: str = "custom",
) -> int:
    """System V key of a channel's queue, as a signed number; an explicit `key` wins.

    `key` may be signed or as ``ipcs -q`` prints it.  See `fd_postproc.Receiver`.

    Raises
    ------
    TypeError, ValueError, QueueError
        As of `queue_key`; also if there is no such channel, or `key` is 0 or given beside an id or a path.
    """
    if not isinstance(channel, str) or channel not in CHANNEL_PATHS:
        raise ValueError(f"channel {shown(channel)} is not one of {', '.join(map(repr, CHANNEL_PATHS))}")
    if key is not None:
        if queue_id is not None or path is not None:
            raise ValueError("give a key, or a queue id and path, not both")
        key = whole_number(key, "key", _LEAST, (1 << 32) - 1, "keys have 32 bits; 'ipcs -q' shows them")
        if key == 0:
            raise ValueError("key 0 would be a private queue, which no other process can open; use another")
        return _int32(key)
    if queue_id is None:
        queue_id = queue_id_from_env()
    return queue_key(queue_id, CHANNEL_PATHS[channel] if path is None else path, ftok)


@dataclass(frozen=True)
class QueueInfo:
    """State of a queue, from the kernel.

    Attributes
    ----------
    msqid, key : int
    mode : int
        Permission bits.
    owner : int
        User id.
    messages, bytes : int
        What is waiting in it.
    max_bytes : int or None
        Most bytes it may hold (``msg_qbytes``), fixed when it was made; also the longest message that can
        ever be sent to it.  None if the queue cannot be opened.
    last_sender, last_receiver : int
        Process ids, 0 if there is none yet.
    sent_at, received_at : int
        Unix times, 0 if never.
    """

    msqid: int
    key: int
    mode: int
    owner: int
    messages: int
    bytes: int
    max_bytes: int | None
    last_sender: int
    last_receiver: int
    sent_at: int
    received_at: int


_TABLE, _LIMITS = "/proc/sysvipc/msg", "/proc/sys/kernel/"
# What msgctl(2) is asked where a sandbox hides those two, and how 64-bit Linux answers.
_IPC_STAT, _IPC_INFO, _MSG_INFO, _MSG_STAT_ANY = 2, 3, 12, 13
_MSGINFO, _MSQID_DS = struct.Struct("5i"), struct.Struct("i5I2H16x3q3Q2i")
_OF_MSQID_DS = (
    *("key", "uid", "gid", "cuid", "cgid", "perms", "seq", "-", "stime", "rtime", "ctime"),
    *("cbytes", "qnum", "qbytes", "lspid", "lrpid"),
)


def _msgctl(number: int, command: int, form: struct.Struct) -> tuple[int, tuple[int, ...]]:
    """Call msgctl(2): the number that it returns, and what it writes."""
    answer = ctypes.create_string_buffer(256)
    returned: int = ctypes.CDLL(None, use_errno=True).msgctl(number, command, answer)
    if returned < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "msgctl")
    return returned, form.unpack_from(answer)


def list_queues() -> list[QueueInfo]:
    """All queues of this IPC namespace, from ``/proc/sysvipc/msg``; where that is hidden, from the kernel.

    Raises
    ------
    OSError
        If a sandbox shows none of them.
    """
    try:
        return [_info(row) for row in _rows()]
    except OSError as error:
        why = f"{error.strerror}; queues are listed there: mount /proc, or let this process see it"
        hidden = type(error)(error.errno, why, _TABLE)
    try:
        last, (present, *_) = _msgctl(0, _MSG_INFO, _MSGINFO)
    except OSError:
        raise hidden from None
    found = []
    for place in range(last + 1):
        with contextlib.suppress(OSError):  # it is empty
            found.append(_info(_stat(place, _MSG_STAT_ANY)))
    if present and not found:  # gVisor
        raise hidden
    return found


def _rows() -> Iterator[dict[str, int]]:
    with open(_TABLE) as table:
        names = table.readline().split()
        for line in table:
            row = dict(zip(names, line.split(), strict=True))
            yield {name: int(text, 8 if name == "perms" else 10) for name, text in row.items()}


def _stat(number: int, command: int) -> dict[str, int]:
    """A row of that table, by msgctl(2): of the queue `number`, or in that place of the kernel's list."""
    msqid, values = _msgctl(number, command, _MSQID_DS)
    return {**dict(zip(_OF_MSQID_DS, values, strict=True)), "msqid": msqid or number}


def _info(row: dict[str, int]) -> QueueInfo:
    return QueueInfo(
        msqid=row["msqid"],
        key=row["key"],
        mode=row["perms"] & 0o777,
        owner=row["uid"],
        messages=row["qnum"],
        bytes=row["cbytes"],
        max_bytes=row["qbytes"] if "qbytes" in row else _max_bytes(row["key"]),
        last_sender=row["lspid"],
        last_receiver=process_of_thread(row["lrpid"]),  # a thread's number, if that waited for the message
        sent_at=row["stime"],
        received_at=row["rtime"],
    )


def _max_bytes(key: int) -> int | None:
    queue = existing(key)
    try:
        return None if queue is None else int(queue.max_size)
    except (OSError, sysv_ipc.Error):
        return None


def existing(key: int) -> sysv_ipc.MessageQueue | None:
    """The queue of a key, to be asked; None if there is none, or this user may not read it."""
    try:
        return sysv_ipc.MessageQueue(key) if key else None
    except (sysv_ipc.ExistentialError, sysv_ipc.PermissionsError):
        return None


def take_raw(queue: sysv_ipc.MessageQueue) -> tuple[bytes, int] | None:
    """Take the oldest message of a queue, without a Receiver: payload and type; None if there is none.

    gVisor refuses a buffer of more than 8192 bytes as if the queue were gone; no message is longer there.
    sysv_ipc's errors if the queue is gone, or may not be read.
    """
    try:
        try:
            payload, mtype = queue.receive(block=False)
        except sysv_ipc.ExistentialError:
            short = sysv_ipc.MessageQueue(queue.key, max_message_size=NEW_KERNEL.msgmax)
            if short.id != queue.id:
                raise
            payload, mtype = short.receive(block=False)
    except sysv_ipc.BusyError:
        return None
    return payload, mtype


def inspect_queue(msqid: int) -> QueueInfo:
    """Read the state of one queue from the kernel.

    Raises
    ------
    QueueMissing
        If there is no such queue.
    """
    msqid = whole_number(msqid, "msqid", 0, _GREATEST)
    code = errno.ENOENT
    try:
        for row in _rows():
            if row["msqid"] == msqid:
                return _info(row)
    except OSError:  # the table is hidden
        try:
            return _info(_stat(msqid, _IPC_STAT))
        except OSError as error:
            code = errno.EACCES if error.errno == errno.EACCES else code
    raise queue_error(code, f"looking at queue msqid:{msqid}")


_ACCESS = "0o400 reads, 0o200 writes, 0o600 does both"


def open_queue(key: int, *, create: bool = True, mode: int = 0o600, access: int = 0o400) -> int:
    """Open a queue, or make it.

    If an existing queue can be used by others, or belongs to another user, a warning is logged once per
    process.

    Parameters
    ----------
    key : int
    create : bool, optional
        Make the queue if there is none.
    mode : int, optional
        Permission bits of a new queue.  FastDeploy's own ops make 0666: any user of the machine can read
        and forge tokens.
    access : int, optional
        What will be done with an existing queue: 0o400 read, 0o200 write, 0o600 both.

    Returns
    -------
    int
        The queue's id, ``msqid``.

    Raises
    ------
    QueueMissing
        If there is none and `create` is false.
    QueuePermission
        If this user may not do that.
    TypeError, ValueError
        If `mode` is not 0o600, 0o660, 0o666 or another mode between them, `access` is none of the three
        numbers, or `key` is not a 32-bit number.
    """
    key = _int32(whole_number(key, "key", _LEAST, 0xFFFFFFFF))
    access = whole_number(access, "access", 0, 0o600, _ACCESS)
    if access not in (0o200, 0o400, 0o600):
        raise ValueError(f"access = {access:#o}: {_ACCESS}")
    if create:
        mode = permission_bits(mode)
    while True:
        try:
            if create:
                return int(sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREX, mode=mode).id)
        except sysv_ipc.ExistentialError:
            pass
        except OSError as error:
            raise not_made(error, f"making a queue with key {key_text(key)}") from None
        try:
            queue = sysv_ipc.MessageQueue(key, mode=access)
            _report_access(queue)
            return int(queue.id)
        except sysv_ipc.PermissionsError:
            raise queue_error(errno.EACCES, f"opening the queue with key {key_text(key)}") from None
        except OSError as error:  # a sandbox refuses msgctl
            raise queue_error(
                error.errno or errno.EIO, f"opening the queue with key {key_text(key)}"
            ) from None
        except sysv_ipc.ExistentialError:
            if not create:  # otherwise it was removed in the meantime: try again
                raise queue_error(errno.ENOENT, f"opening the queue with key {key_text(key)}") from None


def not_made(error: OSError, doing: str) -> QueueError:
    """The exception for a queue that the kernel did not make.

    Parameters
    ----------
    error : OSError
        sysv_ipc's; without an errno it means that there may be no more queues.
    doing : str
        What failed, for a person.
    """
    if error.errno:
        return queue_error(error.errno, doing)
    most = kernel_limits().msgmni
    return QueueError(
        errno.ENOSPC,
        f"{doing}: all {most:,} queues that kernel.msgmni allows are in use; remove those that no process "
        f"uses ('fd-postproc doctor' and 'ipcs -q' list them), or raise it "
        f"(sysctl -w kernel.msgmni={2 * most or 32000})",
    )


_reported: set[int] = set()


def _report_access(queue: sysv_ipc.MessageQueue) -> None:
    if queue.id in _reported:
        return
    what = []
    if queue.mode & 0o066:
        what.append(f"other users may use it (mode {queue.mode & 0o777:04o})")
    if queue.uid != os.geteuid():
        what.append(f"it belongs to user {queue.uid}, not to this process's user {os.geteuid()}")
    if what:
        _reported.add(queue.id)
        log.warning(
            "queue %d (key %s) was there before: %s", queue.id, key_text(queue.key), " and ".join(what)
        )


@functools.cache
def report_limits() -> None:
    """Log once, for who sends, that a sandbox hides how long a message may be."""
    log.warning("%s", hidden_limits())


def remove_queue(msqid: int) -> None:
    """Remove a queue and everything in it; no error if it is gone already.

    Raises
    ------
    QueuePermission
        If it belongs to another user.
    """
    msqid = whole_number(msqid, "msqid", 0, _GREATEST)
    try:
        sysv_ipc.remove_message_queue(msqid)
    except sysv_ipc.ExistentialError:
        pass
    except sysv_ipc.PermissionsError:
        whose = "only its owner, its creator and root may remove a queue, whatever its mode"
        raise queue_error(errno.EPERM, f"removing queue msqid:{msqid}", whose) from None


@dataclass(frozen=True)
class KernelLimits:
    """System V message limits of this IPC namespace, in bytes.

    Attributes
    ----------
    msgmax : int
        Longest message (``kernel.msgmax``).
    msgmnb : int
        What a new queue may hold (``kernel.msgmnb``).
    msgmni : int
        Maximum number of queues.
    """

    msgmax: int
    msgmnb: int
    msgmni: int


NEW_KERNEL = KernelLimits(8192, 16384, 32000)
"""Limits of a new kernel, or IPC namespace."""


def kernel_limits() -> KernelLimits:
    """The limits as they are now: from ``/proc/sys/kernel``, where that is hidden from the kernel itself.

    Where a sandbox hides both, those of a new kernel.
    """

    def read(name: str) -> int:
        with open(_LIMITS + name) as file:
            return int(file.read())

    try:
        return KernelLimits(read("msgmax"), read("msgmnb"), read("msgmni"))
    except OSError:
        pass
    try:
        return KernelLimits(*_msgctl(0, _IPC_INFO, _MSGINFO)[1][2:])
    except OSError:
        return NEW_KERNEL


def hidden_limits() -> str:
    """Whether a sandbox refuses to say how long a message may be, and what counts instead; empty if not."""
    try:
        _msgctl(0, _IPC_INFO, _MSGINFO)
    except OSError as error:
        if os.access(f"{_LIMITS}msgmax", os.R_OK):
            then = f"kernel.msgmax is read from {_LIMITS}msgmax"
        else:
            then = (
                f"{_LIMITS}msgmax is hidden, too: {NEW_KERNEL.msgmax:,} bytes are assumed, as of a new kernel"
            )
        return f"a sandbox refuses msgctl(IPC_INFO) ({error.strerror}); {then}"
    return ""


def peek_refused(msqid: int, index: int, limit: int) -> QueueError:
    """The error for a message that is in the queue but that the kernel does not copy."""
    return QueueError(
        errno.E2BIG,
        f"the kernel copies no message longer than kernel.msgmax = {limit} bytes, and message {index} of "
        f"queue msqid:{msqid} is longer; raise kernel.msgmax, or take it out with 'fd-postproc record'",
    )

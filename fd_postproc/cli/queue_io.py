"""Queue names on the command line, and raw messages of any type and size."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import sysv_ipc

from .. import queues
from .._core import CHANNELS
from ..core.layout import Channel
from ..errors import QueueError, QueueMissing, queue_error
from ..recording import MAX_PAYLOAD
from .terminal import CommandError, note

QUEUE_HELP = "a queue id (FastDeploy's INFERENCE_MSG_QUEUE_ID, normally a port), key:0x..., or msqid:N"


@dataclass(frozen=True)
class QueueName:
    """A queue as the user named it."""

    kind: Literal["id", "key", "msqid"]
    number: int

    def __str__(self) -> str:
        shown = queues.key_text(self.number) if self.kind == "key" else self.number
        return str(shown) if self.kind == "id" else f"{self.kind}:{shown}"


@dataclass(frozen=True)
class Target:
    """An existing queue."""

    msqid: int
    key: int


def parse_queue_name(text: str) -> QueueName | None:
    """A queue's name, or None if `text` does not look like one.

    Raises
    ------
    argparse.ArgumentTypeError
        If it begins like one, but its number is wrong.
    """
    kind, colon, number = text.partition(":")
    if not colon and text.isascii() and text.removeprefix("-").isdigit():
        if not -(1 << 31) <= int(text) < 1 << 31:
            raise argparse.ArgumentTypeError(f"queue id {text} does not fit 32 bits")
        return QueueName("id", int(text))
    if not colon or kind not in ("key", "msqid"):
        return None
    try:
        value = int(number, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{number!r} in {text!r} is not a number (0x... for hexadecimal)"
        ) from None
    if kind == "msqid":
        if not 0 <= value < 1 << 31:
            raise argparse.ArgumentTypeError(f"msqid {value} is outside 0..{(1 << 31) - 1}")
        return QueueName("msqid", value)
    if not -(1 << 31) <= value < 1 << 32 or value == 0:
        raise argparse.ArgumentTypeError(f"key {number} is not a 32-bit number other than 0")
    return QueueName("key", value - (1 << 32) if value >= 1 << 31 else value)


def queue_name(text: str) -> QueueName:
    """Parse an argument that must be a queue's name, as `parse_queue_name` does."""
    name = parse_queue_name(text)
    if name is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not {QUEUE_HELP}")
    return name


def add_queue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", choices=CHANNELS, help="what the messages are")
    parser.add_argument(
        "--path",
        help="file that a queue id's key is made of (default: /dev/shm, for channel spec the directory ./)",
    )
    parser.add_argument(
        "--ftok",
        choices=("custom", "libc"),
        default="custom",
        help="how the key is made: FastDeploy's rule, or libc's, which old builds used (default: custom)",
    )


def find(name: QueueName, channel: Channel | None, path: str | None, ftok: str) -> Target:
    """Find the user's queue, which must exist.

    Without a channel, both files that FastDeploy makes keys of are tried.
    """
    if name.kind == "msqid":
        info = queues.inspect_queue(name.number)
        return Target(info.msqid, info.key)
    if name.kind == "key":
        return Target(queues.open_queue(name.number, create=False), name.number)
    if path is not None or channel is not None:
        try:
            key = queues.locate(channel or "plain", name.number, path=path, ftok=ftok)
        except ValueError as error:  # key 0: some folders make it of id 0
            raise CommandError(str(error)) from None
        return _opened(name, key, path or queues.CHANNEL_PATHS[channel or "plain"])
    found, tried = [], []
    for one in dict.fromkeys(queues.CHANNEL_PATHS.values()):
        try:
            key = queues.queue_key(name.number, one, ftok)
        except ValueError as error:
            tried.append(str(error))
            continue
        tried.append(f"{queues.key_text(key)} (from {one})")
        with contextlib.suppress(QueueMissing):
            found.append((one, key, _opened(name, key, one).msqid))
    if not found:
        raise queue_error(errno.ENOENT, f"opening queue {name.number}, key {' or '.join(tried)}")
    one, key, msqid = found[0]
    if len(found) > 1:
        note(f"queue id {name.number} has two queues; this is that of {one}, --channel spec names that of ./")
    return Target(msqid, key)


def _opened(name: QueueName, key: int, path: str) -> Target:
    """Open a queue; an error has the name by which the user asked for it."""
    try:
        return Target(queues.open_queue(key, create=False), key)
    except QueueError as error:
        doing = f"opening queue {name}, key {queues.key_text(key)} (from {path})"
        raise queue_error(error.errno or errno.EINVAL, doing) from None


class RawQueue:
    """Raw access to a queue's messages, without waiting.

    Raises
    ------
    QueueError
        If it cannot be opened for both reading and writing, or is private (its key is 0).
    """

    def __init__(self, target: Target) -> None:
        self.msqid = target.msqid
        if target.key == 0:
            raise QueueError(
                errno.EINVAL,
                f"queue msqid:{self.msqid} is private (key 0); only the processes that made it can use it",
            )
        with _queue_errors(f"opening queue msqid:{self.msqid}"):
            self._queue = sysv_ipc.MessageQueue(target.key, mode=0o600, max_message_size=MAX_PAYLOAD)
            if self._queue.id != self.msqid:
                raise sysv_ipc.ExistentialError

    def take(self) -> tuple[bytes, int] | None:
        """Take the oldest message and its type; None if there is none."""
        with _queue_errors(f"taking a message (at most {MAX_PAYLOAD:,} bytes) from queue msqid:{self.msqid}"):
            # sysv_ipc allocates for the longest message on every call: ask first.
            return queues.take_raw(self._queue) if self._queue.current_messages else None

    def put(self, payload: bytes, mtype: int) -> bool:
        """Append a message; return False if the queue is full."""
        with _queue_errors(f"sending {len(payload):,} bytes to queue msqid:{self.msqid}"):
            try:
                self._queue.send(payload, block=False, type=mtype)
            except sysv_ipc.BusyError:
                return False
        return True


@contextlib.contextmanager
def _queue_errors(doing: str) -> Iterator[None]:
    """Convert sysv_ipc's exceptions into ours."""
    try:
        yield
    except sysv_ipc.ExistentialError:
        raise queue_error(errno.EIDRM, doing) from None
    except sysv_ipc.PermissionsError:
        raise queue_error(errno.EACCES, doing) from None
    except OSError as error:
        raise queue_error(error.errno or errno.EIO, doing) from None


@dataclass(frozen=True)
class Room:
    """Limit of one message's length."""

    msgmax: int
    max_bytes: int

    @property
    def limit(self) -> int:
        """Largest payload; the kernel refuses a longer message, or it waits forever."""
        return min(self.msgmax, self.max_bytes)

    def __str__(self) -> str:
        return f"{self.limit:,} bytes (kernel.msgmax {self.msgmax:,}; the queue holds {self.max_bytes:,})"


def room(max_bytes: int | None) -> Room:
    """The limits of a queue of `max_bytes`; None if unknown: only the kernel's own limit counts."""
    msgmax = queues.kernel_limits().msgmax
    return Room(msgmax, msgmax if max_bytes is None else max_bytes)


def user_name(uid: int) -> str:
    """A user's name, or number without one."""
    import pwd

    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
    return f"{name} (you)" if uid == os.geteuid() else name

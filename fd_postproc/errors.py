"""Exceptions, their texts, and the one map from errno to exception."""

from __future__ import annotations

import errno
import os
from typing import Any, NamedTuple

from .support.checks import shown

_CHANNELS = ("plain", "topk", "spec", "spec_topk")  # as frames number them


class MalformedMessage(ValueError):
    """Raised for an inconsistent message, of which nothing was used.

    Parameters
    ----------
    channel : str
        Channel the message was decoded as.
    field : str
        What is wrong: ``"length"``, ``"batch"``, ``"columns"``, ``"flag"``, ``"count"`` or ``"mtype"``;
        in a compact frame also ``"magic"``, ``"version"``, ``"channel"``, ``"fragment"``, ``"rows"``,
        ``"token"``, ``"checksum"``, ``"sections"``, ``"section"``, ``"masks"`` or ``"service"``; in a get
        op's tensors also ``"number"``; of a ZeroMQ message also ``"parts"``.
    value, bound : int
        The value found, and the bound that it breaks.  For ``"length"``: bytes received, and either the
        bytes that the header claims (more than were received) or the most that the layout allows.
    index : int or None
        Request index for ``"count"`` and ``"token"``, request or mask for ``"masks"``; else None.
    """

    def __init__(self, channel: str, field: str, value: int, bound: int, index: int | None = None) -> None:
        super().__init__(channel, field, value, bound, index)
        self.channel = channel
        self.field = field
        self.value = value
        self.bound = bound
        self.index = index

    def __str__(self) -> str:
        return f"malformed {self.channel} message: {self._what()}"

    def _what(self) -> str:
        value, bound = self.value, self.bound
        if self.field == "length":
            if value < bound:
                return f"it has {value} bytes, but it must have at least {bound}; was it cut short?"
            return (
                f"it has {value} bytes, more than the {bound} of this channel and layout; is another channel "
                "or another FastDeploy build writing to the queue?"
            )
        if self.field == "batch":
            hint = "is it from another channel, or from a build with another layout?"
            return f"batch {value} is outside 0..{bound}; {hint}"
        if self.field == "columns":
            return f"{value} logprob columns, at most {bound} fit the layout; is max_logprobs too high?"
        if self.field == "count":
            return f"request {self.index} claims {value} tokens, at most {bound} fit the layout"
        if self.field == "flag" and bound == 0:
            return f"flag {value} of a compact frame, expected 0: this channel has none"
        if self.field == "flag":
            return (
                f"message flag {value}; FastDeploy writes 3 (target) or {bound} (draft): this message is of "
                "another channel, so use that channel for the receiver, or a separate queue for each"
            )
        if self.field == "token":
            return f"request {self.index} has the token {value}; below {bound} it is a code, not a token"
        if self.field == "number":
            return f"the tensors hold {value}, which does not fit 32 bits (at most {bound})"
        if self.field == "mtype" and value == 1:
            return f"it is a compact frame, given as message type 1: give mtype={bound}"
        if self.field == "mtype":
            return f"message type {shown(value)}, expected {bound}; another program is writing to this queue"
        if self.field == "checksum":
            return (
                f"a compact frame says that its checksum is {value:#010x}, but it is {bound:#010x}: its "
                "bytes were changed after they were sent, by another program or by faulty memory (0: it has "
                "lost the mark of a frame with a checksum)"
            )
        if self.field == "service":
            whose = f"of service {value:08x}" if value else "without a service's number"
            return (
                f"a compact frame {whose}, and this is service {bound:08x}: two services share this queue "
                "and take each other's steps; give each its own IPC namespace or port"
            )
        if self.field == "section":
            name = value.to_bytes(8, "little", signed=True).rstrip(b"\0").decode("ascii", "backslashreplace")
            return (
                f"a compact frame has a section {name!r}, without which it cannot be understood, and which "
                "this version does not know: use the same fd_postproc on both sides"
            )
        if self.field == "sections":
            return f"the sections of a compact frame do not add up: {value} bytes or sections, of {bound}"
        if self.field == "masks":
            where = "" if self.index is None else f" at {self.index}"
            return f"the sampling masks of a compact frame do not add up: {value}{where}, expected {bound}"
        if self.field == "fragment" and bound == 1 < value:
            how = "a Receiver joins those of a queue, Recording.steps() those of a recording"
            return f"one piece of a frame split into {value}, expected {bound}: {how}"
        if self.field == "channel" and 0 <= value < len(_CHANNELS):
            return f"it is of channel {_CHANNELS[value]!r}: both sides need the same channel"
        return f"{self.field} {value} of a compact frame, expected {bound}"


class UnfitNumber(ValueError):
    """Raised for a number in a tensor that does not fit into a message; nothing was sent."""


class NotForKernel(ValueError):
    """Raised for tensors on a CUDA device that the save kernel does not take, but the CPU's packer does."""


class Refusal(NamedTuple):
    """The number in a save op's tensors that does not fit, as reported by the C loop or the kernel.

    Attributes
    ----------
    reason : str
        Which rule: the words for ``enum fdp_reason`` in ``headers/request.h``.
    element : int
        Request, or flat index of the tensor's element.
    value : int or None
        None where the kernel does not report it.
    bound : int
    """

    reason: str
    element: int
    value: int | None
    bound: int


class UnsentSave(NamedTuple):
    """A save from a CUDA device whose message the sender thread could not send.

    Attributes
    ----------
    ticket : int
        The save's number.
    kind : {"driver", "queue", "too big", "layout", "refused", "size"}
    details : CudaError, int (errno), (size, msgmax, msg_qbytes), None, Refusal, or (claimed, capacity)
        By kind.
    later : int
        Later unsent saves, which were only counted.
    """

    ticket: int
    kind: str
    details: Any
    later: int


class QueueError(OSError):
    """Raised when an operation of a System V queue failed.

    ``errno`` and ``strerror`` are set as for any OSError; the subclasses below distinguish the cases that a
    caller may want to handle.
    """


class QueueMissing(QueueError):
    """Raised when there is no queue with this key."""


class QueueRemoved(QueueError):
    """Raised when the queue was removed, perhaps during a wait on it."""


class QueuePermission(QueueError):
    """Raised when this user may not read or write the queue."""


class QueueTimeout(QueueError):
    """Raised when the queue stayed full for the whole timeout."""


class MessageTooBig(QueueError):
    """A message is longer than the kernel or the queue allows.

    Attributes
    ----------
    size, limit : int or None
        Bytes of the message, and the bytes that would have fitted; None where only the kernel knows.
    """

    size: int | None = None
    limit: int | None = None


class CudaError(RuntimeError):
    """The CUDA driver cannot be used, or a call of it failed.

    Attributes
    ----------
    code : int or None
        The driver's number of the error (``CUresult``); None if the driver was not asked.
    """

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class ReceiverClosed(ValueError):
    """Raised by a Receiver that is closed, or was closed during a waiting call."""


class SenderClosed(ValueError):
    """Raised by a Sender that is closed."""


class ReceiverBusy(RuntimeError):
    """A Receiver was used by two threads at a time (or from a signal handler during its own wait).

    Also raised by a `Receiver.close` that could not wake a waiting thread.
    """


class SenderBusy(RuntimeError):
    """A Sender was used by two threads at a time (or from a signal handler during its own wait)."""


_KINDS: dict[int, type[QueueError]] = {
    errno.ENOENT: QueueMissing,
    errno.EIDRM: QueueRemoved,
    errno.EINVAL: QueueRemoved,  # the id was removed before the call began
    errno.EACCES: QueuePermission,
    errno.EPERM: QueuePermission,
    errno.E2BIG: MessageTooBig,
    errno.EAGAIN: QueueTimeout,
}

_REMEDIES: dict[type[QueueError], str] = {
    QueueMissing: "start the other side first, or check the queue id, path and ftok rule; a container has "
    "queues of its own: look in it",
    QueueRemoved: "it was removed (remove() of its receiver, another program, ipcrm): open it again",
    QueuePermission: "run both sides as the same user, or create the queue with mode 0666; a sandbox has to "
    "allow msgget, msgsnd, msgrcv and msgctl",
    MessageTooBig: "raise kernel.msgmax and kernel.msgmnb, then remove the queue and create it again",
    QueueTimeout: "the other side is not reading",
}


def queue_error(code: int, doing: str, remedy: str | None = None) -> QueueError:
    """Build the exception for an errno value of a queue call.

    Parameters
    ----------
    code : int
        errno, positive.
    doing : str
        What failed, for a person: "receiving from queue 5 (topk, key 0x...)".
    remedy : str, optional
        What to do about it; default: what helps with most errors of this kind.
    """
    kind = _KINDS.get(code, QueueError)
    remedy = _REMEDIES.get(kind) if remedy is None else remedy
    text = f"{doing}: {os.strerror(code)}" + (f"; {remedy}" if remedy else "")
    return kind(code, text)


def too_big(doing: str, dialect: str, size: int, msgmax: int, msg_qbytes: int) -> MessageTooBig:
    """The exception for a message that is longer than the kernel or the queue allows.

    Parameters
    ----------
    doing : str
        What failed, for a person.
    dialect : str
        The message's dialect.
    size : int
        The message's length in bytes.
    msgmax, msg_qbytes : int
        ``kernel.msgmax``, and what the queue may hold.
    """
    hint = "" if dialect == "compact" else ", or let both ends run fd_postproc and send dialect 'compact'"
    which = (
        f"kernel.msgmax = {msgmax}"
        if msgmax <= msg_qbytes
        else f"what this queue may hold (msg_qbytes = {msg_qbytes}, fixed when it was made)"
    )
    error = MessageTooBig(
        errno.E2BIG,
        f"{doing}: a {dialect} message of {size} bytes is more than {which}; raise kernel.msgmax and "
        f"kernel.msgmnb to {size} or more (sysctl -w, or docker run --sysctl) and make a new queue{hint}",
    )
    error.size = size
    error.limit = min(msgmax, msg_qbytes)
    return error

"""Checks of a queue: backlog, users, size, owner, first message."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from .. import _core
from .._core import CHANNELS, decode, payload_size
from ..core.layout import Channel, Layout
from ..errors import MalformedMessage, QueueError
from ..queues import KernelLimits, QueueInfo, key_text
from ..support.checks import plural
from .findings import Finding, Scope, worst
from .snapshot import Queue, Snapshot, signal_id

# Half full: the reader has been slower than the writer for a while.
_MUCH = 0.5

# Other queues that are listed by key; the rest is a number.
_LISTED = 5


def check_queues(snapshot: Snapshot, scope: Scope) -> list[Finding]:
    """Return all findings about the queues in scope, and one about the others."""
    found = []
    for queue in snapshot.queues:
        troubles = [
            *([_leftover(queue)] if queue.leftover else _traffic(queue)),
            *_size(queue, snapshot.limits, scope),
            *_first_message(queue, snapshot.limits, scope),
            *_access(queue),
        ]
        found.append(_state(queue, "ok" if worst(troubles) in ("ok", "info") else "info"))
        found.extend(troubles)
    if not snapshot.queues:
        what = "that was named" if scope.named else "that looks like FastDeploy's"
        found.append(Finding("info", "queues", "queue-none", "queues", f"no queue {what}"))
    found += [_signals(info) for info in snapshot.signals]
    if snapshot.others:
        found.append(_others(snapshot))
    return found


def _finding(
    queue: Queue, severity: str, code: str, seen: str, remedy: tuple[str, ...] = (), **data: object
) -> Finding:
    subject = queue.subject if code == "queue" else queue.short
    return Finding(severity, "queues", code, subject, seen, remedy, queue.info.msqid, data)


def _state(queue: Queue, severity: str) -> Finding:
    info = queue.info
    room = f" of {info.max_bytes:,}" if info.max_bytes else ""
    if info.messages:
        share = f" ({_share(queue):.0%})" if info.max_bytes else ""
        seen = f"{plural(info.messages, 'message')}, {info.bytes:,}{room} bytes{share}"
    else:
        seen = f"empty, 0{room} bytes"
    seen += f"; sender: {queue.sender}; receiver: {queue.receiver}"
    return _finding(
        queue,
        severity,
        "queue",
        seen,
        key=key_text(info.key),
        ids=[one.queue_id for one in queue.identities],
        messages=info.messages,
        bytes=info.bytes,
        max_bytes=info.max_bytes,
        mode=f"{info.mode:04o}",
        owner=info.owner,
        last_sender=queue.sender.pid,
        sender_state=queue.sender.state,
        sent_at=info.sent_at,
        last_receiver=queue.receiver.pid,
        receiver_state=queue.receiver.state,
        received_at=info.received_at,
    )


def _share(queue: Queue) -> float:
    return queue.info.bytes / queue.info.max_bytes if queue.info.max_bytes else 0.0


def _leftover(queue: Queue) -> Finding:
    info = queue.info
    seen = "left by processes that are dead"
    if info.messages:
        seen += f"; the next reader gets {plural(info.messages, 'message')} of theirs first"
    remedy = (f"with the service stopped: ipcrm -q {info.msqid}",)
    return _finding(queue, "warning", "queue-leftover", seen, remedy, messages=info.messages)


def _traffic(queue: Queue) -> list[Finding]:
    """Check for a full queue, one that fills up, and a missing side."""
    info, found = queue.info, []
    reader = f"last reader: {queue.receiver}"
    full = _full(queue)
    overrun = full and queue.flooded and queue.being_read  # no matter how fast the reader is
    if full and not overrun:
        seen = f"full, {info.bytes:,} of {info.max_bytes or 0:,} bytes: the next sender waits; {reader}"
        remedy = (
            "start or unblock the reader; if the service is stopped, remove the queue: "
            f"ipcrm -q {info.msqid}",
        )
        found.append(_finding(queue, "error", "queue-full", seen, remedy, bytes=info.bytes))
    elif _share(queue) >= _MUCH and not overrun:
        seen = f"{_share(queue):.0%} full: the reader does not keep up; {reader}"
        found.append(
            _finding(
                queue, "warning", "queue-backlog", seen, ("look at the engine's load",), bytes=info.bytes
            )
        )
    if queue.flooded:
        seen = (
            f"flooded: {info.messages:,} messages of {info.bytes / info.messages:.0f} bytes on average wait"
            f"{', however fast the reader is' if overrun else ''}; the last to write was {queue.sender}"
        )
        steps = (
            "check that process, and end it if it is not the worker; keep others out: mode 0600, an IPC "
            "namespace of its own",
            f"how many per second: fd-postproc record msqid:{info.msqid} FILE --seconds 2 (it takes them)",
        )
        severity = "error" if overrun else "warning"
        found.append(
            _finding(queue, severity, "queue-flood", seen, steps, messages=info.messages, bytes=info.bytes)
        )
    if queue.receiver.gone:
        seen = f"its reader is dead ({queue.receiver}), its sender is not"
        remedy = ("restart the engine; if it was restarted already, compare both sides' id and path",)
        found.append(_finding(queue, "warning", "engine", seen, remedy))
    if queue.sender.gone:
        seen = f"its sender is dead ({queue.sender}); {reader}"
        remedy = ("if the worker was not restarted, the engine waits forever: restart the service",)
        found.append(_finding(queue, "warning", "worker", seen, remedy))
    return found


def _full(queue: Queue) -> bool:
    """Whether one more message like the waiting ones does not fit."""
    info = queue.info
    if not info.messages or info.max_bytes is None:
        return False
    return info.bytes + info.bytes // info.messages > info.max_bytes


def _size(queue: Queue, limits: KernelLimits, scope: Scope) -> list[Finding]:
    """Check for a queue made before kernel.msgmnb was raised."""
    most = queue.info.max_bytes
    if most is None:
        return []
    room = min(limits.msgmax, limits.msgmnb)
    channels = queue.channels(scope)
    small = [channel for channel in channels if most < payload_size(channel, scope.layout) <= room]
    if not small:
        return []
    needed = max(payload_size(channel, scope.layout) for channel in small)
    settled = len(channels) == 1
    seen = (
        f"holds {most:,} bytes, made before kernel.msgmnb was raised to {limits.msgmnb:,}; "
        f"{'' if settled else 'if it carries ' + ' or '.join(small) + ', '}FastDeploy's "
        f"messages of {needed:,} bytes wait forever"
    )
    remedy = (
        "stop the service",
        f"ipcrm -q {queue.info.msqid}",
        "start the service: the new queue has today's size",
    )
    severity = "error" if settled else "warning"
    return [_finding(queue, severity, "queue-too-small", seen, remedy, max_bytes=most, needed=needed)]


def _first_message(queue: Queue, limits: KernelLimits, scope: Scope) -> list[Finding]:
    """Check for a message that the queue's reader cannot decode."""
    info = queue.info
    if not info.messages:
        return []
    channels = queue.channels(scope)
    longest = max(payload_size(channel, scope.layout) for channel in channels)
    remedy = (
        f"save it for inspection: fd-postproc record msqid:{info.msqid} FILE --count 1",
        "another channel, layout or program writes here: give each service an id of its own",
    )
    try:
        found = _core.peek(info.msqid)
    except QueueError as error:
        if error.errno == errno.E2BIG:
            seen = f"its first message is longer than kernel.msgmax = {limits.msgmax:,} is now"
            if limits.msgmax >= longest:
                seen += f", and than the {longest:,} bytes of {' or '.join(channels)}"
                return [_finding(queue, "error", "message-too-long", seen, remedy)]
            return [_finding(queue, "info", "message-not-seen", seen, ("raise kernel.msgmax to see it",))]
        if error.errno == errno.ENOSYS:
            seen = "this kernel cannot copy a message (no CONFIG_CHECKPOINT_RESTORE): not checked"
            return [_finding(queue, "info", "message-not-seen", seen)]
        return [_finding(queue, "info", "message-not-seen", f"its first message was not seen: {error}")]
    if found is None:  # taken in the meantime
        return []
    mtype, payload = found
    as_which = {channel: _fault(payload, channel, mtype, scope.layout) for channel in CHANNELS}
    if any(as_which[channel] is None for channel in channels):
        return []
    others = [channel for channel, fault in as_which.items() if fault is None]
    code = "message-too-long" if len(payload) > longest else "message-malformed"
    why = str(as_which[channels[0]]) if len(channels) == 1 else f"it is valid under none of {_list(channels)}"
    seen = f"its first message ({len(payload):,} bytes, type {mtype}) is stale or foreign: {why}"
    if others:
        seen += f"; it is valid as {_list(others)}"
    data = {"size": len(payload), "mtype": mtype, "adds_up_as": others}
    return [_finding(queue, "error", code, seen, remedy, **data)]


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def _fault(payload: bytes, channel: Channel, mtype: int, layout: Layout) -> MalformedMessage | None:
    try:
        decode(payload, channel, mtype=mtype, layout=layout)
    except MalformedMessage as error:
        # one part of a frame, and no fault is known of it
        return None if error.field == "fragment" else error
    return None


def _access(queue: Queue) -> list[Finding]:
    info, found = queue.info, []
    me = os.geteuid()
    if info.owner != me:
        seen = f"belongs to user {info.owner}; this is user {me}"
        if me != 0 and not info.mode & 0o006:
            seen += ", who may not use it"
        remedy = ("run both sides as one user",)
        found.append(_finding(queue, "warning", "queue-owner", seen, remedy, owner=info.owner))
    if info.mode & 0o066:
        seen = f"mode {info.mode:04o}: other users of this machine can read the tokens, and forge some"
        remedy = (
            "FastDeploy's ops make such queues; the first process decides: start fd_postproc's side first",
        )
        found.append(_finding(queue, "info", "queue-mode", seen, remedy, mode=f"{info.mode:04o}"))
    return found


def _signals(info: QueueInfo) -> Finding:
    number = signal_id(info.key)
    seen = (
        f"FastDeploy's signals of a prefill node's cache, for its messager; "
        f"{plural(info.messages, 'message')}, mode {info.mode:04o}; no token is in it"
    )
    subject = f"queue {info.msqid} (id {number}, /opt/, key {key_text(info.key)})"
    data = {"id": number, "key": key_text(info.key), "messages": info.messages, "mode": f"{info.mode:04o}"}
    return Finding("info", "queues", "queue-signals", subject, seen, (), info.msqid, data)


def _others(snapshot: Snapshot) -> Finding:
    keys = ", ".join(f"{one.msqid} (key {key_text(one.key)})" for one in snapshot.others[:_LISTED])
    more = f" and {len(snapshot.others) - _LISTED:,} more" if len(snapshot.others) > _LISTED else ""
    seen = f"{plural(len(snapshot.others), 'queue')} of unknown programs, not checked: {keys}{more}"
    remedy = (
        "if one is FastDeploy's: --queue-id key:0x... or msqid:N; if a service was started in another "
        "directory: --path DIRECTORY",
    )
    data = {"queues": [{"msqid": one.msqid, "key": key_text(one.key)} for one in snapshot.others]}
    return Finding("info", "queues", "queue-unknown", "others", seen, remedy, data=data)

"""What went wrong, by a flight recorder's file: each kind of fault one function, which names it.

A finding's code never changes, its text may.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from .._core import CHANNELS, payload_size
from ..errors import MalformedMessage
from ..flight.codes import Kind
from ..flight.reading import Event, Queue
from .pace import bursts, slower
from .picture import Picture

SILENT = 5.0  # seconds without a step, at least, before a worker is called silent
USUAL = 20  # times its usual pace, likewise
STUCK = 5.0  # seconds that a step may be in hand
FROZEN = 4.0  # seconds that an engine, which looks at the queue each second, may say nothing
ERROR, WARNING, INFO = "error", "warning", "info"
_OTHER_BUILD = ("magic", "version", "mtype", "columns", "flag", "channel")


class Finding(NamedTuple):
    """Something that went wrong.

    Attributes
    ----------
    severity : {"error", "warning", "info"}
    code : str
    at : float
        Monotonic seconds.
    text : str
        Without the time.
    """

    severity: str
    code: str
    at: float
    text: str


def findings(picture: Picture) -> list[Finding]:
    """All that can be said, in the order in which it happened."""
    found = [finding for look in _LOOKS for finding in look(picture)]
    return sorted(found, key=lambda one: one.at)


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _process(p: Picture) -> Iterator[Finding]:
    """Is the process that wrote this alive, and does it work?"""
    flight = p.flight
    busy = flight.busy_since
    if p.is_alive:
        if busy is not None and p.now - busy > STUCK:
            what = "a step has been in hand" if flight.side == "engine" else "a message has waited to be sent"
            hint = (
                "the token thread is stuck in it"
                if flight.side == "engine"
                else "the queue is full, or the save op is stuck"
            )
            yield Finding(ERROR, "stuck", busy, f"{what} for {_span(p.now - busy)}: {hint}")
        elif p.queues and p.now - p.last > FROZEN and flight.side == "engine":
            text = (
                f"process {flight.pid} lives and has recorded nothing for {_span(p.now - p.last)}, not even "
                "how the queue is: it is stopped (SIGSTOP, a debugger), or one of its threads holds the GIL"
            )
            yield Finding(ERROR, "frozen", p.last, text)
        return
    if p.of(Kind.CLOSED):
        return
    text = (
        f"process {flight.pid} ended without a word: it was killed (SIGKILL, for lack of memory?), or crashed"
    )
    if busy is not None:
        text += ", in the middle of a " + ("step" if flight.side == "engine" else "message")
    yield Finding(ERROR, "killed", p.last, text)


def _worker(p: Picture) -> Iterator[Finding]:
    """The process that sends: gone, stopped, silent, another one."""
    before: Queue | None = None
    for look in _looks_of_this_run(p):
        if before is not None and before.last_sender and look.last_sender not in (0, before.last_sender):
            gone = "; the former is gone" if not before.state else ""
            text = f"process {look.last_sender} sends now, not {before.last_sender} any more{gone}"
            yield Finding(WARNING, "other-sender", look.at, text)
        if (before is None or before.state) and not look.state and look.last_sender and look.running:
            who = f"process {look.last_sender}, which sent the last step,"
            text = f"{who} is gone while {look.running} requests run"
            yield Finding(ERROR, "worker-dead", look.at, text)
        elif look.state == "Z" and look.running and (before is None or before.state != "Z"):
            yield Finding(
                ERROR, "worker-dead", look.at,
                f"process {look.last_sender}, which sent the last step, has died (nobody has waited "
                "for it) while "
                f"{look.running} requests run",
            )  # fmt: skip
        elif look.state in ("T", "t") and look.running and (before is None or before.state != look.state):
            text = f"process {look.last_sender}, which sends, is stopped (SIGSTOP, or a debugger)"
            yield Finding(ERROR, "worker-stopped", look.at, text)
        before = look
    yield from _silence(p)


def _looks_of_this_run(p: Picture) -> list[Queue]:
    """Looks after something has come: until then the kernel tells who used the queue in an earlier run."""
    came = [one.at for kind in (Kind.REFUSED, Kind.OPEN, Kind.INCOMPLETE) for one in p.of(kind)]
    came += [step.at for step in p.steps[:1]]
    if p.flight.overwritten:
        return p.queues
    return [look for look in p.queues if came and look.at >= min(came)]


def _silence(p: Picture) -> Iterator[Finding]:
    """Does the worker live and say nothing, at the end?"""
    if not p.queues or p.flight.busy_since is not None:
        return
    look = p.queues[-1]
    came = [*(step.at for step in p.steps[-1:]), *(one.at for one in p.of(Kind.REFUSED))]
    since = max(came, default=p.flight.began)
    enough = max(SILENT, USUAL * (p.usual_gap or 0.0))
    if not look.running or look.messages or p.end - since < enough or p.now - look.at > FROZEN:
        return  # or nobody has looked
    if look.last_sender == 0 or look not in _looks_of_this_run(p):
        since_when = "the queue was made" if look.last_sender == 0 else f"process {p.flight.pid} began"
        text = f"nothing has come since {since_when}, while {look.running} requests run"
        yield Finding(ERROR, "worker-silent", since, text)
        yield from _too_long(p, look, since)
        return
    if not look.state or look.state in "ZTt":
        return
    last = [one for one in p.queues if one.at >= since and one.last_sender == look.last_sender]
    works = len(last) > 1 and last[-1].ticks > last[0].ticks
    doing = "it uses CPU time: a long prefill, perhaps" if works else "it uses no CPU time"
    usual = f" (usually {_span(p.usual_gap)} between steps)" if p.usual_gap else ""
    text = (
        f"nothing has come from process {look.last_sender} for {_span(p.end - since)}{usual} while "
        f"{look.running} "
        f"requests run; it is there, and {doing}"
    )
    yield Finding(WARNING if works else ERROR, "worker-silent", since, text)
    yield from _too_long(p, look, since)


def _too_long(p: Picture, look: Queue, since: float) -> Iterator[Finding]:
    """May the worker's messages be refused by its kernel?"""
    full = _full_size(p)
    if p.steps and p.steps[-1].frame is not None:
        return  # frames are as short as they have to be
    if 0 < min(look.msgmax, look.max_bytes) < full:
        text = (
            f"messages may have {min(look.msgmax, look.max_bytes):,} bytes (kernel.msgmax, kernel.msgmnb), "
            f"FastDeploy's own op sends {full:,}: the kernel refuses each, and that op goes on without a word"
        )
        yield Finding(ERROR, "limits-low", since, text)


def _full_size(p: Picture) -> int:
    """Bytes of FastDeploy's own messages, as most builds have them."""
    return payload_size(p.flight.channel) if p.flight.channel in CHANNELS else 0


def _pace(p: Picture) -> Iterator[Finding]:
    """Steps that come ever later, or all at once."""
    slope = slower(p.steps)
    if slope is not None:
        since, then, now = slope
        text = (
            f"the worker becomes slower and slower: a step every {_span(now)}, at first every {_span(then)}"
        )
        yield Finding(WARNING, "slower", since, text)
    for at, count, within, usual in bursts(p.steps):
        text = f"some {count:,} steps came at once, within {_span(within)} (usually {_span(usual)} apart)"
        yield Finding(INFO, "burst", at, text)


def _senders(p: Picture) -> Iterator[Finding]:
    """Frames of another sender: a worker that began anew, or two at a time."""
    frames = [step for step in p.steps if step.frame is not None]
    changes = [step for before, step in pairwise(frames) if step.sender != before.sender]
    if changes and len({step.sender for step in changes} | {step.sender for step in frames[:1]}) <= len(
        changes
    ):
        text = "frames of two senders come in turn: two processes, or two ops, send steps to this queue"
        yield Finding(ERROR, "two-senders", changes[0].at, text)
        return
    for step in changes:
        text = f"frames come from another sender now, numbered from {step.frame}: the worker began anew"
        yield Finding(WARNING, "restarted", step.at, text)


def _queue(p: Picture) -> Iterator[Finding]:
    """The queue itself: removed, full, lowered, read by others."""
    for event in p.of(Kind.QUEUE_REMOVED):
        yield Finding(
            ERROR, "queue-removed", event.at, f"queue {event.numbers[0]} was removed; messages in it are lost"
        )
    for event in p.of(Kind.QUEUE_ERROR):
        text = f"the queue cannot be used: {_errno(event.numbers[0])} ({event.text})"
        yield Finding(ERROR, "queue-error", event.at, text)
    was_full, told, own = False, False, _looks_of_this_run(p)
    for before, look in pairwise([None, *p.queues]):
        if look is None or look.error:
            continue
        full = look.messages > 0 and 0 < look.max_bytes < look.bytes + _typical(p)
        if full and not was_full:
            text = (
                f"the queue was full: {look.messages} messages, {look.bytes:,} of {look.max_bytes:,} "
                "bytes; whoever "
                "sends waits until the engine reads"
            )
            yield Finding(ERROR, "queue-full", look.at, text)
        was_full = full
        if before is not None and not before.error:
            for name, old, new in (
                ("kernel.msgmax", before.msgmax, look.msgmax),
                ("the queue's size (msg_qbytes)", before.max_bytes, look.max_bytes),
            ):
                if 0 < new < old:
                    text = f"{name} was lowered from {old:,} to {new:,} bytes"
                    yield Finding(ERROR, "limits-lowered", look.at, text)
        if look.reader_is_foreign and not told and look in own:
            told = True
            text = (
                f"process {look.last_receiver} reads this queue, too: each message reaches one of the "
                "two, so that "
                "requests lose steps"
            )
            yield Finding(ERROR, "two-readers", look.at, text)


def _typical(p: Picture) -> int:
    return max((step.length for step in p.steps[-50:]), default=0)


def _errno(code: int) -> str:
    return os.strerror(code) if 0 < code < 4096 else f"error {code}"


def _frames(p: Picture) -> Iterator[Finding]:
    """Frames by their senders' numbers."""
    for kind, code, text in (
        (
            Kind.INCOMPLETE,
            "incomplete",
            "frames never became whole: their sender died or gave up in the middle",
        ),
        (Kind.MISSING, "frames-missing", "frames did not come: refused, incomplete, or read by others"),
        (
            Kind.DOUBLED,
            "frames-doubled",
            "frames came whose numbers had come before: somebody repeats messages",
        ),
        (Kind.REORDERED, "frames-reordered", "frames came after later ones: somebody puts messages back"),
    ):
        found = p.of(kind)
        if found:
            number = sum(event.numbers[0] for event in found)
            frames = text if number != 1 else text.replace("frames", "frame", 1)
            yield Finding(ERROR, code, found[0].at, f"{number:,} {frames}")
    for event in p.of(Kind.OPEN):
        frames = f"{event.numbers[0]:,} frame" + "s" * (event.numbers[0] != 1)
        text = f"{frames} came in part: whoever sent so far died, or hangs, in the middle of one"
        yield Finding(ERROR, "incomplete", event.at, text)


def _grouped(p: Picture, kind: Kind) -> Iterator[tuple[Event, int]]:
    """The last event of each text, and how many there were."""
    found = p.of(kind)
    counts = Counter(event.text for event in found)
    for event in {event.text: event for event in found}.values():
        yield event, counts[event.text]


def _messages(p: Picture) -> Iterator[Finding]:
    """Messages that were refused or stale."""
    for event, count in _grouped(p, Kind.REFUSED):
        value, bound, index = event.numbers[:3]
        fault = MalformedMessage(p.flight.channel, event.text, value, bound, None if index < 0 else index)
        times = f"{count:,} messages were refused, the last" if count > 1 else "a message was refused"
        longer = event.text == "length" and value > bound
        code = "other-build" if event.text in _OTHER_BUILD or longer else "malformed"
        yield Finding(ERROR, code, event.at, f"{times}: {fault}")
    for event in p.of(Kind.STALE):
        text = f"{event.numbers[0]:,} messages of an earlier run lay in the queue, and were dropped"
        yield Finding(INFO, "stale", event.at, text)


def _errors(p: Picture) -> Iterator[Finding]:
    """What raised."""
    for kind, code, what in (
        (Kind.LOST, "lost-step", "a step was lost"),
        (Kind.UNDELIVERED, "undelivered", "results of a step were not delivered"),
        (Kind.FAILED, "failed-request", "a request was ended with an error"),
    ):
        for event, count in _grouped(p, kind):
            again = f" ({count:,} times)" if count > 1 else ""
            out = "no-memory" if event.text.startswith("MemoryError") else code
            yield Finding(ERROR, out, event.at, f"{what}: {event.text}{again}")
    for event in p.of(Kind.STOOD_ASIDE):
        yield Finding(WARNING, "stood-aside", event.at, event.text or "it stood aside")
    for event, count in _grouped(p, Kind.SEND_FAILED):
        again = f" ({count:,} times)" if count > 1 else ""
        yield Finding(ERROR, "send-failed", event.at, f"a message was not sent: {event.text}{again}")


def _sends(p: Picture) -> Iterator[Finding]:
    """Messages that took long to send."""
    slow = [event for event in p.of(Kind.SENT) if event.numbers[1] > 1e9]
    if slow:
        longest = max(event.numbers[1] for event in slow) / 1e9
        text = (
            f"{len(slow):,} messages took longer than a second to send, the longest {_span(longest)}: "
            "the queue was "
            "full, because the engine did not read"
        )
        yield Finding(ERROR, "slow-sends", slow[0].at, text)


def _requests(p: Picture) -> Iterator[Finding]:
    """Requests without an end, or without a beginning."""
    left = p.of(Kind.LEFT)
    if left:
        text = (
            f"{len(left):,} requests left their slots without an end that the token processor saw (aborted?)"
        )
        yield Finding(INFO, "left", left[0].at, text)
    waiting = [
        event for event in p.seats().values() if event.kind == Kind.SEATED and p.end - event.at > SILENT
    ]
    begun = {event.numbers[0] for event in p.of(Kind.BEGAN)}  # one that was preempted has had some
    waiting = [event for event in waiting if event.numbers[0] not in begun]
    if waiting:
        first = min(waiting, key=lambda event: event.at)
        text = (
            f"{len(waiting):,} requests are in a slot and have had no token, the first (slot "
            f"{first.slot}) for "
            f"{_span(p.end - first.at)}"
        )
        yield Finding(WARNING, "no-first-token", first.at, text)


def _health(p: Picture) -> Iterator[Finding]:
    """What `healthy` said at the time."""
    again = p.of(Kind.HEALTHY)
    for event in p.of(Kind.UNHEALTHY):
        end = next((one.at for one in again if one.at > event.at), None)
        if event.text.startswith("thread:"):
            text = "the token thread has ended: no step will be processed any more"
            yield Finding(ERROR, "thread-dead", event.at, text)
            continue
        lasted = "" if end is None else f"; healthy again after {_span(end - event.at)}"
        yield Finding(
            WARNING, "unhealthy", event.at, f"the plug-in called itself unhealthy: {event.text}{lasted}"
        )


def _file(p: Picture) -> Iterator[Finding]:
    if p.flight.damaged:
        text = f"{p.flight.damaged:,} entries of the file are damaged: somebody else has written to it"
        yield Finding(WARNING, "damaged", p.last, text)


_LOOKS: tuple[Callable[[Picture], Iterator[Finding]], ...] = (
    _process, _worker, _pace, _senders, _queue, _frames, _messages, _errors, _sends, _requests, _health,
    _file,
)  # fmt: skip

CODES = (
    "stuck", "killed", "frozen", "thread-dead", "other-sender", "two-senders", "restarted", "slower", "burst",
    "limits-low", "worker-dead", "worker-stopped", "worker-silent", "queue-removed",
    "queue-error", "queue-full", "limits-lowered", "two-readers", "frames-missing", "frames-doubled",
    "frames-reordered", "other-build", "malformed", "incomplete", "stale", "lost-step", "undelivered",
    "failed-request", "no-memory", "stood-aside", "send-failed", "slow-sends", "left", "no-first-token",
    "unhealthy", "damaged",
)  # fmt: skip
"""All that there are."""


def as_dict(finding: Finding, picture: Picture) -> dict[str, Any]:
    """For JSON."""
    return {
        "severity": finding.severity, "code": finding.code, "seconds_ago": round(picture.end - finding.at, 6),
        "time": picture.clock(finding.at), "text": finding.text,
    }  # fmt: skip

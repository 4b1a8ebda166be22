"""Findings about the queue and its messages, by the kernel's and the bounds gate's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ..errors import MalformedMessage
from ..faults import REFUSED_S
from ..flight.codes import Kind
from .engine_side import grouped
from .finding import ERROR, INFO, Finding, errno_text
from .timeline import Picture
from .worker_side import refused_since

_OTHER_BUILD = ("magic", "version", "mtype", "columns", "flag", "channel")


def _queue(p: Picture) -> Iterator[Finding]:
    """Findings about the queue: removed, full, lowered, read by others."""
    for event in p.of(Kind.QUEUE_REMOVED):
        text = f"queue {event.numbers[0]} was removed; messages in it are lost"
        yield Finding(ERROR, "removed", event.at, text)
    for event in p.of(Kind.QUEUE_ERROR):
        text = f"the queue cannot be used: {errno_text(event.numbers[0])} ({event.text})"
        yield Finding(ERROR, "queue", event.at, text)
    was_full, told, own = False, False, p.looks_of_this_run
    longest = max((step.length for step in p.steps[-50:]), default=0)
    for before, look in pairwise([None, *p.queues]):
        if look is None or look.error:
            continue
        full = look.messages > 0 and 0 < look.max_bytes < look.bytes + longest
        if full and not was_full:
            text = (
                f"the queue was full: {look.messages} messages, {look.bytes:,} of {look.max_bytes:,} "
                "bytes; the "
                "sender waits until the engine reads"
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
                "two, so "
                "that requests lose steps"
            )
            yield Finding(ERROR, "two-readers", look.at, text)


def _frames(p: Picture) -> Iterator[Finding]:
    """Findings about frames, by their senders' numbers."""
    for kind, code, text in (
        (Kind.INCOMPLETE, "incomplete",
        "frames never became whole: their sender died or gave up in the middle"),
        (Kind.MISSING, "frames-missing", "frames did not come: refused, incomplete, or read by others"),
        (
            Kind.DOUBLED, "frames-doubled",
            "frames came whose numbers had come before: another program repeats messages",
        ),
        (
            Kind.REORDERED, "frames-reordered",
            "frames came after later ones: another program puts messages back",
        ),
    ):  # fmt: skip
        found = p.of(kind)
        if found:
            number = sum(event.numbers[0] for event in found)
            frames = text if number != 1 else text.replace("frames", "frame", 1)
            yield Finding(ERROR, code, found[0].at, f"{number:,} {frames}")
    for event in p.of(Kind.OPEN):
        frames = f"{event.numbers[0]:,} frame" + "s" * (event.numbers[0] != 1)
        text = f"{frames} came in part: the process that sent so far died, or hangs, in the middle of one"
        yield Finding(ERROR, "incomplete", event.at, text)


def _messages(p: Picture) -> Iterator[Finding]:
    """Findings about refused and stale messages."""
    all_of_them = refused_since(p)
    last = p.steps[-1].at if p.steps else p.flight.began
    for event, count in grouped(p, Kind.REFUSED):
        value, bound, index = event.numbers[:3]
        fault = MalformedMessage(p.flight.channel, event.text, value, bound, None if index < 0 else index)
        times = f"{count:,} messages were refused, the last" if count > 1 else "a message was refused"
        if event.text in _OTHER_BUILD or (event.text == "length" and value > bound):
            times = f"{times} (as another build, or another channel, sends them)"
        none = all_of_them and event.at > last and p.end - last > REFUSED_S
        yield Finding(ERROR, "refused" if none else "malformed", event.at, f"{times}: {fault}")
    for event in p.of(Kind.STALE):
        text = f"{event.numbers[0]:,} messages of an earlier run lay in the queue, and were dropped"
        yield Finding(INFO, "stale", event.at, text)
    for event, count in grouped(p, Kind.SEND_FAILED):
        again = f" ({count:,} times)" if count > 1 else ""
        yield Finding(ERROR, "send-failed", event.at, f"a message was not sent: {event.text}{again}")


LOOKS = (_queue, _frames, _messages)

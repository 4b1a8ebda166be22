"""Finds what went wrong in a flight recorder's file.

Each finding follows from one look: at an entry, at the last look at the queue, or at the file's end.  The
reasons of the engine's `health` are given as it wrote them down at the time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, NamedTuple

from .._core import CHANNELS, payload_size
from ..errors import MalformedMessage
from ..flight.codes import Kind
from ..flight.reading import Event
from ..support.checks import plural
from ..support.patience import LONGEST_S, SILENCE_S, STEP_S, USUAL_TIMES, WORKS
from .timeline import Picture, span

ERROR, WARNING, INFO = "error", "warning", "info"

BUSY = "busy"  # of `health.liveness`: no fault, but work of the worker
_GONE_S = 1.5  # seconds before the engine's exit; an idle worker that has been gone so long was not stopped
_GONE = "", "Z"  # states of a process that is gone, or dead
_NEAR_S = 10.0  # seconds from what the health says to a finding of the same fault

_FRAMES = {
    Kind.INCOMPLETE: "never became whole: their sender died or gave up in the middle",
    Kind.OPEN: "came in part: the process that sent so far died, or hangs, in the middle of one",
    Kind.MISSING: "did not come: refused, incomplete, or read by others",
    Kind.DOUBLED: "came whose numbers had come before: another program repeats messages",
    Kind.REORDERED: "came after later ones: another program puts messages back",
}
_EXCEPTIONS = {
    Kind.LOST: ("lost-step", "a step was lost: "),
    Kind.UNDELIVERED: ("undelivered", "results of a step were not delivered: "),
    Kind.FAILED: ("failed-request", "a request was ended with an error: "),
    Kind.SEND_FAILED: ("send-failed", "a message was not sent: "),
    Kind.FELL_BACK: ("fell-back", "the plug-in leaves the work to FastDeploy: "),
}


class Finding(NamedTuple):
    """One fault."""

    severity: str  # "error", "warning" or "info"
    code: str  # a word that stays the same when texts change
    at: float  # monotonic seconds
    text: str  # without the time


def as_dict(finding: Finding, picture: Picture) -> dict[str, Any]:
    """The finding as a dictionary for JSON."""
    return {
        "severity": finding.severity, "code": finding.code, "seconds_ago": round(picture.end - finding.at, 6),
        "time": picture.clock(finding.at), "text": finding.text,
    }  # fmt: skip


def findings(picture: Picture) -> list[Finding]:
    """All findings, in chronological order.

    What the engine's own health said at the time comes first: a look's finding of the same word near it is
    left out.
    """
    said = list(_health(picture))
    found = [
        one
        for look in (_process, _absences, _queue, _sender, _messages, _exceptions, _requests)
        for one in look(picture)
        if not any(other.code == one.code and abs(other.at - one.at) < _NEAR_S for other in said)
    ]
    return sorted(said + found, key=lambda one: one.at)


def findings_of_worker(worker: Picture, engine: Picture, of_engine: list[Finding]) -> list[Finding]:
    """The worker's findings beside its engine's, which `findings` has found.

    FastDeploy's stop ends its workers by a signal, so that they write no last entry.  That is no fault where
    the engine wrote one, and had missed no worker before.
    """
    is_stop = engine.stop is not None and all(one.code != "worker" for one in of_engine)
    return [one for one in findings(worker) if not (is_stop and one.code == "worker")]


def _health(p: Picture) -> Iterator[Finding]:
    """Repeat what the engine's health said."""
    again = p.of(Kind.HEALTHY)
    for event in p.of(Kind.UNHEALTHY):
        reason, _, text = event.text.partition(": ")
        end = next((one.at for one in again if one.at > event.at), None)
        lasted = "" if end is None else f"; healthy again after {span(end - event.at)}"
        yield Finding(INFO if reason == BUSY else ERROR, reason, event.at, text + lasted)


def _process(p: Picture) -> Iterator[Finding]:
    """Check whether the process that wrote the file has ended without a last entry, or is stuck."""
    busy, engine = p.flight.busy_since, p.flight.side == "engine"
    if p.is_alive:
        if busy is None or p.now - busy <= STEP_S or _is_absent(p):
            return
        lasted = span(p.now - busy)
        if engine:
            text = f"a step has been in hand for {lasted}: the token thread is stuck in it"
            yield Finding(ERROR, "step", busy, text)
        else:
            text = f"a message has waited to be sent for {lasted}: the queue is full, or the op is stuck"
            yield Finding(ERROR, "queue-full", busy, text)
    elif p.stop is None:
        text = (
            f"process {p.flight.pid} ended without a last entry: it was killed (SIGKILL, for lack of memory?)"
        )
        text += ", or crashed" if engine else ", ended by a signal as FastDeploy's stop sends it, or crashed"
        if busy is not None:
            text += ", in the middle of a " + ("step" if engine else "message")
        yield Finding(ERROR, "engine" if engine else "worker", p.last, text)


def _is_absent(p: Picture) -> bool:
    """Whether the engine writes nothing at the end."""
    return bool(p.absences) and p.absences[-1][1] >= p.end


def _absences(p: Picture) -> Iterator[Finding]:
    """Check for times in which the engine did not even look at the queue."""
    for since, until in p.absences:
        text = (
            f"the engine's process {p.flight.pid} recorded nothing for {span(until - since)}, not even how "
            "the queue is: stopped (SIGSTOP, a debugger), a thread with the GIL, or no processor for it"
        )
        yield Finding(ERROR, "frozen", since, text)


def _queue(p: Picture) -> Iterator[Finding]:
    """Check for a queue that was removed, unusable, full, or read by others."""
    for event in p.of(Kind.QUEUE_REMOVED):
        text = f"queue {event.numbers[0]} was removed; messages in it are lost"
        yield Finding(ERROR, "removed", event.at, text)
    for event in p.of(Kind.QUEUE_ERROR):
        code = event.numbers[0]
        why = os.strerror(code) if 0 < code < 4096 else f"error {code}"
        yield Finding(ERROR, "queue", event.at, f"the queue cannot be used: {why} ({event.text})")
    longest = max((step.length for step in p.steps[-50:]), default=0)
    full = [
        look
        for look in p.queues
        if not look.error and look.messages and 0 < look.max_bytes < look.bytes + longest
    ]
    if full:
        text = (
            f"the queue was full at {len(full):,} of {len(p.queues):,} looks, one a second: "
            f"{plural(full[-1].messages, 'message')}, {full[-1].bytes:,} of {full[-1].max_bytes:,} bytes; "
            "the sender waits until the engine reads"
        )
        yield Finding(ERROR, "queue-full", full[0].at, text)
    foreign = next((look for look in p.looks_of_this_run if look.reader_is_foreign), None)
    if foreign is not None:
        text = (
            f"{_process_text(foreign.last_receiver)} reads this queue, too: each message reaches one of "
            "the two, so that requests lose steps"
        )
        yield Finding(ERROR, "two-readers", foreign.at, text)


def _sender(p: Picture) -> Iterator[Finding]:
    """Judge the process that sends, by the last look at the queue."""
    if not p.queues:
        return
    look = p.queues[-1]
    came = [*(step.at for step in p.steps[-1:]), *(event.at for event in p.of(Kind.REFUSED))]
    since = max(came, default=p.flight.began)
    sender = f"process {look.last_sender}, which sent the last step,"
    at_work = f"{plural(look.running, 'request')} run{'s' * (look.running == 1)}"
    known = look.last_sender and look in p.looks_of_this_run
    nothing_came = not p.steps and not p.flight.overwritten
    if nothing_came and look.state in _GONE and any(one.state not in _GONE for one in p.queues):
        known, sender = True, "the worker's process, which has sent nothing,"
    if known and look.state in _GONE and since <= look.at:
        still = takewhile(lambda one: one.last_sender == look.last_sender and one.state in _GONE
                          and one.at >= since, reversed(p.queues))  # fmt: skip
        at = min(one.at for one in still)
        if look.running or p.stop is None or p.stop - at >= _GONE_S:
            text = f"{sender} is gone while {at_work if look.running else 'no request runs'}"
            yield Finding(ERROR, "worker", at, text)
        else:  # FastDeploy's own stop ends workers later
            text = f"{sender} was gone when the engine's exit began: killed, or by a signal to both"
            yield Finding(WARNING, "worker", at, text)
        return
    if not look.running:
        return
    if look.messages or p.flight.busy_since is not None or _is_absent(p):
        return  # the engine has not read, does nothing, or has not looked
    silent = look.at - since
    if silent < max(SILENCE_S, min(USUAL_TIMES * (p.usual_gap or 0.0), LONGEST_S)):
        return
    if known and look.state in ("T", "t"):
        yield Finding(ERROR, "stopped", since, f"{sender} is stopped (SIGSTOP, or a debugger)")
        return
    room, full = min(look.msgmax, look.max_bytes), 0
    if p.flight.channel in CHANNELS and not (p.steps and p.steps[-1].frame is not None):
        full = payload_size(p.flight.channel)  # frames are as short as they have to be
    is_low = 0 < room < full
    who = sender.removesuffix(",") if known else "any process"
    text = f"nothing has come from {who} for {span(silent)}, while {at_work}; "
    said = [event.text.partition(":")[0] for event in p.of(Kind.UNHEALTHY) if event.at > since][-1:]
    is_busy = said == [BUSY] or (known and silent < LONGEST_S and _works(p, since))
    if is_busy and not is_low:
        yield Finding(INFO, BUSY, since, f"{text}its CPU time says that it is at work")
        return
    if said != ["silent"]:
        text += "the engine looks each second, and the queue is empty: a long prefill, or a worker that hangs"
        yield Finding(ERROR if silent >= LONGEST_S else WARNING, "silent", since, text)
    if is_low:
        text = (
            f"messages may have {room:,} bytes (kernel.msgmax, kernel.msgmnb), FastDeploy's own op sends "
            f"{full:,}: the kernel refuses each, and that op goes on without a word"
        )
        yield Finding(ERROR, "limits-low", since, text)


def _works(p: Picture, since: float) -> bool:
    """Whether the worker's process has taken CPU time of late, as `health` judges."""
    looks = [look for look in p.queues if look.at >= max(since, p.queues[-1].at - SILENCE_S)]
    seconds = looks[-1].at - looks[0].at
    return looks[-1].ticks - looks[0].ticks > WORKS * seconds * os.sysconf("SC_CLK_TCK")


def _messages(p: Picture) -> Iterator[Finding]:
    """Count messages that were refused, and frames that are missing or came in another order."""
    for event, count in _grouped(p, Kind.REFUSED):
        value, bound, index = event.numbers[:3]
        fault = MalformedMessage(p.flight.channel, event.text, value, bound, None if index < 0 else index)
        times = f"{count:,} messages were refused, the last" if count > 1 else "a message was refused"
        code = "other-service" if event.text == "service" else "malformed"
        yield Finding(ERROR, code, event.at, f"{times}: {fault}")
    counted = {kind: p.of(kind) for kind in _FRAMES}
    texts = [
        f"{plural(sum(event.numbers[0] for event in events), 'frame')} {_FRAMES[kind]}"
        for kind, events in counted.items()
        if events
    ]
    if texts:
        at = min(event.at for events in counted.values() for event in events)
        yield Finding(ERROR, "frames", at, "; ".join(texts))


def _exceptions(p: Picture) -> Iterator[Finding]:
    """Name losses by an exception, each text once, and each fallback to FastDeploy's code."""
    for kind, (code, what) in _EXCEPTIONS.items():
        severity = WARNING if kind == Kind.FELL_BACK else ERROR
        for event, count in _grouped(p, kind):
            again = f" ({count:,} times)" if count > 1 else ""
            yield Finding(severity, code, event.at, f"{what}{event.text}{again}")


def _grouped(p: Picture, kind: Kind) -> Iterator[tuple[Event, int]]:
    """The last event of each text, and their number."""
    events = p.of(kind)
    counts = Counter(event.text for event in events)
    for event in {event.text: event for event in events}.values():
        yield event, counts[event.text]


def _requests(p: Picture) -> Iterator[Finding]:
    """Count requests without an end."""
    left = p.of(Kind.LEFT)
    if left:
        text = f"{plural(len(left), 'request')} left without an end that the engine saw (aborted?)"
        yield Finding(INFO, "left", left[0].at, text)


def _process_text(process: int) -> str:
    return f"process {process}" if process else "a process of another PID namespace"

"""Findings about the engine's process, or the one that wrote the file.

Its evidence: the engine looks at the queue once a second whatever the worker does, so a missing look is the
engine's; the stages of a step say how much of its time was the engine's work; the kernel counts how long the
token thread waits for a processor.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from ..faults import MOSTLY, SLOW_S, SLOW_SEND_S, STEP_S, SUSTAINED_S
from ..flight.codes import Kind
from ..flight.reading import Event
from .finding import ERROR, WARNING, Finding, span
from .pace import Window, working
from .timeline import Picture

_ALL = 0.8  # share of a time without any entry: who waits for the GIL wakes up now and then


def _process(p: Picture) -> Iterator[Finding]:
    """Check whether the process that wrote the file is alive and works."""
    flight, busy, engine = p.flight, p.flight.busy_since, p.flight.side == "engine"
    yield from _frozen(p)
    if p.is_alive:
        if busy is not None and p.now - busy > STEP_S and not (p.absences and p.absences[-1][1] >= p.now):
            lasted = span(p.now - busy)
            if engine:
                text = f"a step has been in hand for {lasted}: the token thread is stuck in it"
            else:
                text = f"a message has waited to be sent for {lasted}: the queue is full, or the op is stuck"
            yield Finding(ERROR, "step" if engine else "send-stuck", busy, text)
        return
    if p.of(Kind.CLOSED):
        return
    text = (
        f"process {flight.pid} ended without a word: it was killed (SIGKILL, for lack of memory?), or crashed"
    )
    if busy is not None:
        text += ", in the middle of a " + ("step" if engine else "message")
    yield Finding(ERROR, "engine" if engine else "worker", p.last, text)


def _frozen(p: Picture) -> Iterator[Finding]:
    """Check for times without any entry: the process was stopped, or short of processors."""
    pid = p.flight.pid
    for since, until in p.absences:
        if _starved(p, since, until):
            continue  # `_cpu` says so
        lasts = until >= p.end and p.is_alive
        verb = "has recorded" if lasts else "recorded"
        text = (
            f"the engine's process {pid} lives and {verb} nothing for {span(until - since)}, not even how "
            "the "
            "queue is: it is stopped (SIGSTOP, a debugger), or one of its threads holds the GIL"
        )
        if not lasts:
            text = text.replace("lives and", "lived and").replace(": it is", ": it was").replace(
                "holds the", "held the"
            )  # fmt: skip
        yield Finding(ERROR, "frozen", since, text)


def _starved(p: Picture, since: float, until: float) -> bool:
    """Whether the token thread waited for a processor all the time, and not for the GIL.

    While that goes on no entry says so; what was so just before it, is so.
    """
    waits = p.of(Kind.CPU)
    before = [event for event in waits if since - 2 * SUSTAINED_S <= event.at <= since + 0.5]
    after = [event for event in waits if until - 0.5 <= event.at < until + 2 * SUSTAINED_S]
    return any(event.numbers[0] > MOSTLY * event.numbers[4] for event in before) or (
        bool(after) and after[0].numbers[0] > _ALL * 1e9 * (until - since)
    )


def _cpu(p: Picture) -> Iterator[Finding]:
    """Check whether the token thread gets a processor."""
    found: list[Event] = []
    for event in [*p.of(Kind.CPU), None]:
        short = event is not None and event.numbers[0] > MOSTLY * event.numbers[4]
        if short and event is not None and (not found or event.at - found[-1].at < 2 * SUSTAINED_S):
            found.append(event)
            continue
        lasted = sum(one.numbers[4] for one in found) / 1e9
        if lasted >= SUSTAINED_S:
            waited = sum(one.numbers[0] for one in found) / 1e9
            text = (
                f"the token thread wanted to run and got no processor for {span(waited)} of {span(lasted)}: "
                + _priority(*found[-1].numbers[2:4])
            )
            yield Finding(WARNING, "no-cpu", found[0].at - found[0].numbers[4] / 1e9, text)
        found = [event] if short and event is not None else []


def _priority(policy: int, nice: int) -> str:
    names = {os.SCHED_IDLE: "SCHED_IDLE", os.SCHED_BATCH: "SCHED_BATCH"}
    if policy in names:
        return f"its scheduling policy is {names[policy]}, so others go first"
    if nice > 0:
        return f"its nice value is {nice}, so others go first"
    return "the machine has more work than processors"


def _work(p: Picture) -> Iterator[Finding]:
    """Check whether the engine's own work takes most of the time."""
    short = [event for event in p.of(Kind.CPU) if event.numbers[0] > MOSTLY * event.numbers[4]]
    slow: list[Window] = []
    for window in working(p.steps, SUSTAINED_S / 2):
        work, end = window.build + window.put, window.since + window.seconds
        if (
            work < MOSTLY * window.seconds
            or work < SLOW_S * window.steps
            or any(window.since <= one.at <= end + 1 for one in short)
        ):
            slow = []
            continue
        slow.append(window)
        if len(slow) == 2:
            yield Finding(WARNING, "slow-engine", slow[0].since, _work_text(window))


def _work_text(window: Window) -> str:
    stage, what = window.put, "delivering its results (FastDeploy's scheduler)"
    if window.build > window.put:
        stage, what = window.build, "building its results"
    work = window.build + window.put
    each = [span(seconds / window.steps) for seconds in (work, window.seconds, stage, window.receive)]
    return (
        f"the engine takes {each[0]} a step, so that one comes every {each[1]}: {what} takes {each[2]}, and "
        f"waiting for the worker {each[3]}"
    )


def grouped(p: Picture, kind: Kind) -> Iterator[tuple[Event, int]]:
    """The last event of each text, and their number."""
    found = p.of(kind)
    counts = Counter(event.text for event in found)
    for event in {event.text: event for event in found}.values():
        yield event, counts[event.text]


def _errors(p: Picture) -> Iterator[Finding]:
    """Findings about exceptions."""
    for kind, code, what in (
        (Kind.LOST, "lost-step", "a step was lost"),
        (Kind.UNDELIVERED, "undelivered", "results of a step were not delivered"),
        (Kind.FAILED, "failed-request", "a request was ended with an error"),
    ):
        for event, count in grouped(p, kind):
            again = f" ({count:,} times)" if count > 1 else ""
            out = "no-memory" if event.text.startswith("MemoryError") else code
            yield Finding(ERROR, out, event.at, f"{what}: {event.text}{again}")
    for event in p.of(Kind.STOOD_ASIDE):
        yield Finding(WARNING, "stood-aside", event.at, event.text or "it stood aside")


def _sends(p: Picture) -> Iterator[Finding]:
    """Findings about messages that took long to send."""
    slow = [event for event in p.of(Kind.SENT) if event.numbers[1] > 1e9 * SLOW_SEND_S]
    if slow:
        longest = max(event.numbers[1] for event in slow) / 1e9
        text = (
            f"{len(slow):,} messages took longer than {SLOW_SEND_S:g} s to send, the longest "
            f"{span(longest)}: "
            "the queue was full, because the engine did not read"
        )
        yield Finding(ERROR, "slow-sends", slow[0].at, text)


LOOKS = (_process, _cpu, _work, _errors, _sends)

"""Findings about the process that sends.

Its evidence: the engine goes on looking, and finds the queue empty; `/proc` says how the sender's
process is; the kernel names the last sender; frames carry numbers, messages a dialect, steps the
requests that have tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from .._core import CHANNELS, payload_size
from ..faults import LONGEST_S, REFUSALS, SILENCE_S, SUSTAINED_S, USUAL_TIMES
from ..flight.codes import Kind
from ..flight.reading import QueueEntry
from .finding import ERROR, INFO, WARNING, Finding, span
from .pace import bursts, jump, slower
from .timeline import Picture

_FORGET = 0.96  # of what is usual, a second
_RETURNS = 2  # times that a sender comes back after another one before the two are said to send in turn


def _process(p: Picture) -> Iterator[Finding]:
    """Find a sending process that is gone, or stopped."""
    before: QueueEntry | None = None
    stopped: QueueEntry | None = None
    told = False
    for look in p.looks_of_this_run:
        was_gone = before is not None and before.state in ("", "Z")
        gone = look.state in ("", "Z") and look.last_sender and look.running
        if gone and not was_gone and not p.step_within(look.at, SILENCE_S / 2):
            who = f"process {look.last_sender}, which sent the last step,"
            how = "has died (its parent has not waited for it)" if look.state else "is gone"
            yield Finding(ERROR, "worker", look.at, f"{who} {how} while {look.running} requests run")
        if look.state in ("T", "t") and look.running:
            if stopped is None or p.step_within(stopped.at, look.at - stopped.at):
                stopped, told = look, False
            if not told and look.at - _last_came(p, look.at) > SILENCE_S:
                told = True
                text = f"process {look.last_sender}, which sends, is stopped (SIGSTOP, or a debugger)"
                yield Finding(ERROR, "stopped", stopped.at, text)
        else:
            stopped = None
        before = look


def _last_came(p: Picture, until: float) -> float:
    return max((step.at for step in p.steps if step.at <= until), default=p.flight.began)


def usual_silence(p: Picture) -> float:
    """Usual limit of seconds between steps: the longest recent gap, whose weight decays."""
    recent = p.gaps[-1000:]
    end = max((gap.at for gap in recent), default=0.0)  # in a damaged file, not always the last one's
    return max((gap.seconds * float(_FORGET ** (end - gap.at)) for gap in recent), default=0.0)


def _silence(p: Picture) -> Iterator[Finding]:
    """Check for a live worker that sends nothing, at the end."""
    if not p.queues or p.flight.busy_since is not None or (p.absences and p.absences[-1][1] >= p.end):
        return  # the engine does nothing, or has not looked
    look = p.queues[-1]
    came = [*(step.at for step in p.steps[-1:]), *(one.at for one in p.of(Kind.REFUSED))]
    since = max(came, default=p.flight.began)
    enough = max(SILENCE_S, min(USUAL_TIMES * usual_silence(p), LONGEST_S))
    if not look.running or look.messages or look.at - since < enough:
        return
    looks = [one for one in p.queues if one.at >= since]
    empty = f"the engine has looked {len(looks):,} times meanwhile, and the queue was empty"
    first_due = any(event.kind == Kind.SEATED for event in p.seats().values())
    if look.last_sender == 0 or look not in p.looks_of_this_run:
        since_when = "the queue was made" if look.last_sender == 0 else f"process {p.flight.pid} began"
        text = f"nothing has come since {since_when}, while {look.running} requests run; {empty}"
        yield Finding(WARNING if first_due and p.end - since < LONGEST_S else ERROR, "silent", since, text)
        yield from _too_long(p, look, since)
        return
    if not look.state or look.state in "ZTt":
        return
    last = [one for one in looks if one.last_sender == look.last_sender]
    works = len(last) > 1 and last[-1].ticks > last[0].ticks
    doing = "it uses CPU time" if works else "it uses no CPU time"
    prefill = first_due and not any(_may_not_send(p, since))
    if prefill:
        doing += ", and a request has had no token yet: a long prefill, perhaps"
    usual = f" (usually {span(p.usual_gap)} between steps)" if p.usual_gap else ""
    text = (
        f"nothing has come from process {look.last_sender} for {span(p.end - since)}{usual} while "
        f"{look.running} "
        f"requests run; {empty}; the process is there, and {doing}"
    )
    mild = prefill and p.end - since < LONGEST_S
    yield Finding(WARNING if mild else ERROR, "silent", since, text)
    yield from _too_long(p, look, since)


def _too_long(p: Picture, look: QueueEntry, since: float) -> Iterator[Finding]:
    """Check for messages that the worker's kernel may refuse."""
    full = payload_size(p.flight.channel) if p.flight.channel in CHANNELS else 0
    if p.steps and p.steps[-1].frame is not None:
        return  # frames are as short as they have to be
    if 0 < min(look.msgmax, look.max_bytes) < full:
        text = (
            f"messages may have {min(look.msgmax, look.max_bytes):,} bytes (kernel.msgmax, kernel.msgmnb), "
            f"FastDeploy's own op sends {full:,}: the kernel refuses each, and that op goes on without a word"
        )
        yield Finding(ERROR, "limits-low", since, text)


def _may_not_send(p: Picture, since: float) -> Iterator[Finding]:
    """Check for a queue whose mode keeps the sending process out."""
    access = p.of(Kind.ACCESS)
    if not access:
        return
    event = access[-1]
    mode, owner, maker, sender, user = event.numbers
    if sender <= 0 or user <= 0:  # unknown, or root's
        return
    may = mode & 0o200 if user in (owner, maker) else mode & 0o022
    if not may and not p.step_within(max(event.at, since), float("inf")):
        text = (
            f"the queue has mode {mode:04o} and is user {owner}'s, and process {sender}, which sends, is "
            "user "
            f"{user}'s: the kernel refuses its messages"
        )
        yield Finding(ERROR, "permission", event.at, text)


def _permission(p: Picture) -> Iterator[Finding]:
    yield from _may_not_send(p, float("-inf"))


def _pace(p: Picture) -> Iterator[Finding]:
    """Find steps that come ever later, later from one moment on, or in bursts."""
    slope = slower(p.steps)
    if slope is not None:
        text = (
            f"the worker becomes slower and slower: a step every {span(slope.now)}, at first every "
            f"{span(slope.before)}, and the engine waits for it"
        )
        yield Finding(WARNING, "slower", slope.since, text)
    else:
        step = jump(p.steps, [event.at for event in p.of(Kind.BEGAN)])
        if step is not None and p.end - p.steps[-1].at < SUSTAINED_S:
            text = (
                f"the worker is {step.now / step.before:.0f} times slower at once: a step every "
                f"{span(step.now)}, "
                f"before every {span(step.before)}, with no more requests, and the engine waits for it"
            )
            yield Finding(WARNING, "slow-worker", step.since, text)
    for at, count, within, usual in bursts(p.steps):
        text = f"some {count:,} steps came at once, within {span(within)} (usually {span(usual)} apart)"
        yield Finding(INFO, "burst", at, text)


def _senders(p: Picture) -> Iterator[Finding]:
    """Find another process that sends, a restarted worker, or two at a time."""
    names = [(step, None if step.frame is None else step.sender) for step in p.steps]
    changes = [(step, was, now) for (_, was), (step, now) in pairwise(names) if was != now]
    senders = {now for _, _, now in changes} | {name for _, name in names[:1]}
    looks = [look for look in p.looks_of_this_run if look.last_sender]
    others = [(look, before) for before, look in pairwise(looks) if look.last_sender != before.last_sender]
    if changes and len(senders) <= len(changes):
        what = "frames and FastDeploy's own messages" if None in senders else "frames of two senders"
        text = f"{what} come in turn: two processes, or two ops, send steps to this queue"
        yield Finding(ERROR, "two-senders", changes[0][0].at, text)
        changes = []
    elif len(others) + 1 - len({look.last_sender for look in looks}) >= _RETURNS:
        numbers = " and ".join(str(pid) for pid in dict.fromkeys(look.last_sender for look in looks))
        text = f"processes {numbers} send to this queue in turn: requests get steps that are not theirs"
        yield Finding(ERROR, "two-senders", others[0][0].at, text)
        others = []
    for step, was, now in changes:
        if was is None or now is None:
            kinds = ["FastDeploy's own" if name is None else "compact frames" for name in (now, was)]
            text = (
                f"messages are {kinds[0]} now, and were {kinds[1]} before: the worker began anew with "
                "another FD_POSTPROC_DIALECT, or one of the two had no plug-in"
            )
            yield Finding(WARNING, "other-dialect", step.at, text)
        else:
            text = f"frames come from another sender now, numbered from {step.frame}: the worker began anew"
            yield Finding(WARNING, "restarted", step.at, text)
    for look, before in others:
        gone = "; the former is gone" if not before.state else ""
        text = f"process {look.last_sender} sends now, not {before.last_sender} any more{gone}"
        yield Finding(WARNING, "other-sender", look.at, text)


def refused_since(p: Picture) -> bool:
    """Since when only refused messages come, at the end."""
    last = p.steps[-1].at if p.steps else p.flight.began
    return sum(event.at > last for event in p.of(Kind.REFUSED)) >= REFUSALS


LOOKS = (_process, _silence, _permission, _pace, _senders)

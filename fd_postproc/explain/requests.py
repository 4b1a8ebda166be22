"""Findings about requests, by their slots and the slots with tokens in each step."""

from __future__ import annotations

from collections.abc import Iterator

from ..faults import LONGEST_S, SUSTAINED_S, SUSTAINED_STEPS
from ..flight.codes import Kind
from ..flight.reading import Event
from .finding import ERROR, INFO, WARNING, Finding, span
from .timeline import Picture, with_slots


def _ends(p: Picture) -> Iterator[Finding]:
    """Find requests without an end, or without a beginning."""
    left = p.of(Kind.LEFT)
    if left:
        text = (
            f"{len(left):,} requests left their slots without an end that the token processor saw (aborted?)"
        )
        yield Finding(INFO, "left", left[0].at, text)
    waiting = [event for event in _without_a_token(p) if p.end - event.at > SUSTAINED_S]
    if waiting:
        first = min(waiting, key=lambda event: event.at)
        text = (
            f"{len(waiting):,} requests are in a slot and have had no token, the first (slot "
            f"{first.slot}) for "
            f"{span(p.end - first.at)}"
        )
        yield Finding(WARNING, "no-first-token", first.at, text)


def _without_a_token(p: Picture) -> list[Event]:
    begun = {event.numbers[0] for event in p.of(Kind.BEGAN)}  # one that was preempted has had some
    return [
        event for event in p.seats().values() if event.kind == Kind.SEATED and event.numbers[0] not in begun
    ]


def _tokens(p: Picture) -> Iterator[Finding]:
    """Find requests that get no tokens while steps come."""
    late = [(step, slots) for step, slots in with_slots(p.flight) if step.at >= p.end - LONGEST_S]
    if not late or p.end - late[-1][0].at > SUSTAINED_S / 2:
        return  # no steps come: another finding's
    seats = p.seats()
    last: dict[int, float] = dict.fromkeys(seats, late[0][0].at)
    for step, slots in late:
        last.update((slot, step.at) for slot in slots if slot in seats)
    since = {slot: max(last[slot], event.at) for slot, event in seats.items()}
    enough = late[max(len(late) - SUSTAINED_STEPS, 0)][0].at if len(late) >= SUSTAINED_STEPS else 0.0
    hungry = {slot: at for slot, at in since.items() if at < min(enough, p.end - SUSTAINED_S)}
    if not hungry:
        return
    batch = max(step.batch for step, _ in late if step.at > max(hungry.values()))
    beyond = {slot: at for slot, at in hungry.items() if slot >= batch}
    if beyond:
        at = min(beyond.values())
        text = (
            f"{len(beyond):,} requests get no tokens: messages have {batch:,} requests, and theirs are in "
            f"{_listed(beyond)} (counted from 0): the worker sends for fewer than the engine has"
        )
        yield Finding(ERROR, "starved", at, text)
    prefilling = any(
        event.kind == Kind.SEATED and slot < batch and p.end - event.at < LONGEST_S
        for slot, event in seats.items()
    )
    begun = {slot: at for slot, at in hungry.items() if slot < batch and seats[slot].kind == Kind.BEGAN}
    if not begun or prefilling:
        return  # for whose prefill the others may wait
    at = min(begun.values())
    steps = [step for step, _ in late if step.at > at]
    if all(step.live == 0 for step in steps):
        text = (
            f"{len(steps):,} steps have come within {span(p.end - at)}, and none has a token, while "
            f"{len(begun):,} requests run that had some: all counts are 0 or below"
        )
        yield Finding(ERROR, "empty", at, text)
    else:
        text = (
            f"{len(begun):,} requests ({_listed(begun)}) have had no token for {span(p.end - at)}, while "
            "others "
            "have: the worker sends none for them"
        )
        yield Finding(WARNING, "starved", at, text)


def _listed(slots: dict[int, float]) -> str:
    shown = sorted(slots)
    text = ", ".join(map(str, shown[:8])) + (", ..." if len(shown) > 8 else "")
    return "slot" + "s" * (len(shown) > 1) + f" {text}"


LOOKS = (_ends, _tokens)

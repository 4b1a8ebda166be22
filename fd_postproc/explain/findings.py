"""All faults in a flight recorder's file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..faults import SUSTAINED_S
from ..flight.codes import Kind
from . import engine_side, queue_side, requests, worker_side
from .finding import ERROR, WARNING, Finding, span
from .timeline import Picture

_LOOKS: tuple[Callable[[Picture], Iterator[Finding]], ...] = (
    *engine_side.LOOKS, *worker_side.LOOKS, *queue_side.LOOKS, *requests.LOOKS,
)  # fmt: skip


def findings(picture: Picture) -> list[Finding]:
    """All findings, in chronological order.

    What the engine's own health said at the time is added where nothing else of the same word is found
    near it.
    """
    found = [finding for look in _LOOKS for finding in look(picture)]
    for one in _health(picture):
        if not any(other.code == one.code and abs(other.at - one.at) < 2 * SUSTAINED_S for other in found):
            found.append(one)
    found += _file(picture)
    return sorted(found, key=lambda one: one.at)


def _health(p: Picture) -> Iterator[Finding]:
    again = p.of(Kind.HEALTHY)
    for event in p.of(Kind.UNHEALTHY):
        reason, _, text = event.text.partition(": ")
        end = next((one.at for one in again if one.at > event.at), None)
        lasted = "" if end is None else f"; healthy again after {span(end - event.at)}"
        if reason == "thread":
            text, lasted = "the token thread has ended: no step will be processed any more", ""
        yield Finding(ERROR, reason, event.at, text + lasted)


def _file(p: Picture) -> Iterator[Finding]:
    if p.flight.damaged:
        text = f"{p.flight.damaged:,} entries of the file are damaged: another program has written to it"
        yield Finding(WARNING, "damaged", p.last, text)

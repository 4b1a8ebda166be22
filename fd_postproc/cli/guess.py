"""Finds the channel of a message, if none is given."""

from __future__ import annotations

from typing import NamedTuple

from .._core import CHANNELS, Step, decode, encode, payload_size
from ..core.layout import Channel, Layout
from ..errors import MalformedMessage


class Candidate(NamedTuple):
    """A channel for which a message is valid.

    `why` says how good a match it is, for a person.
    """

    channel: Channel
    step: Step
    why: str


_WHYS = ("it has the length of a full message", "it ends with its last live slot", "it is long enough")


def candidates(
    payload: bytes, mtype: int, layout: Layout
) -> tuple[list[Candidate], dict[Channel, MalformedMessage]]:
    """Channels for which a message is valid, the likeliest first; and why it is not valid on others."""
    found, refusals = [], {}
    for channel in CHANNELS:
        try:
            step = decode(payload, channel, mtype=mtype, layout=layout)
        except MalformedMessage as error:
            refusals[channel] = error
            continue
        if step.channel != channel:  # it also accepts messages of that other channel, which has its own turn
            continue
        if len(payload) == payload_size(channel, layout):
            grade = 0
        else:
            shortest = encode(step, step.dialect or "packed", layout=layout)
            grade = 1 if len(payload) == len(shortest) else 2
        found.append((grade, Candidate(channel, step, _WHYS[grade])))
    found.sort(key=lambda graded: graded[0])
    return [candidate for _, candidate in found], refusals

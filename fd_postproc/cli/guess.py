"""Which channel a message may be of, when nobody says."""

from __future__ import annotations

from typing import NamedTuple

from .._core import CHANNELS, Step, decode, payload_size
from ..errors import MalformedMessage
from ..layout import Channel, Layout
from .workload import cut


class Candidate(NamedTuple):
    """A channel under which a message adds up.

    `why` is how good a match it is, for a person.
    """

    channel: Channel
    step: Step
    why: str


_WHYS = ("it has the length of a full message", "it ends with its last live slot", "it is long enough")


def candidates(payload: bytes, mtype: int, layout: Layout) -> list[Candidate]:
    """Channels under which a message adds up, the likeliest first."""
    found = []
    for channel in CHANNELS:
        try:
            step = decode(payload, channel, mtype=mtype, layout=layout)
        except MalformedMessage:
            continue
        if step.channel != channel:  # which takes this other channel's messages, too; it has its own turn
            continue
        if len(payload) == payload_size(channel, layout):
            grade = 0
        else:
            grade = 1 if len(payload) == len(cut(step, layout)) else 2
        found.append((grade, Candidate(channel, step, _WHYS[grade])))
    found.sort(key=lambda graded: graded[0])
    return [candidate for _, candidate in found]


def full_size_refusals(payload: bytes, mtype: int, layout: Layout) -> list[MalformedMessage]:
    """Why a message is not of the channels whose full length it has."""
    refusals = []
    for channel in CHANNELS:
        if len(payload) == payload_size(channel, layout):
            try:
                decode(payload, channel, mtype=mtype, layout=layout)
            except MalformedMessage as error:
                refusals.append(error)
    return refusals

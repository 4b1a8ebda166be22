"""Codes in place of a request's token count in a message."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """A count below zero.  ``headers/request.h`` has those that a save op writes; a test compares the two."""

    NO_TOKEN = -1
    RECOVERY_STOP = -3
    PREEMPTED = -9

    @property
    def text(self) -> str:
        """The code as text."""
        return _TEXTS[self]


_TEXTS = {
    Code.NO_TOKEN: "no token",
    Code.RECOVERY_STOP: "recovery stop",
    Code.PREEMPTED: "preempted",
}

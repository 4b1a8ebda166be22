"""This module ends long waits of the steady lane, so that FastDeploy's own limits of time run."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from .connections import Inbox

LOOK_S = 1.0
"""Seconds between two looks: a stream without results from one to the next is left to FastDeploy's limits."""


class Silence:
    """The one timer of an event loop for all streams."""

    def __init__(self) -> None:
        self._loop = weakref.ref(asyncio.get_running_loop())  # it is the key of this
        self._inboxes: weakref.WeakSet[Inbox] = weakref.WeakSet()
        self._is_due = False

    def watch(self, inbox: Any) -> None:
        """Look at an inbox now and then, as long as it is there."""
        self._inboxes.add(inbox)
        self._look_later()

    def _look_later(self) -> None:
        loop = self._loop()
        if loop is not None and not self._is_due and self._inboxes:
            self._is_due = True
            loop.call_later(LOOK_S, self.look)

    def look(self) -> None:
        """Look at all inboxes."""
        self._is_due = False
        for inbox in list(self._inboxes):
            inbox.look()
        self._look_later()


_silences: weakref.WeakKeyDictionary[Any, Silence] = weakref.WeakKeyDictionary()


def silence() -> Silence:
    """The running loop's."""
    loop = asyncio.get_running_loop()
    found = _silences.get(loop)
    if found is None:
        found = _silences[loop] = Silence()
    return found

"""What a stand-in engine sends: so many made-up tokens of each running request, step after step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .load import POSITIONS, Answers

ORDER = "PEERS_ORDER"
"""Environment: JSON: ``accepted``, ``interval`` in seconds, ``usable`` ids, ``told`` (a file for its pid)."""


@dataclass
class Request:
    """A running request.

    Attributes
    ----------
    top : int or None
        Likeliest tokens that it asked for; None: no log-probabilities.
    last : int
        Tokens after which it ends.
    whose : object
        Who gets its results.
    position : int
        Tokens that it has got.
    """

    top: int | None
    last: int
    whose: Any = None
    position: int = 0


class StandIn:
    """Requests and their pace.

    Attributes
    ----------
    requests : dict of str to Request
    """

    def __init__(self) -> None:
        order = json.loads(os.environ[ORDER])
        Path(order["told"]).write_text(str(os.getpid()))
        answers = Answers(order["usable"])
        self.accepted, self.interval = order["accepted"], order["interval"]
        self.columns = {top: answers.columns(top) for top in range(21)}
        self.requests: dict[str, Request] = {}
        self._next = time.monotonic()

    @property
    def wait(self) -> float:
        """Milliseconds until the next step."""
        return max(0.0, self._next - time.monotonic()) * 1000

    def is_due(self) -> bool:
        """Whether a step is due; the next one is then an interval later."""
        if time.monotonic() < self._next:
            return False
        self._next = max(self._next + self.interval, time.monotonic())
        return True

    def step(self) -> Iterator[tuple[str, Request, slice, bool]]:
        """Each request, its new rows of `columns`, and whether it ends."""
        for name, one in [*self.requests.items()]:
            count = min(self.accepted, one.last - one.position)
            start = one.position % POSITIONS
            one.position += count
            ends = one.position >= one.last
            if ends:
                del self.requests[name]
            yield name, one, slice(start, start + count), ends

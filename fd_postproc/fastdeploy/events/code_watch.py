"""Watch over FastDeploy's functions after the start: who has wrapped or replaced what ours stands for?"""

from __future__ import annotations

import time
from typing import Any

from ..gate.judgements import gate
from ..gate.seams import SEAMS
from .gauges import export

LOOK_S = 5.0
"""Seconds between two looks; one takes about a millisecond."""


def report_known(side: str) -> None:
    """Set the gauge that says whether the code of a side is known: 0 if a program has wrapped some of it."""
    export("known", "side", side, not gate.is_wrapped(side))


class CodeWatch:
    """Names each function once that was wrapped or replaced since the gate knew it.

    A process's periodic thread calls `look`; only every `LOOK_S` seconds it costs anything.
    """

    def __init__(self, side: str, log: Any) -> None:
        self._side, self._log = side, log
        self._due = time.monotonic() + LOOK_S
        self._named: set[str] = set()

    def look(self, **objects: Any) -> list[str]:
        """Look if it is due: the texts of new changes, which are logged.

        In `objects` are FastDeploy's objects by seam, with a space for ``_``, on which methods may be set.
        """
        now = time.monotonic()
        if now < self._due:
            return []
        self._due = now + LOOK_S
        return self.look_now(**objects)

    def look_now(self, **objects: Any) -> list[str]:
        """Look, whether or not it is due."""
        texts = []
        try:
            found = gate.changes(self._side, **objects)
        except Exception as error:
            self._cannot_look(type(error).__name__)
            return []
        for seam, change in [(seam, one) for seam, several in found.items() for one in several]:
            is_called = change.function in SEAMS[seam].looked_at
            rest = "it is called from now on, fd_postproc's code is not" if is_called else "it is not called"
            text = f"{change.text} since the start: {rest} ({seam})"
            if text in self._named:
                continue
            self._named.add(text)
            texts.append(text)
            self._log.error(f"fd_postproc: {text}")
            export("known", "side", self._side, False)
            if SEAMS[seam].has_path:
                export("fast_path", "path", seam, False)
        return texts

    def _cannot_look(self, error: str) -> None:
        """Report that a look has raised, once for each kind of error: a wrapper may go unnoticed."""
        if error not in self._named:
            self._named.add(error)
            self._log.exception("fd_postproc: the look at FastDeploy's functions failed")
            export("known", "side", self._side, False)

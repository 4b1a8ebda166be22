"""Guards of the seams: what of ours raises falls back to FastDeploy's own object, is logged and counted.

The code at a seam catches the exception, calls FastDeploy's own, and calls `Guard.failed`.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Any

from ..gate.seams import SEAMS
from .counters import count
from .gauges import report
from .log import fastdeploy_log

MOST_IN_A_ROW = 3
"""Failures in a row after which a seam is FastDeploy's for good."""

_MOST_KINDS = 16  # of exceptions that are logged by one guard


class Guard:
    """Guard of one use of a seam.

    Parameters
    ----------
    seam : str
        Its name in `SEAMS`.
    log : callable, optional
        Returns the logger; default: FastDeploy's ``llm_logger``.
    most : int or None
        Failures in a row that switch it off; None: none do, as FastDeploy has nothing instead.
    when_off : callable, optional
        Called without arguments when it is switched off.

    Attributes
    ----------
    is_on : bool
        Whether ours is used; False from the failure on that was one too many.
    in_a_row : int
        Failures since the last call that worked.
    """

    __slots__ = ("_kinds", "_log", "_most", "_when_off", "in_a_row", "is_on", "seam")

    def __init__(
        self,
        seam: str,
        log: Callable[[], Any] = fastdeploy_log,
        most: int | None = MOST_IN_A_ROW,
        when_off: Callable[[], None] = lambda: None,
    ) -> None:
        self.seam, self._log, self._most, self._when_off = SEAMS[seam], log, most, when_off
        self.is_on, self.in_a_row = True, 0
        self._kinds: set[str] = set()

    def worked(self) -> None:
        """Note a call that worked, after others that failed."""
        if self.in_a_row:
            self.in_a_row = 0

    def failed(self, error: BaseException) -> None:
        """Count, log and perhaps switch off after a failure of ours; never raises."""
        self.in_a_row += 1
        ends = self.is_on and self._most is not None and self.in_a_row >= self._most
        if ends:
            self.is_on = False
        with contextlib.suppress(Exception):  # what reports must not fail instead of what it reports
            count("fallbacks", self.seam.name)
        with contextlib.suppress(Exception):
            self._report(error, ends)
        if ends:
            with contextlib.suppress(Exception):
                self._when_off()

    def _report(self, error: BaseException, ends: bool) -> None:
        seam, kind = self.seam, type(error).__name__
        if kind not in self._kinds and len(self._kinds) < _MOST_KINDS:
            self._kinds.add(kind)
            trace = "".join(traceback.format_exception(error))
            self._log().error(f"fd_postproc: {seam.name} failed, {seam.falls_back}: {kind}: {error}\n{trace}")
        if ends:
            self._log().error(
                f"fd_postproc: {seam.name} failed {self.in_a_row} times in a row: FastDeploy's own is used "
                "from now on, until the process is started again"
            )
            report({seam.name: False})

"""What happens to a token processor: counted, logged, and written into the flight recorder."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from ....flight.recorder import Recorder
from ....ops.log_throttle import Complaints
from ...events.counters import count
from ...events.guard import Guard
from ...events.totals import Counters
from ..results._results import Stages

_SEAM_OF = {
    "metrics of a step": "metrics",
    "first-token stamps": "stamps",
    "token stamps": "stamps",
    "second-token stamps": "stamps",
    "the scheduler's log": "decode log",
    "the wait in the scheduler": "wake-up",
    "the rounds of the scheduler": "scheduling",
}
"""Work of ours at a seam, whose failures are counted as the seam's."""


class Journal:
    """Record of what happens, and of work that must not disturb requests.

    All parts write into it, most of them in the token thread; the reporter's thread reads it.

    Parameters
    ----------
    log : callable
        Returns the logger, at each use.

    Attributes
    ----------
    counters : Counters
        Counts and times of this processor's work.
    complaints : Complaints
        Throttled log of events that may come thousands of times a second.
    guard : Guard
        Guard of the token thread, for which FastDeploy has nothing that could take over within a step.
    recorder : Recorder
        The flight recorder; it records nothing until `Lifecycle.run`.
    failed : set of str
        Kinds of failures that are logged already.
    """

    def __init__(self, log: Callable[[], Any]) -> None:
        self._log = log
        self.counters, self.recorder = Counters(Stages()), Recorder()
        self.complaints = Complaints(lambda text: log().error(f"fd_postproc: {text}"))
        self.guard = Guard("token processor", log, most=None)
        self.failed: set[str] = set()

    def best_effort(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function for metrics, logs or traces; return None and log if it raises."""
        try:
            return call(*arguments)
        except Exception as error:
            self.note_failure(what, error)
        return None

    def note_failure(self, what: str, error: Exception) -> None:
        """Count a failure that does not disturb requests, and log it, once for each kind."""
        if what in _SEAM_OF:
            count("fallbacks", _SEAM_OF[what])
        if what not in self.failed:
            self.failed.add(what)
            trace = "".join(traceback.format_exception(error))
            failure = f"{type(error).__name__}: {error}\n{trace}"
            self._log().warning(f"fd_postproc: {what} failed, the request goes on ({failure})")

"""Totals and times of the token thread: counted, logged and exported."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

from ..._core import TROUBLES, Receiver
from ...ops.log_throttle import Complaints, frames_text
from ...support.environment import LOG_STATS
from .counters import TOTALS, counter

EXPORT_S = 5.0  # seconds between two updates of what is exported
RECEIVED = ("wait_seconds", "corrupt", "foreign", *TROUBLES)
"""Totals that a `Receiver` counts."""
STAGES = ("steps", "results", "receive_seconds", "build_seconds", "put_seconds")
"""Totals that `Stages` counts."""


class Counters:
    """Totals since the start, as text and numbers.

    Parameters
    ----------
    stages : Stages
        Counts steps and the time of their stages.

    Attributes
    ----------
    receiver : Receiver or None
        Whose counters count as well; see `follow`.
    malformed, stale, lost_steps, undelivered, failed_requests, unpaired_drafts : int
    api_processes : ApiProcesses or None
        Counts requests whose API process is gone.
    """

    receiver: Receiver | None = None
    malformed = stale = lost_steps = undelivered = failed_requests = unpaired_drafts = 0
    api_processes: Any = None
    _before: dict[str, int | float] = dict.fromkeys(RECEIVED, 0)  # of queues that are gone

    def __init__(self, stages: Any) -> None:
        self.stages = stages

    @property
    def steps(self) -> int:
        """Number of processed steps."""
        steps: int = self.stages.steps
        return steps

    @property
    def api_process_gone_requests(self) -> int:
        """Number of requests whose API process was gone."""
        return 0 if self.api_processes is None else int(self.api_processes.requests)

    def follow(self, receiver: Any) -> None:
        """Add another receiver, or an object like one, to the totals."""
        self._before, self.receiver = self.received(), receiver

    def received(self) -> dict[str, int | float]:
        """The receivers' totals of the names in `RECEIVED`."""
        if self.receiver is None:
            return self._before
        stats = self.receiver.stats
        return {name: before + stats[name] for name, before in self._before.items()}

    @property
    def wait_seconds(self) -> float:
        """Time that the receivers waited for the worker."""
        return float(self.received()["wait_seconds"])

    def as_dict(self) -> dict[str, int | float]:
        """All totals by name."""
        received, stages = self.received(), self.stages
        return {
            name: received[name] if name in received else getattr(stages if name in STAGES else self, name)
            for name in TOTALS
        }

    def line(self) -> str:
        """The totals as a log line."""
        now = self.as_dict()
        seconds = ", ".join(
            f"{name.removesuffix('_seconds')} {value:.3f} s"
            for name, value in now.items()
            if "seconds" in name
        )
        counts = ", ".join(
            f"{value} {name.replace('_', ' ')}" for name, value in now.items() if "seconds" not in name
        )
        return f"fd_postproc: {counts}; {seconds}"


class Reports:
    """Reports of the totals: Prometheus counters, if prometheus_client is there, and log lines.

    In FastDeploy's multi-process mode only counters of prometheus_client's own reach a scrape, so they are
    moved forward now and then instead of being collected on demand.  The log gets a line every
    ``FD_POSTPROC_LOG_STATS`` seconds, if that is set.
    """

    def __init__(self, counters: Counters, logger: Any, complaints: Complaints) -> None:
        self._counters, self._logger, self._due = counters, logger, 0.0
        self._complaints = complaints
        self._metrics = {name: made for name in TOTALS if (made := counter(name))}
        self._told = dict.fromkeys(self._metrics, 0.0)
        self._troubles: dict[str, int | float] = dict.fromkeys(TROUBLES, 0)  # that were reported
        try:
            self._log_period = LOG_STATS.value
        except ValueError as error:
            self._log_period = math.inf
            logger.error(f"fd_postproc: {error}; no statistics are logged")
        self._log_due = time.monotonic() + self._log_period

    def refresh(self, now: float) -> None:
        """Update the exported counters, once in `EXPORT_S`, and log when it is due."""
        if now >= self._due:
            self._due = now + EXPORT_S
            self.move_forward()
        self.tell_troubles()
        if now >= self._log_due:
            self._log_due = now + self._log_period
            self._logger.info(self._counters.line())

    def tell_troubles(self) -> None:
        """Log the problems with frames."""
        receiver, received = self._counters.receiver, self._counters.received()
        for trouble in TROUBLES:
            count = int(received[trouble] - self._troubles[trouble])
            if receiver is not None and count > 0:
                self._complaints.tell(trouble, partial(frames_text, trouble, receiver), count)
            self._troubles[trouble] = received[trouble]

    def move_forward(self) -> None:
        """Set the exported counters to the totals."""
        totals = self._counters.as_dict()
        for name, metric in self._metrics.items():
            if totals[name] > self._told[name]:
                metric.inc(totals[name] - self._told[name])
                self._told[name] = totals[name]

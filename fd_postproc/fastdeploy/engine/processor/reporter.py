"""Thread that updates what others read about the token thread.

The token thread waits for messages without ever looking up: a System V queue has no wait with a time limit,
and looking again and again would make every message late.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from ...events.totals import Reports
from .draft_gauges import DraftGauges
from .flight_record import Recording
from .journal import Journal

QUEUE_CHECK_S = 1.0  # seconds between two looks at what comes without a step, and at the queue
WATCHED = 0.1  # seconds at a time that are spent watching who reads it


class Reporter:
    """Reporter of speculative gauges, exported counters and the log; a context manager.

    The receive loop calls `notify` after each round; until that is reported, it `has_news`.
    """

    def __init__(self, journal: Journal, gauges: DraftGauges, recording: Recording, log: Any) -> None:
        self._journal, self._gauges, self._recording = journal, gauges, recording
        self._reports = Reports(journal.counters, log, journal.complaints)
        self._news, self._end = threading.Event(), threading.Event()
        self.has_news = False
        self._looked = 0.0
        self._thread = threading.Thread(target=self._run, name="fd_postproc-reporter", daemon=True)

    def __enter__(self) -> Reporter:
        self._journal.best_effort("the thread that tells of steps", self._thread.start)
        return self

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._gauges.report()
        self._journal.best_effort("exported counters", self._reports.move_forward)
        self._recording.look()

    def notify(self) -> None:
        """Note an event; the thread reports it a little later, with those that follow."""
        self.has_news = True
        self._news.set()

    def _rest(self, seconds: float) -> None:
        """Wait, so that more events are reported together."""
        watched = min(seconds, WATCHED)
        if watched > 0:
            self._recording.watch_readers(watched)
        self._end.wait(seconds - watched)

    def _run(self) -> None:
        while not self._end.is_set():
            if self._news.wait(QUEUE_CHECK_S):
                self._rest(self._gauges.host.gauge_period)
                self._news.clear()
                self.has_news = False  # before looking: what comes from now on is reported the next time
            now = time.monotonic()
            self._gauges.report()
            self._journal.best_effort("exported counters", self._reports.refresh, now)
            if now >= self._looked + QUEUE_CHECK_S:
                self._looked = now
                # A step of ours has woken this thread; at a random time it sees other steps, too.
                self._end.wait(random.uniform(0, QUEUE_CHECK_S / 10))
                self._recording.look()
            self._journal.best_effort("complaints", self._journal.complaints.flush)

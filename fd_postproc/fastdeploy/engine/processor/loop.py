"""The receive loop: steps are taken from a source and processed until `stop`."""

from __future__ import annotations

import threading
import time
import traceback
from typing import Any

from ....flight.codes import Kind
from ..results._results import Stages
from .ending import Ending
from .host import Host
from .journal import Journal
from .pairing import DRAFT_WAIT_S, Pairing
from .reporter import Reporter
from .source import Processing, Source, Trouble
from .transfers import POLL
from .warmup import Warmup


class Loop:
    """Takes steps from a source and has them processed.

    `run` is called by FastDeploy's thread, `stop` by the thread that ends the service.  Other threads read:

    Attributes
    ----------
    trouble : Trouble or None
        The last one.
    in_hand_since : float or None
        When the step that is processed began, in monotonic seconds.
    warmup : Warmup or None
        None until the processor is constructed.
    """

    def __init__(self, host: Host, journal: Journal, ending: Ending, pairing: Pairing) -> None:
        self.host, self.journal, self.ending, self.pairing = host, journal, ending, pairing
        self.trouble: Trouble | None = None
        self.in_hand_since: float | None = None
        self.warmup: Warmup | None = None
        self._source: Source | None = None
        self._is_stopping = False
        self._patient_since: float | None = None  # since then something waits for the next step

    def run(self, source: Source, steps: Processing, reporter: Reporter) -> None:
        """Run rounds until `stop`, together with their periodic reports."""
        self._source = source
        stages = self.journal.counters.stages  # passed along: looking it up takes as long as what it does
        stages.begin()
        with reporter:
            while not self._is_stopping:
                try:
                    self.round(source, steps, stages)
                except (Exception, SystemExit) as error:  # of which a thread ends without a word
                    self._lose(error)
                if not reporter.has_news:
                    reporter.notify()
        stages.ring = None
        self.journal.recorder.end()

    def round(self, source: Source, steps: Processing, stages: Stages) -> None:
        """Take a step and process it; log and count what goes wrong."""
        patience = self._patience()
        try:
            # Without patience nothing but refused messages has come for so long.
            step = None if patience is not None and patience <= 0 else source.next(patience)
        except Exception as error:
            self._failed(source, error)
            return
        self._patient_since = None
        if step is not None:
            try:
                self._handle(step, steps, stages)
            except Exception as error:
                self._lose(error)
            return
        self.journal.recorder.rest()
        if not self._is_stopping:
            self._between_steps()

    def _failed(self, source: Source, error: Exception) -> None:
        try:
            trouble, pause = source.failed(error)
        except Exception as unknown:
            self._lose(unknown)
            return
        if trouble is not None:
            self.trouble = trouble._replace(steps=self.journal.counters.steps)
        if pause is not None:
            time.sleep(pause)

    def _lose(self, error: BaseException) -> None:
        """Record a step that was lost to the current exception."""
        self.journal.counters.lost_steps += 1
        self.journal.recorder.failure(Kind.LOST, error)
        name = type(error).__name__
        text = f"a step was lost: {name}: {error} {traceback.format_exc()}"
        self.journal.complaints.tell(name, text)

    def _patience(self) -> float | None:
        """Seconds to wait for a step before other work is due; None if none is.

        Messages that are refused meanwhile take nothing away from it and add nothing.
        """
        patience = POLL if self.ending.transfers.waiting else DRAFT_WAIT_S if self.pairing.waits else None
        if patience is None:
            self._patient_since = None
            return None
        now = time.monotonic()
        if self._patient_since is None:
            self._patient_since = now
        return self._patient_since + patience - now

    def _handle(self, step: Any, steps: Processing, stages: Stages) -> None:
        """Process a step; record its start time, for the health check, and FastDeploy's stamps."""
        host, fd = self.host, self.host.fd
        with host.health_lock:
            self.in_hand_since = time.monotonic()
            host.timestamp_for_alive_before_handle_batch = fd.time.time()
            host.timestamp_for_alive_after_handle_batch = None
        try:
            steps.process(step, stages)
        finally:
            with host.health_lock:
                self.in_hand_since = None
                host.timestamp_for_alive_before_handle_batch = None
                host.timestamp_for_alive_after_handle_batch = fd.time.time()
        self.ending.serve_transfers()
        warmup = self.warmup
        if warmup is not None and warmup.left and warmup.step():
            fd.llm_logger.info("fd_postproc: warmed up, garbage collection leaves out what lives by now")

    def _between_steps(self) -> None:
        """Do the waiting work, when no message has come for a while."""
        if self.ending.transfers.waiting:
            self.ending.serve_transfers()
        else:
            self.pairing.give_up_draft()

    def stop(self, timeout: float | None = None) -> None:
        """End the loop and wait for its thread; FastDeploy's own class has no such method."""
        self._is_stopping = True
        source, worker = self._source, self.host.worker
        if source is not None:
            self.journal.best_effort("waking the token thread", source.wake)
        if worker is not None and worker is not threading.current_thread():
            worker.join(timeout)

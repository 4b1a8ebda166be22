"""The watchdog thread: it checks the health, and reports changes to the log and as a gauge."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from threading import Event, Thread
from typing import Any

from ....flight.codes import Kind
from ...events.code_watch import CodeWatch
from ...events.gauges import export, sweep
from ...gate.seams import ENGINE
from .first_tokens import FirstTokens
from .liveness import BUSY, ENDING, REASONS, Health
from .unscheduled import Unscheduled

_ENDING_S = 5.0  # seconds of the process's exit after which it hangs


class HealthWatch:
    """Watchdog of our token processor's health; `begin` starts it, `end` ends it.

    It is no part of the token thread, which it also reports as dead, and it does not keep the
    processor alive.  It looks every `period` seconds, also at requests that would wait for ever: on a
    decode node for their first token, elsewhere for a thread that schedules.

    FastDeploy's stop is Python's exit, in which threads like this one go on until its last callback has
    returned.  One that hangs is not healthy, though all parts of this processor are.
    """

    def __init__(self, processor: Any, period: float) -> None:
        self._processor = weakref.ref(processor)
        self._period = period
        self._end = Event()
        self._verdict: Health | None = None
        self._since = 0.0
        self._code: CodeWatch | None = None
        self._process, self._ending_since = os.getpid(), 0.0
        self._first_tokens, self._unscheduled = FirstTokens(), Unscheduled()

    def begin(self) -> None:
        atexit.register(self.process_ends)  # runs before FastDeploy's finalizers, which are older
        Thread(target=self._run, name="fd_postproc-health", daemon=True).start()

    def end(self) -> None:
        atexit.unregister(self.process_ends)
        self._end.set()

    def process_ends(self) -> None:
        """Note that the process's exit has begun, while its workers are still there."""
        processor = self._processor()
        if os.getpid() == self._process and processor is not None:  # not a child with this callback
            self._ending_since = time.monotonic()
            export("active", "side", "engine", False)
            processor.parts.recording.end()

    def _run(self) -> None:
        for reason in REASONS:
            export("unhealthy", "reason", reason, False)
        export("busy", "side", "worker", False)
        while not self._end.wait(self._period):
            processor = self._processor()
            if processor is None:
                break
            best_effort = processor.parts.journal.best_effort
            best_effort("health", self._look, processor)
            best_effort("gauges", sweep)
            if self._ending_since:
                continue
            best_effort("the look at wrappers", self._look_at_code, processor)
            best_effort("waiting for first tokens", self._first_tokens.look, processor)
            best_effort("requests that nobody schedules", self._unscheduled.look, processor)
            del processor, best_effort
        self._first_tokens.close()

    def _look_at_code(self, processor: Any) -> None:
        if self._code is None:
            self._code = CodeWatch(ENGINE, processor.fd.llm_logger)
        objects = {"token processor": processor, "delivery": processor.cached_generated_tokens}
        changes = self._code.look(**objects)
        for text in changes:
            processor.parts.journal.recorder.event(Kind.FELL_BACK, text=text)

    def _look(self, processor: Any) -> None:
        before = self._verdict
        verdict = self._ending(before) if self._ending_since else processor.parts.health.verdict()
        if self._end.is_set():
            return
        now, log, recorder = time.monotonic(), processor.fd.llm_logger, processor.parts.journal.recorder
        self._verdict = verdict
        if (verdict and verdict.reason) == (before and before.reason):
            return  # a text with another number of seconds in it
        if before is not None:
            _export(before.reason, False)
        if verdict is not None:
            _export(verdict.reason, True)
            recorder.event(Kind.UNHEALTHY, text=f"{verdict.reason}: {verdict.text}")
            if verdict.reason == BUSY:
                log.warning(f"fd_postproc: busy: {verdict.text}")
            else:
                log.error(f"fd_postproc: unhealthy ({verdict.reason}): {verdict.text}")
        else:
            recorder.event(Kind.HEALTHY)
            text = "the worker sends again" if before and before.reason == BUSY else "healthy again"
            log.info(f"fd_postproc: {text}, after {now - self._since:.1f} s")
        if before is None:
            self._since = now

    def _ending(self, before: Health | None) -> Health | None:
        """The verdict on a process that ends: the last one, until it should have ended."""
        lasted = time.monotonic() - self._ending_since
        if lasted < _ENDING_S:
            return before
        text = f"FastDeploy's stop began {lasted:.1f} s ago, and process {self._process} has not ended"
        return Health(ENDING, f"{text}: kill -9 {self._process}, restart the service")


def _export(reason: str, is_on: bool) -> None:
    """Set the gauge of a reason; that of a busy worker is another one, since it is no fault."""
    if reason == BUSY:
        export("busy", "side", "worker", is_on)
    else:
        export("unhealthy", "reason", reason, is_on)

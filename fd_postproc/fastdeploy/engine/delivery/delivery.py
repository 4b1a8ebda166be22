"""The way of results from a step to the API server's socket: handed over, packed and sent.

The token thread puts the results of a step into FastDeploy's scheduler (`Delivery.put`).  FastDeploy's thread
that sends takes them out, and sorts, packs and sends them (`Delivery.round`).  Each half is used where
the code of FastDeploy's own is known.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from functools import cached_property
from typing import Any

from ...events.guard import Guard
from ...gate.judgements import gate
from ...gate.replacements import Replacement
from ..health.api_processes import ApiProcesses
from ..results._results import HalfPut, Handover, Plan
from .joined_readers import JoinedReaders
from .sending import ENGINE, LOOP, SCHEDULER, SERVER, Sending, Stock, why_left

PAUSE = 0.005
"""Seconds that FastDeploy's loop sleeps without results; here a wait of that length is enough."""
THREADS = (
    *("insert_task_to_scheduler_thread", "prepare_request_thread", "schedule_request_thread"),
    *("insert_task_to_worker_thread", "receive_output_thread"),
)
"""FastDeploy's threads on the way of a request and its results, by the engine's attribute of each."""


class Delivery:
    """Delivery of results; `begin` installs the loop that sends them, `end` restores FastDeploy's.

    Parameters
    ----------
    plan : Plan
    scheduler : object
        FastDeploy's, or whatever stands in its place.
    service : type, optional
        Default: FastDeploy's EngineService, if it has been imported.
    server : module, optional
        Default: FastDeploy's module of servers, likewise.

    Attributes
    ----------
    rounds : int
        Rounds that have sent something.
    interval : (int, float)
        Tokens and seconds that results wait for later ones of their request; 0 tokens: none waits.
    putting, taking, sends : Guard
        Of what the token thread puts into the scheduler, of what its sender takes out, and of a round.
    puts, unput : int
        Steps that were put into the scheduler, and those that could not be.
    api_processes : ApiProcesses
        Those that get results; the sender's thread looks at them.
    """

    def __init__(self, plan: Plan, scheduler: Any, service: Any = None, server: Any = None) -> None:
        self.plan, self._scheduler, self.rounds = plan, scheduler, 0
        self.service = service or getattr(sys.modules.get(ENGINE), "EngineService", None)
        self._server = server or sys.modules.get(SERVER)
        self._replacement: Replacement | None = None
        self._handover: tuple[Any, Handover | None] = (None, None)
        self.interval: tuple[int, float] = (0, 0.0)
        self.joined_readers = JoinedReaders()
        self.putting, self.taking, self.sends = Guard("delivery"), Guard("delivery"), Guard("sending")
        self.puts = self.unput = 0
        self.api_processes = ApiProcesses()
        self._engine: Any = None  # a weak reference, once its sender's thread runs
        self._seen_alive: set[str] = set()  # of `THREADS`

    def put(self, scheduler: Any, results: list[Any]) -> None:
        """Put the results of a step into the scheduler; by its own method those that ours fails to put."""
        try:
            rest = self._put(scheduler, results)
            if rest is not None:
                scheduler.put_results(rest)
        except Exception:
            self.unput += 1
            raise
        self.puts += 1

    def _put(self, scheduler: Any, results: list[Any]) -> list[Any] | None:
        """Put results by ours; return those that the scheduler has to put, None if all are there."""
        if not self.putting.is_on:
            return results
        try:
            handover = self.handover_in(scheduler)
            if handover is None or not handover.put(results):
                return results
        except HalfPut as error:
            self.putting.failed(error.__cause__ or error)
            return error.rest or None
        except Exception as error:
            self.putting.failed(error)
            return results
        self.putting.worked()
        return None

    def handover_in(self, scheduler: Any) -> Handover | None:
        """The fast path into a scheduler and out of it, if any; detected once for each."""
        known, handover = self._handover
        if known is not scheduler:
            handover = handover_in(scheduler, self.plan)
            if handover is not None and self.interval[0]:
                handover.hold(self.plan, *self.interval)
            self._handover = scheduler, handover
        return handover

    @cached_property
    def stock(self) -> Stock:
        """FastDeploy's own functions."""
        return Stock.of(type(self._scheduler), self.service, self._server)

    @cached_property
    def sending(self) -> Sending | None:
        """The sender of a round; None if FastDeploy's loop sends it."""
        return (
            None
            if why_left(self.stock, self.service)
            else Sending(self.plan, self.stock, self.api_processes.gone)
        )

    @property
    def sends_so_far(self) -> tuple[int, int]:
        """Messages that were sent by our loop, and those that could not be."""
        sending = self.__dict__.get("sending")
        return (0, 0) if sending is None else (sending.sent, sending.unsent)

    @property
    def is_installed(self) -> bool:
        """Whether our loop runs instead of FastDeploy's."""
        return self._replacement is not None

    def begin(self) -> None:
        """Install our loop; threads that run already stay in FastDeploy's."""
        if self.sending is None or self._replacement is not None:
            return

        @functools.wraps(self.stock.loop)
        def send(engine: Any) -> None:
            self.run(engine)

        self._replacement = Replacement("sending", (self.service, LOOP, send)).install()

    def end(self) -> None:
        """Restore FastDeploy's loop where ours still is; a thread in ours continues in it."""
        if self._replacement is not None:
            self._replacement.restore()
        self._replacement = None

    def run(self, engine: Any) -> None:
        """Run the sender's thread; FastDeploy's loop takes over where ours does not serve, or fails."""
        guard = self.sends
        if not self.sending.names["envs"].FD_ENABLE_INTERNAL_ADAPTER:  # type: ignore[union-attr]
            self._engine = weakref.ref(engine)  # with the adapter a thread of a decode node ends at once
        while engine.running and self._replacement is not None and guard.is_on:
            try:
                if not self.sending.serves(engine):  # type: ignore[union-attr]
                    break
                self.round(engine)
                self.api_processes.look(engine, self.sending.names["envs"])  # type: ignore[union-attr]
            except (Exception, SystemExit) as error:  # of which a thread ends without a word
                guard.failed(error)
            else:
                guard.worked()
        self._release(engine.scheduler)
        if engine.running:
            self.stock.loop(engine)

    def ended_threads(self) -> list[str]:
        """FastDeploy's `THREADS` that have died while their engine runs."""
        engine = self._engine and self._engine()
        if engine is None or not engine.running:
            return []
        ended = []
        for name in THREADS:
            thread = getattr(engine, name, None)
            if thread is not None and thread.is_alive():
                self._seen_alive.add(name)
            elif name in self._seen_alive:
                ended.append(name)
        return ended

    def round(self, engine: Any) -> None:
        """Wait for results and send them."""
        began = time.monotonic()
        results = self._taken(engine)
        if len(results) == 0:
            if time.monotonic() - began < PAUSE:
                time.sleep(PAUSE)
            return
        self.rounds += 1
        self.sending.send(engine, dict(results))  # type: ignore[union-attr]

    def _taken(self, engine: Any) -> dict[str, list[Any]]:
        """Results of the scheduler; by its own method where ours fails, which has left them there then."""
        scheduler = engine.scheduler
        results: dict[str, list[Any]] | None = None
        if self.taking.is_on:
            try:
                handover = self.handover_in(scheduler)
                if handover is not None and self.interval[0]:
                    readers = self.joined_readers.of(engine, time.monotonic())
                    handover.join_for(engine.request_worker_map, readers)
                results = None if handover is None else handover.take()
                failure = None if handover is None else handover.failure
            except Exception as error:
                failure = error
                self._release(scheduler)
            if failure is None:
                self.taking.worked()
            else:
                self.taking.failed(failure)
                if not self.taking.is_on:
                    self._release(scheduler)
        if results is None:
            results = scheduler.get_results()
        return results

    def _release(self, scheduler: Any) -> None:
        """Stop holding results back for the interval."""
        known, handover = self._handover
        try:
            if handover is not None and known is scheduler:
                handover.release()
        except Exception as error:
            self.taking.failed(error)


def handover_in(scheduler: Any, plan: Plan) -> Handover | None:
    """The fast path into a scheduler and out of it; None unless its code is known, its tables plain."""
    stock = Stock.of(type(scheduler), None, None)
    if stock.put is None or gate.judge("delivery", type(scheduler)).reason:
        return None
    tables = scheduler.requests, scheduler.responses, scheduler.batch_responses_per_step
    if tuple(map(type, tables)) != (dict, dict, list):
        return None
    log = sys.modules[SCHEDULER].scheduler_logger
    return Handover(scheduler, stock.put, stock.get, log, plan.result)

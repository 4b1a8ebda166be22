"""The way of results from a step to the API server's socket: handed over, packed and sent.

The token thread puts the results of a step into FastDeploy's scheduler (`Delivery.put`).  FastDeploy's thread
that sends takes them out, and sorts, packs and sends them (`Delivery.round`).  Each half is used where
the code of FastDeploy's own is known.
"""

from __future__ import annotations

import functools
import sys
import time
import traceback
from functools import cached_property
from typing import Any

from ... import gate
from ...replacements import Replacement
from ..health.api_processes import ApiProcesses
from ..results._results import Handover, Plan
from .sending import ENGINE, LOOP, SERVER, Sending, Stock, why_left

PAUSE = 0.005
"""Seconds that FastDeploy's loop sleeps without results; here a wait of that length is enough."""


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
        self.api_processes = ApiProcesses()

    def put(self, scheduler: Any, results: list[Any]) -> None:
        """Put the results of a step into the scheduler."""
        handover = self.handover_in(scheduler)
        if handover is None or not handover.put(results):
            scheduler.put_results(results)

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
    def is_installed(self) -> bool:
        """Whether our loop is in the place of FastDeploy's."""
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
        """Run the sender's thread; if it cannot even fetch, it falls back to FastDeploy's loop."""
        while engine.running and self._replacement is not None and self.sending.serves(engine):  # type: ignore[union-attr]
            before = self.rounds
            try:
                self.round(engine)
            except Exception as error:
                engine.llm_logger.error(f"fd_postproc: sending failed: {error!r}, {traceback.format_exc()}")
                if self.rounds == before:
                    break
            self.api_processes.look(engine, self.sending.names["envs"])  # type: ignore[union-attr]
        handover = self.handover_in(engine.scheduler)
        if handover is not None:
            handover.release()
        if engine.running:
            self.stock.loop(engine)

    def round(self, engine: Any) -> None:
        """Wait for results and send them."""
        began, scheduler = time.monotonic(), engine.scheduler
        handover = self.handover_in(scheduler)
        results = None if handover is None else handover.take()
        if results is None:
            results = scheduler.get_results()
        if len(results) == 0:
            if time.monotonic() - began < PAUSE:
                time.sleep(PAUSE)
            return
        self.rounds += 1
        self.sending.send(engine, results)  # type: ignore[union-attr]


def handover_in(scheduler: Any, plan: Plan) -> Handover | None:
    """The fast path into a scheduler and out of it; None unless its code is known, its tables plain."""
    stock = Stock.of(type(scheduler), None, None)
    if stock.put is None or gate.judge("delivery", type(scheduler)).reason:
        return None
    tables = scheduler.requests, scheduler.responses, scheduler.batch_responses_per_step
    if tuple(map(type, tables)) != (dict, dict, list):
        return None
    log = stock.put.__globals__["scheduler_logger"]
    return Handover(scheduler, stock.put, stock.get, log, plan.results)

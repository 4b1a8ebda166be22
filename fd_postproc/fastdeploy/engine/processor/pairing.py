"""Draft log-probabilities: target results wait for the draft message, paired by request."""

from __future__ import annotations

import traceback
from functools import cached_property
from typing import Any

from ...._core import DRAFT, TARGET
from ....flight.codes import Kind
from ..delivery.delivery import Delivery
from ..results._results import pair
from .host import Host
from .journal import Journal

DRAFT_WAIT_S = 0.5  # seconds that results wait for a draft message before they go out without it


class Pairing:
    """Delivers the results of a step, by way of FastDeploy's ``postprocess``; targets wait for their draft.

    What waits is in the host's ``_batch_result_buffer``, where FastDeploy's class has it.
    """

    def __init__(self, host: Host, journal: Journal) -> None:
        self.host, self.journal = host, journal

    @property
    def pairs_drafts(self) -> bool:
        """Whether target results wait for draft log-probabilities."""
        host = self.host
        return bool(host.cfg.speculative_config.method and host.use_logprobs and host.enable_draft_logprob)

    @property
    def waits(self) -> bool:
        """Whether results wait for their draft message."""
        return self.host._batch_result_buffer is not None

    def postprocess(self, batch_result: list[Any], mtype: int = TARGET) -> None:
        """Deliver the results of a step; its `mtype` is 3 for a target, 4 for a draft.

        With draft log-probabilities on, a target's results wait for the draft message that follows them.
        Whatever comes first - the draft, another target, a step in which a request ends, or the end of
        `DRAFT_WAIT_S` - every waiting result goes out once, in order, and before anything newer.  (An empty
        batch waits, too, and its draft puts an empty list, as FastDeploy does.)
        """
        try:
            leaves = not self.pairs_drafts or self._leaves(batch_result, mtype)
        except Exception as error:
            self.journal.guard.failed(error)  # without pairs: everything leaves
            self.deliver_waiting()
            leaves = mtype != DRAFT
        if leaves:
            self._deliver_or_report(batch_result, "the results of a step were not delivered")

    @cached_property
    def delivery(self) -> Delivery:
        """The way of results to the API server's socket."""
        return Delivery(self.host.plan, self.host.cached_generated_tokens)

    def deliver(self, results: list[Any]) -> None:
        """Put results into FastDeploy's scheduler."""
        self.delivery.put(self.host.cached_generated_tokens, results)

    def _leaves(self, results: list[Any], mtype: int) -> bool:
        """Whether results are to be delivered now: after those that waited, which have been."""
        if mtype == DRAFT:
            self._pair(results)
            return False
        if self.host._batch_result_buffer:
            self.deliver_waiting()
        if mtype == TARGET and not any(result.finished for result in results):
            self.host._batch_result_buffer = list(results)
            return False
        return True

    def deliver_waiting(self) -> None:
        """Deliver the results that wait for their draft message, without it."""
        waiting, self.host._batch_result_buffer = self.host._batch_result_buffer, None
        if waiting is not None:
            self._deliver_or_report(waiting, "results that waited were not delivered")

    def give_up_draft(self) -> None:
        """Deliver the results whose draft message has not come in `DRAFT_WAIT_S`, count them and say so."""
        late = len(self.host._batch_result_buffer or ())
        self.deliver_waiting()
        if late:
            self.journal.counters.unpaired_drafts += late
            text = f"no draft message came within {DRAFT_WAIT_S:g} s: results have no draft log-probabilities"
            self.journal.complaints.tell("unpaired drafts", text, late)

    def _deliver_or_report(self, results: list[Any], what: str) -> None:
        """Deliver results; a failure is logged and counted, and what comes after it goes out all the same."""
        try:
            self.deliver(results)
        except Exception as error:
            self.journal.counters.undelivered += len(results)
            self.journal.recorder.failure(Kind.UNDELIVERED, error)
            name = type(error).__name__
            self.journal.complaints.tell(
                f"undelivered {name}", f"{what}: {name}: {error}\n{traceback.format_exc()}", len(results)
            )

    def _pair(self, drafts: list[Any]) -> None:
        waiting = self.host._batch_result_buffer
        if waiting is None:
            return
        of: dict[tuple[str, int | None], Any] = {}
        for draft in drafts:
            slot, rows = getattr(draft.outputs, "index", None), draft.outputs.draft_top_logprobs
            of[draft.request_id, slot] = of[draft.request_id, None] = rows
        pair(waiting, of)
        self.deliver_waiting()

    def draft_results(self, step: Any) -> list[Any]:
        """A result for each live request of a draft message, with its draft log-probabilities."""
        host, manager, results = self.host, self.host.resource_manager, []
        carrier = host.fd.RequestOutput(request_id="").trace_carrier  # FastDeploy leaves it at its default
        for slot, count in enumerate(step.counts):
            if slot >= len(manager.stop_flags) or manager.stop_flags[slot]:
                continue
            task = manager.tasks_list[slot]
            if task is None:
                continue
            result = host.plan.new_result(slot, None, task.request_id, step.flag, None)
            result.trace_carrier = carrier
            outputs = result.outputs
            outputs.draft_top_logprobs = host.plan.logprobs_lists(step, slot, count)
            if outputs.draft_top_logprobs is not None:
                outputs.logprob = outputs.draft_top_logprobs.logprobs[-1][0]
            results.append(result)
        return results

    def put_abort_results(self, task: Any) -> None:
        """Deliver the end of an aborted request, by FastDeploy's method, after its waiting results."""
        if self.host._batch_result_buffer:
            self.deliver_waiting()
        stock: Any = self.host.stock
        stock._put_abort_results(self.host, task)

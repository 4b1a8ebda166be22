"""One step: its message becomes results, which go into FastDeploy's scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...._core import DRAFT, TARGET, Step, step_from_tensors
from ....layout import Channel, Layout
from ..results._results import Batch, Stages, Sums, live_requests
from ..results.step_context import Context
from .advance import Advance
from .finish import MOST_REQUESTS

RECORD = "_record_speculative_decoding_metrics"
MTP, NGRAM = "mtp", "ngram"  # to which the members of SpecMethod are equal; FastDeploy 2.5 has none here


class Steps(Advance):
    """Mix-in of `_process_step` and `_process_batch_output`, for decoded and stock messages."""

    layout: Layout

    @property
    def channel(self) -> Channel:
        """The channel of the messages."""
        if self.cfg.speculative_config.method:
            return "spec_topk" if self.use_logprobs else "spec"
        return "topk" if self.use_logprobs else "plain"

    def _process_batch_output(self) -> None:
        """Process the message in ``output_tokens``, ``output_scores`` and ``output_ranks``."""
        self.counters.stages.begin()
        tensors = [self.output_tokens]
        if self.use_logprobs:
            tensors += [self.output_scores, self.output_ranks]
        self._process_step(step_from_tensors(self.channel, *tensors, layout=self.layout))
        self.report_gauges()

    def _process_step(self, step: Step, stages: Stages | None = None) -> None:
        """Process a decoded message."""
        if stages is None:
            stages = self.counters.stages
        if step.flag == DRAFT and step.channel == "spec_topk":
            stages.end_receive(step)
            self.postprocess(self.draft_results(step), DRAFT)
            stages.begin()  # a draft message is no step, and its time not that of the next one
            self.recorder.rest()
            return
        masks = self._sampling_masks()
        output_type = step.flag if step.channel == "spec_topk" else TARGET
        manager = self.resource_manager
        # While requests wait for their transfer, every message is looked at closely: theirs is no step.
        steady = None if self.transfers else self.best_effort("the fast path", self.steady_mode)
        context = Context(manager.stop_flags, manager.tasks_list, output_type, masks, steady)
        results = self._results_of(step, context, self._advance_in_order, self._add_up)
        if self.cfg.speculative_config.method:
            self.best_effort("gauges of a step", self.count_drafts, step)
        stages.end_build(step)
        # Where FastDeploy has no log-probabilities for a step, it has none for its drafts either.
        drafts = step.channel == self.channel or not self.pairs_drafts
        self.postprocess(results, output_type if drafts else 0)
        stages.end_put(results, step)

    def _results_of(
        self, step: Step, context: Context, advance: Callable[..., Any], add_up: Callable[[Sums], None]
    ) -> list[Any]:
        """Results of the batch loop, which leaves some requests to `advance`, and its sums to `add_up`."""
        batch = Batch(self.plan, step, context, advance, self.give_up)
        results = batch.results()
        try:
            add_up(batch.sums)
            for what, error in batch.failures.items():
                self.note_failure(what, error)
            if batch.is_crowded(MOST_REQUESTS):
                self.best_effort("forgetting requests", self.sweep)
        except Exception as error:  # the results are made, and their clients wait for them
            self.guard.failed(error)
        return results

    def _sampling_masks(self) -> dict[int, Any]:
        """The step's sampling masks: one blocking read a step, if enabled."""
        if not getattr(self, "use_sampling_mask", False) or self.fd.envs.FD_USE_GET_SAVE_OUTPUT_V1:
            return {}
        if not hasattr(self, "sampling_mask_zmq_server"):
            return {}
        masks = self.best_effort("receiving sampling masks", self._receive_masks)
        return masks if isinstance(masks, dict) else {}

    def _receive_masks(self) -> Any:
        return self.sampling_mask_zmq_server.receive_pyobj_once(block=True)[1]

    # ---- what the batch loop leaves to us ------------------------------------------------------------

    def _advance_in_order(self, slot: int, task: Any, code: int, batch: Batch) -> Any:
        """Advance a request, after the sums of those before it are visible to FastDeploy."""
        self._add_up(batch.sums)
        return self.advance(slot, task, code, batch)

    def _add_up(self, sums: Sums) -> None:
        if sums.steps:
            self.best_effort("metrics of a step", self._add_to_totals, sums)
        if sums.decoded:
            self.best_effort("the scheduler's log", sums.tell_decoded)

    def _add_to_totals(self, sums: Sums) -> None:
        """Add the loop's sums to FastDeploy's attributes and metrics."""
        steps, tokens, heads = sums.take()
        self.total_step += steps
        self.number_of_output_tokens += tokens
        for head, accepted in enumerate(heads):
            self.accept_token_num_per_head[head] += accepted
        sums.observe(tokens)

    # ---- the gauges of speculative decoding: a dozen cost more than the rest of a small step ------------

    gauge_period = 0.1
    """Seconds between two updates of the gauges at a fast pace; 0 updates at every step."""

    gauges_wait = False
    """Whether an update is due."""

    # Written by the thread that counts, and by the one that reports.
    _drafts_counted = 0
    _drafts_told = 0

    def count_drafts(self, step: Step) -> None:
        """Add a step to the totals; stopped and empty slots count too, as in FastDeploy.

        FastDeploy's own method is called if another one stands in its place, and the first time,
        when it also makes the gauges.
        """
        metrics = self.fd.main_process_metrics
        has_gauges = "spec_decode_draft_acceptance_rate" in getattr(metrics, "__dict__", ())
        if not has_gauges or not self._is_stock(RECORD) or hasattr(type(metrics), "set_value"):
            getattr(self, RECORD)(step.counts)
            return
        heads = self.accept_token_num_per_head
        self.num_emitted_tokens = sum(heads)
        self.num_accepted_tokens = self.num_emitted_tokens - heads[0]
        if self.num_emitted_tokens == 0:
            return
        if self.cfg.speculative_config.method == MTP:
            live, drafts = live_requests(step), self.cfg.speculative_config.num_speculative_tokens
            self.num_draft_tokens += live * drafts
            self.max_num_emitted_tokens += live * (drafts + 1)
            self._drafts_counted += live * drafts
        self.gauges_wait = True
        if not self.gauge_period:
            self.set_gauges()

    def report_gauges(self) -> None:
        """Update the gauges."""
        if self.gauges_wait:
            self.best_effort("gauges of a step", self.set_gauges)

    def set_gauges(self) -> None:
        """Set the gauges from the totals."""
        self.gauges_wait = False  # first: a step that is counted meanwhile is told the next time
        metrics = self.fd.main_process_metrics
        method = self.cfg.speculative_config.method
        accepted, emitted = self.num_accepted_tokens, self.num_emitted_tokens
        metrics.spec_decode_num_accepted_tokens_total.set(accepted)
        metrics.spec_decode_num_emitted_tokens_total.set(emitted)
        if method == NGRAM:
            metrics.spec_decode_draft_acceptance_rate.set(accepted / emitted)
        elif method == MTP:
            metrics.spec_decode_draft_acceptance_rate.set(accepted / self.num_draft_tokens)
            metrics.spec_decode_efficiency.set(emitted / self.max_num_emitted_tokens)
            counted = self._drafts_counted
            metrics.spec_decode_num_draft_tokens_total.inc(counted - self._drafts_told)
            self._drafts_told = counted
            self._set_head_gauges(metrics.spec_decode_draft_single_head_acceptance_rate)

    def _set_head_gauges(self, gauges: list[Any]) -> None:
        heads, rate = self.accept_token_num_per_head, None
        for head in range(min(self.cfg.speculative_config.num_speculative_tokens, len(heads) - 1)):
            if heads[head] != 0:  # else the rate of the head before it is shown, as in FastDeploy
                rate = heads[head + 1] / heads[head]
            gauges[head].set(rate)

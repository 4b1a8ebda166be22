"""One step: its message becomes results, and these go into FastDeploy's scheduler."""

from __future__ import annotations

from typing import Any

from ..._core import DRAFT, TARGET, Step, step_from_tensors
from ...layout import Channel, Layout
from ._results import Batch, Stages, Sums
from .advance import Advance
from .context import Context
from .gauges import Gauges
from .release import MOST_REQUESTS


class Steps(Advance, Gauges):
    """`_process_step` of a decoded message, `_process_batch_output` of one in FastDeploy's tensors."""

    layout: Layout

    @property
    def channel(self) -> Channel:
        """What the messages are."""
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
        masks = self._sampling_masks(step)
        output_type = step.flag if step.channel == "spec_topk" else TARGET
        manager = self.resource_manager
        # While requests wait for their transfer, every message is looked at closely: theirs is no step.
        steady = None if self.transfers else self.best_effort("the quick way", self.steady_mode)
        context = Context(manager.stop_flags, manager.tasks_list, output_type, masks, steady)
        batch = Batch(self.plan, step, context, self._advance_in_order, self.give_up)
        results = batch.results()
        self._add_up(batch.sums)
        if batch.failures:
            for what, error in batch.failures.items():
                self.note_failure(what, error)
        if self.cfg.speculative_config.method:
            self.best_effort("gauges of a step", self.count_drafts, step)
        if batch.is_crowded(MOST_REQUESTS):
            self.best_effort("forgetting requests", self.sweep)
        stages.end_build(step)
        # Where FastDeploy has no log-probabilities for a step, it has none for its drafts either.
        drafts = step.channel == self.channel or not self.pairs_drafts
        self.postprocess(results, output_type if drafts else 0)
        stages.end_put(results, step)

    def _sampling_masks(self, step: Step) -> dict[int, Any]:
        """Those that came with the step; else one blocking read a step, if the feature is on."""
        if not getattr(self, "use_sampling_mask", False) or self.fd.envs.FD_USE_GET_SAVE_OUTPUT_V1:
            return {}
        carried = step.masks
        if carried is not None:
            return carried
        if not hasattr(self, "sampling_mask_zmq_server"):
            return {}
        masks = self.best_effort("receiving sampling masks", self._receive_masks)
        return masks if isinstance(masks, dict) else {}

    def _receive_masks(self) -> Any:
        return self.sampling_mask_zmq_server.receive_pyobj_once(block=True)[1]

    # ---- what the batch loop leaves to us ------------------------------------------------------------

    def _advance_in_order(self, slot: int, task: Any, code: int, batch: Batch) -> Any:
        """Advance a request, after what those before it have added is there for FastDeploy to see."""
        self._add_up(batch.sums)
        return self.advance(slot, task, code, batch)

    def _add_up(self, sums: Sums) -> None:
        if sums.steps:
            self.best_effort("metrics of a step", self._add_to_totals, sums)
        if sums.decoded:
            self.best_effort("the scheduler's log", sums.tell_decoded)

    def _add_to_totals(self, sums: Sums) -> None:
        """Add what the loop has counted to FastDeploy's attributes and metrics."""
        steps, tokens, heads = sums.take()
        self.total_step += steps
        self.number_of_output_tokens += tokens
        for head, accepted in enumerate(heads):
            self.accept_token_num_per_head[head] += accepted
        sums.observe(tokens)

"""One step: its message becomes results, which go into FastDeploy's scheduler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...._core import DRAFT, TARGET, Step, step_from_tensors
from ... import gate
from ...called import bound_function
from ..results._results import Batch, Stages, Sums
from ..results.step_context import Context, SteadyMode
from .draft_gauges import DraftGauges
from .ending import MOST_REQUESTS, Ending
from .host import Host
from .journal import Journal
from .pairing import Pairing
from .request import Requests


class Steps:
    """Processes steps: the receive loop calls `process`, FastDeploy's own names the other two.

    Requests in their steady state are advanced by the batch loop (``_loop.pxi``), the others by `advance`.
    """

    def __init__(
        self,
        host: Host,
        journal: Journal,
        requests: Requests,
        ending: Ending,
        pairing: Pairing,
        gauges: DraftGauges,
    ) -> None:
        self.host, self.journal, self.fd = host, journal, host.fd
        self.requests, self.ending, self.pairing, self.gauges = requests, ending, pairing, gauges
        self._decode_log: tuple[Any, bool] = (None, False)  # a logger, and whether it `adds_up`

    def process(self, step: Step, stages: Stages | None = None) -> None:
        """Process a decoded message."""
        host = self.host
        if stages is None:
            stages = self.journal.counters.stages
        if step.flag == DRAFT and step.channel == "spec_topk":
            stages.end_receive(step)
            host.postprocess(self.pairing.draft_results(step), DRAFT)
            stages.begin()  # a draft message is no step, and its time not that of the next one
            self.journal.recorder.rest()
            return
        masks = self._sampling_masks()
        output_type = step.flag if step.channel == "spec_topk" else TARGET
        context = self.context(output_type, masks, self.steady_mode)
        results = self.results_of(step, context, self.advance, self._add_up)
        if host.cfg.speculative_config.method:
            self.journal.best_effort("gauges of a step", self.gauges.count, step)
        stages.end_build(step)
        # Where FastDeploy has no log-probabilities for a step, it has none for its drafts either.
        drafts = step.channel == host.channel or not self.pairing.pairs_drafts
        host.postprocess(results, output_type if drafts else 0)
        stages.end_put(results, step)

    def process_tensors(self) -> None:
        """Process the message in ``output_tokens``, ``output_scores`` and ``output_ranks``."""
        host = self.host
        self.journal.counters.stages.begin()
        tensors = [host.output_tokens]
        if host.use_logprobs:
            tensors += [host.output_scores, host.output_ranks]
        self.process(step_from_tensors(host.channel, *tensors, layout=host.layout))
        self.gauges.report()

    def clear(self) -> None:
        """Free every slot, and report to each client that its request has ended."""
        if self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            self.host.resource_manager.clear_data()
        if self.host._batch_result_buffer:
            self.pairing.deliver_waiting()
        self.ending.clear()

    def context(
        self, output_type: int, masks: dict[int, Any], steady_mode: Callable[[], SteadyMode | None]
    ) -> Context:
        """Context of a step; while requests wait for their transfer, no request is steady.

        Every message is looked at closely then: theirs is no step.
        """
        manager, is_steady = self.host.resource_manager, not self.ending.transfers.waiting
        steady = self.journal.best_effort("the fast path", steady_mode) if is_steady else None
        return Context(manager.stop_flags, manager.tasks_list, output_type, masks, steady)

    def results_of(
        self, step: Step, context: Context, advance: Callable[..., Any], add_up: Callable[[Sums], None]
    ) -> list[Any]:
        """Results of the batch loop, which leaves some requests to `advance`, and its sums to `add_up`."""
        batch = Batch(self.host.plan, step, context, advance, self.ending.give_up)
        results = batch.results()
        try:
            add_up(batch.sums)
            for what, error in batch.failures.items():
                self.journal.note_failure(what, error)
            if batch.is_crowded(MOST_REQUESTS):
                self.journal.best_effort("forgetting requests", self.ending.sweep)
        except Exception as error:  # the results are made, and their clients wait for them
            self.journal.guard.failed(error)
        return results

    def _sampling_masks(self) -> dict[int, Any]:
        """The step's sampling masks: one blocking read a step, if enabled."""
        host = self.host
        if not getattr(host, "use_sampling_mask", False) or host.uses_socket:
            return {}
        if not hasattr(host, "sampling_mask_zmq_server"):
            return {}
        masks = self.journal.best_effort("receiving sampling masks", self._receive_masks)
        return masks if isinstance(masks, dict) else {}

    def _receive_masks(self) -> Any:
        return self.host.sampling_mask_zmq_server.receive_pyobj_once(block=True)[1]

    # ---- what the batch loop leaves to us

    def advance(self, slot: int, task: Any, code: int, batch: Batch) -> Any:
        """Advance a request, after the sums of those before it are visible to FastDeploy."""
        self._add_up(batch.sums)
        return self.requests.advance(slot, task, code, batch)

    def _add_up(self, sums: Sums) -> None:
        if sums.steps:
            self.journal.best_effort("metrics of a step", self._add_to_totals, sums)
        if sums.decoded:
            self.journal.best_effort("the scheduler's log", sums.tell_decoded)

    def _add_to_totals(self, sums: Sums) -> None:
        """Add the loop's sums to FastDeploy's attributes and metrics."""
        host = self.host
        steps, tokens, heads = sums.take()
        host.total_step += steps
        host.number_of_output_tokens += tokens
        for head, accepted in enumerate(heads):
            host.accept_token_num_per_head[head] += accepted
        sums.observe(tokens)

    # ---- whether the batch loop may advance requests itself

    def steady_mode(self) -> SteadyMode | None:
        """Options of the batch loop for this step; None if every request needs `advance`."""
        host, fd = self.host, self.fd
        logger = getattr(host, "scheduler_metrics_logger", None)  # since FastDeploy 2.5
        speculative = bool(host.cfg.speculative_config.method)
        if speculative and not host._is_stock("_record_speculative_decoding_accept_num_per_request"):
            return None
        decodes = host.cfg.scheduler_config.splitwise_role == "decode"
        # The benchmark logger's samples are FastDeploy's own method's business.
        fused = host._is_stock("_record_metrics") and not getattr(host, "_benchmark_logger", None)
        log = logger.on_decode_tokens if logger else None
        at_once = bool(logger) and self._sums_decode_log(logger)
        return SteadyMode(
            now=fd.time.time(),
            tokens_counter=host.tokens_counter,
            templates=self.ending.templates,
            metrics=fd.main_process_metrics if fused else None,
            record=host._record_metrics,
            decode_log=log if at_once else None,
            log_decoding=None if at_once or log is None else partial(self.requests.log_decoding, log),
            decode_role=decodes,
            dropped=self.requests.left if decodes else (),
            steps_of=host.total_step_per_request if speculative else None,
            heads_of=host.accept_token_num_per_head_per_request if speculative else None,
            most_heads=fd.MAX_DRAFT_TOKENS if speculative else 0,
            streamed=False,
        )

    def _sums_decode_log(self, logger: Any) -> bool:
        """Whether the decode log takes sums; needed in every step, detected once."""
        known, adds = self._decode_log
        if known is not logger:
            adds = self.host._is_stock("_is_decode_stage") and adds_up(logger)
            self._decode_log = logger, adds
        return adds


def adds_up(logger: Any) -> bool:
    """Whether a scheduler's log counts tokens by the known code of its class: then a sum of them will do."""
    method = getattr(logger, "on_decode_tokens", None)
    cls = type(logger)
    is_own = bound_function(method) is getattr(cls, "on_decode_tokens", cls)
    return is_own and gate.judge("decode log", cls).reason is None

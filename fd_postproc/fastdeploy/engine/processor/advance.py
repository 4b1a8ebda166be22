"""Progress of one request in the general case: first and last tokens, codes, roles, chunks.

The steady state of a request is in ``_loop.pxi``; whatever is not that comes here.  What FastDeploy has a
method for is called on self, so that its own text decides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from ...._core import Step
from ....codes import Code
from ....flight.codes import Kind
from ... import gate
from ...called import bound_function
from ..results._results import Batch
from ..results.step_context import SteadyMode
from .finish import Finish, RequestKind

ABORTED, ABORTED_TEXT = 499, "Your request with request_id:{} is aborted."  # as FastDeploy before 2.6 says it


class Advance(Finish):
    """Mix-in of `advance` and its parts, and of `steady_mode`."""

    def advance(self, slot: int, task: Any, code: int, batch: Batch) -> Any:
        """Advance one request by its tokens of a step; `code` is their count, or negative.

        The result is None if there is nothing to tell the client.
        """
        name, role = task.request_id, self.cfg.scheduler_config.splitwise_role
        if name in self.transfers and code != self._preempted:
            return None
        in_pair = task.disaggregate_info is not None
        rid = self.trace_id_of(name)
        self._propagate_trace(rid, task)
        if self.cfg.speculative_config.method:
            record = self._record_speculative_decoding_accept_num_per_request
            self.best_effort("speculative statistics", record, name, code)
        if code < 0 and code != self._recovery:
            return self._without_token(slot, name, task, code)
        tokens = self._tokens_of(slot, name, code, batch.step)
        if tokens is None or (role == "decode" and self._is_left(name)):
            return None
        kind = RequestKind(
            in_pair and role == "prefill", in_pair and role == "decode", code == self._recovery
        )
        logger = getattr(self, "scheduler_metrics_logger", None)  # since FastDeploy 2.5
        if logger:
            log = logger.on_decode_tokens
            self.best_effort("the scheduler's log", self.log_decoding, log, task, len(tokens))
        if task.get("prefill_chunk_info", None) is not None and self._is_within_chunks(task):
            return None

        self.total_step += 1
        known: Any = getattr(self.fd, "RequestStatus", None)
        if hasattr(known, "RUNNING_PREFILL") and task.status == known.RUNNING_PREFILL:
            task.status = known.RUNNING_DECODE
        now = self.fd.time.time()
        metrics = self._stamped(slot, task, now, rid)
        self.number_of_output_tokens += len(tokens)
        self.best_effort("metrics of a step", self._record_metrics, task, now, tokens)
        result = self._new_result(slot, task, batch.output_type, metrics)
        if slot in batch.masks:
            result.outputs.sampling_mask = batch.masks[slot]
        if kind.prefill and len(tokens) > 1:
            result.outputs.draft_token_ids = list(tokens)
        outputs, hidden = result.outputs, self.fd.envs.FD_ENABLE_INTERNAL_ADAPTER  # wants no end token
        taken, ends = self._append_tokens(task, tokens, outputs, kind, hidden)
        if self.use_logprobs and not kind.recovery and taken:
            outputs.top_logprobs = self.plan.logprobs_lists(batch.step, slot, taken)
            if outputs.top_logprobs is not None:  # a plain message has none
                outputs.logprob = outputs.top_logprobs.logprobs[-1][0]
        if ends:
            return self._finish(slot, task, result, now, rid, kind)
        return result

    # ---- the slot's tokens -------------------------------------------------------------------------

    @property
    def _recovery(self) -> int:
        return int(self.fd.RECOVERY_STOP_SIGNAL)

    @property
    def _preempted(self) -> int:
        return getattr(self.fd, "PREEMPTED_TOKEN_ID", Code.PREEMPTED)

    def _tokens_of(self, slot: int, name: str, code: int, step: Step) -> list[int] | None:
        """The accepted tokens, or the recovery mark alone; None if there is nothing to report."""
        if code == self._recovery:
            self.fd.llm_logger.info(f"request {name}: recovery stop")
            return [code]
        return step.token_ids(slot) if code > 0 or self.makes_empty_results else None

    def _without_token(self, slot: int, name: str, task: Any, code: int) -> Any:
        """Handle a negative code: the worker has released the request, or has nothing for it.

        What the request becomes is left to the resource manager: ended if it is to be aborted, queued again
        if it was preempted.  Builds before 2.6 end an aborted one with a result of their own.
        """
        manager, fd, gone = self.resource_manager, self.fd, code == self._preempted
        managed = bool(fd.envs.ENABLE_V1_KVCACHE_SCHEDULER)
        if gone:
            fd.llm_logger.info(f"request {name}: the worker has let it go")
        if self.aborts_itself:
            plain = not self.cfg.speculative_config.method
            is_aborted = name in manager.abort_req_ids_set and (gone if managed else plain)
        else:
            is_aborted = gone and managed and name in manager.to_be_aborted_req_id_set
        if gone and not is_aborted:
            self.recorder.let_go(Kind.PREEMPTED, slot, name)
        if self.aborts_itself:
            if is_aborted:
                manager.abort_req_ids_set.remove(name)
                self.recorder.let_go(Kind.ABORTED, slot, name)
                self._recycle_resources(name, slot, task)
                fd.llm_logger.info(f"request {name}: aborted")
                text = ABORTED_TEXT.format(name)
                return fd.RequestOutput(request_id=name, finished=True, error_code=ABORTED, error_msg=text)
        elif is_aborted:
            self.recorder.let_go(Kind.ABORTED, slot, name)
            manager.recycle_abort_task(name)
            if hasattr(self, "_put_abort_results"):
                self._put_abort_results(task)
            fd.llm_logger.info(f"request {name}: aborted")
        if gone and managed and name in manager.to_be_rescheduled_request_id_set:
            fd.llm_logger.info(f"request {name}: preempted, it waits for its turn again")
            manager.reschedule_preempt_task(name)
        return None

    def _is_left(self, name: str) -> bool:
        """Whether a decode instance drops the tokens of a preempted or aborted request."""
        if self.aborts_itself or not self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            return False
        manager = self.resource_manager
        return name in manager.to_be_rescheduled_request_id_set or name in manager.to_be_aborted_req_id_set

    @staticmethod
    def _is_within_chunks(task: Any) -> bool:
        """Count a prefill chunk of the V0 scheduler; True before the last one."""
        task.prefill_chunk_num = task.get("prefill_chunk_num", 0) + 1
        return bool(task.prefill_chunk_num < len(task.prefill_chunk_info))

    # ---- the result --------------------------------------------------------------------------------

    def _stamped(self, slot: int, task: Any, now: float, rid: str) -> Any:
        """Stamp the request's metrics; return the client's copy."""
        if self.tokens_counter.get(task.request_id, 0):
            return self._stamped_again(task)
        copied = self._stamped_first(slot, task, now)
        self.fd.llm_logger.info(f"request {task.request_id}: first token")
        self._report_span("PREFILL", rid, task, ends=False)
        return copied

    def _stamped_first(self, slot: int, task: Any, now: float) -> Any:
        arrived = getattr(task.metrics, "arrival_time", None)
        waited = now - arrived if isinstance(arrived, float) and arrived else None
        self.recorder.began(slot, task.request_id, getattr(task, "prompt_token_ids_len", None), waited)
        self.best_effort("first-token stamps", task.metrics.record_recv_first_token)
        self.best_effort("first-token times", task.metrics.cal_cost_time)
        copied = self.plan.copy_metrics(task.metrics)
        self.best_effort("first-token metrics", self._record_first_token_metrics, task, now)
        return copied

    def _stamped_again(self, task: Any) -> Any:
        self.best_effort("token stamps", task.metrics.record_recv_token)
        sent = self.tokens_counter[task.request_id]
        if sent == 1 and self.cfg.scheduler_config.splitwise_role == "decode":
            self.best_effort("second-token stamps", task.metrics.record_decode_recv_second_token)
        return self.plan.copy_metrics(task.metrics)

    def _new_result(
        self, slot: int, task: Any, output_type: int, metrics: Any, streamed: bool = False
    ) -> Any:
        """Make a result without tokens; one of a step of objects, `streamed`, says less."""
        sent = self.tokens_counter.get(task.request_id, 0)
        result = self.plan.new_result(slot, sent, task.request_id, output_type, metrics)
        result.ic_req_data = task.ic_req_data
        if streamed:
            result.trace_carrier = self.plan.carrier
        else:
            result.prompt_token_ids_len = task.prompt_token_ids_len
        if sent == 0 and task.messages is not None:
            result.prompt = task.messages
        if sent == 0 or not streamed:
            result.num_cached_tokens = task.num_cached_tokens
            self._count_images(task, result)
        return result

    @staticmethod
    def _count_images(task: Any, result: Any) -> None:
        if task.get("multimodal_inputs", None):
            result.num_input_image_tokens = task.multimodal_inputs.get("num_input_image_tokens", 0)
            result.num_input_video_tokens = task.multimodal_inputs.get("num_input_video_tokens", 0)

    def _append_tokens(
        self, task: Any, tokens: list[int], outputs: Any, kind: RequestKind, hidden: bool = False
    ) -> tuple[int, bool]:
        """Append the tokens, up to the first that ends the request: how many, and whether one ended it.

        A `hidden` end token is not told to the client.
        """
        name, ends = task.request_id, task.eos_token_ids or ()
        taken, ended = 0, False
        for token in tokens:
            taken += 1
            if not kind.recovery:
                if not (hidden and token in ends):
                    outputs.token_ids.append(token)
                task.output_token_ids.append(token)
            if token in ends or kind.prefill or kind.recovery:
                ended = True
                break
        if taken:  # else FastDeploy's class makes no entry
            self.tokens_counter[name] = self.tokens_counter.get(name, 0) + taken
        return taken, ended

    # ---- whether the batch loop may advance requests itself

    _decode_log_known: tuple[Any, bool] = (None, False)  # a logger, and whether it `adds_up`

    @cached_property
    def commons(self) -> list[Any]:
        """Metrics of each slot's request at the last step, cached by the batch loop."""
        return []

    def steady_mode(self) -> SteadyMode | None:
        """Options of the batch loop for this step; None if every request needs `advance`."""
        fd, manager = self.fd, self.resource_manager
        role = self.cfg.scheduler_config.splitwise_role
        logger = getattr(self, "scheduler_metrics_logger", None)  # since FastDeploy 2.5
        speculative = bool(self.cfg.speculative_config.method)
        if speculative and not self._is_stock("_record_speculative_decoding_accept_num_per_request"):
            return None
        decodes = role == "decode"
        # The benchmark logger's samples are FastDeploy's own method's business.
        fused = self._is_stock("_record_metrics") and not getattr(self, "_benchmark_logger", None)
        at_once = bool(logger) and self._sums_decode_log(logger)
        drops = decodes and not self.aborts_itself and bool(fd.envs.ENABLE_V1_KVCACHE_SCHEDULER)
        return SteadyMode(
            now=fd.time.time(),
            tokens_counter=self.tokens_counter,
            commons=self.commons,
            metrics=fd.main_process_metrics if fused else None,
            record=self._record_metrics,
            decode_log=logger.on_decode_tokens if logger and at_once else None,
            log_decoding=(
                partial(self.log_decoding, logger.on_decode_tokens) if logger and not at_once else None
            ),
            decode_role=decodes,
            dropped=(
                (manager.to_be_rescheduled_request_id_set, manager.to_be_aborted_req_id_set) if drops else ()
            ),
            steps_of=self.total_step_per_request if speculative else None,
            heads_of=self.accept_token_num_per_head_per_request if speculative else None,
            most_heads=fd.MAX_DRAFT_TOKENS if speculative else 0,
            streamed=False,
        )

    def log_decoding(self, log: Callable[[int], None], task: Any, tokens: int) -> None:
        """Report tokens to the scheduler's log, if the request is past its prefill."""
        if self._is_decode_stage(task):
            log(tokens)

    def _sums_decode_log(self, logger: Any) -> bool:
        """Whether the decode log takes sums; needed in every step, detected once."""
        known, adds = self._decode_log_known
        if known is not logger:
            adds = self._is_stock("_is_decode_stage") and adds_up(logger)
            self._decode_log_known = logger, adds
        return adds


def adds_up(logger: Any) -> bool:
    """Whether a scheduler's log counts tokens by the known code of its class: then a sum of them will do."""
    method = getattr(logger, "on_decode_tokens", None)
    cls = type(logger)
    is_own = bound_function(method) is getattr(cls, "on_decode_tokens", cls)
    return is_own and gate.judge("decode log", cls).reason is None

"""What happens to a message: slot by slot in slot order, then the whole batch at once."""

from __future__ import annotations

from typing import Any, NamedTuple

from .finish import FinishMixin
from .messages import DRAFT, TARGET, MessagesMixin, Received, append_row
from .optional import AbortResultsMixin, GapsMixin, MasksMixin, RoutingMixin
from .speculation import SpeculationMixin


class Kind(NamedTuple):
    """What decides how a slot's tokens are taken."""

    prefill: bool  # of a request whose decoding happens elsewhere
    decode: bool  # of a request that was prefilled elsewhere
    recovery: bool


PREEMPTED = -9  # in place of a token or a count: the worker has let the request go


class CommonStep(MessagesMixin, SpeculationMixin, FinishMixin):
    """The step of every version; where they differ, version 2.6's, which subclasses change."""

    passes_over_empty_slots = True

    def _process_batch_output(self) -> None:
        """Process the message in the tensors; called by the receive loop."""
        received = self._decode()
        if received.mtype == DRAFT:
            self.postprocess(self._process_batch_draft_tokens(*received), DRAFT)
            return
        masks = self._receive_sampling_masks()
        results: list[Any] = []
        for slot in range(received.batch):
            # Read twice, without a lock, while other threads write: as upstream.
            if self.resource_manager.stop_flags[slot]:
                continue
            if self.passes_over_empty_slots and self.resource_manager.tasks_list[slot] is None:
                continue
            task = self.resource_manager.tasks_list[slot]
            result = self._process_slot(slot, task, received, masks)
            if result is not None:
                # The text is made whether or not anyone reads it: as upstream.
                self.fd.llm_logger.debug(f"result of the step: {result}")
                results.append(result)
        if self.cfg.speculative_config.method:
            self._record_speculative_decoding_metrics(received.counts)
        self.postprocess(results, received.mtype)

    def _receive_sampling_masks(self) -> dict[int, Any]:
        return {}

    def _is_decode_stage(self, task: Any) -> bool:
        if task is None or task.need_prefill_tokens is None:
            return False
        return task.num_computed_tokens >= task.need_prefill_tokens

    def _mark_decoding(self, task: Any) -> None:
        status = self.fd.RequestStatus
        if task.status == status.RUNNING_PREFILL:
            task.status = status.RUNNING_DECODE

    def _is_to_be_aborted(self, name: str) -> bool:
        """Whether the client has gone."""
        return name in self.resource_manager.to_be_aborted_req_id_set

    def _put_aborted(self, task: Any) -> None:
        """Tell the client of an aborted request."""

    def _process_slot(self, slot: int, task: Any, received: Received, masks: dict[int, Any]) -> Any:
        """Advance one request; its result, or None if there is nothing to tell."""
        fd, name, role = self.fd, task.request_id, self.cfg.scheduler_config.splitwise_role
        in_pair = task.disaggregate_info is not None
        is_prefill, is_decode = in_pair and role == "prefill", in_pair and role == "decode"
        rid = self._trace_id(name)
        start = task.metrics.inference_start_time
        started_ns = 0 if start is None else int(start * 1_000_000_000)
        fd.tracing.trace_set_proc_propagate_context(rid, task.trace_carrier, started_ns)

        if self.cfg.speculative_config.method:
            tokens = self._speculated_tokens(slot, task, received)
        else:
            tokens = self._sampled_token(slot, task, received)
        if tokens is None or (role == "decode" and self._is_discarded(name)):
            return None
        if self.scheduler_metrics_logger and self._is_decode_stage(task):
            self.scheduler_metrics_logger.on_decode_tokens(len(tokens))
        if task.get("prefill_chunk_info", None) is not None and self._is_within_chunks(task):
            return None

        self.total_step += 1
        self._mark_decoding(task)
        now = fd.time.time()
        metrics = self._stamp(task, now, rid)
        self.number_of_output_tokens += len(tokens)
        self._record_metrics(task, now, tokens)
        result = self._new_result(slot, task, received.mtype, metrics)
        if slot in masks:
            result.outputs.sampling_mask = masks[slot]
        if is_prefill and len(tokens) > 1:
            result.outputs.draft_token_ids = fd.copy.deepcopy(tokens)
        code = received.counts[slot] if self.cfg.speculative_config.method else tokens[0]
        kind = Kind(is_prefill, is_decode, code == fd.RECOVERY_STOP_SIGNAL)
        self._append_tokens(slot, task, tokens, received, result, now, rid, kind)
        return result

    def _trace_id(self, name: str) -> Any:
        """What the choices of a request have in common."""
        return name.split("_")[0]

    # ---- the slot's tokens -------------------------------------------------------------------------

    def _speculated_tokens(self, slot: int, task: Any, received: Received) -> list[int] | None:
        """The accepted tokens, the recovery mark alone, or None."""
        fd, name, count = self.fd, task.request_id, received.counts[slot]
        self._record_speculative_decoding_accept_num_per_request(name, count)
        if count == PREEMPTED:
            fd.llm_logger.info(f"request {name} was preempted or aborted by the worker")
            if fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
                self._let_go(name, task)
            return None
        if count == fd.RECOVERY_STOP_SIGNAL:
            fd.llm_logger.info(f"request {name}: recovery stop")
            return [fd.RECOVERY_STOP_SIGNAL]
        if self.use_logprobs:
            tokens = [row[0] for row in received.tokens[slot][:count]]
        else:
            first = 2 + fd.SPECULATE_MAX_BSZ + slot * fd.MAX_DRAFT_TOKENS
            tokens = received.tokens[first : first + count].tolist()
        return tokens if count != 0 else None

    def _sampled_token(self, slot: int, task: Any, received: Received) -> list[int] | None:
        """The one token, or None if it is a code other than recovery."""
        fd, name = self.fd, task.request_id
        token = int(received.tokens[slot][0] if self.use_logprobs else received.tokens[slot, 0])
        if token == fd.RECOVERY_STOP_SIGNAL:
            fd.llm_logger.info(f"request {name}: recovery stop")
        elif token < 0:
            if fd.envs.ENABLE_V1_KVCACHE_SCHEDULER and token == PREEMPTED:
                self._let_go(name, task)
            return None
        return [token]

    def _let_go(self, name: str, task: Any) -> None:
        """A request that the worker has left: end it if it is to be aborted, queue it again if preempted."""
        if self._is_to_be_aborted(name):
            self.resource_manager.recycle_abort_task(name)
            self._put_aborted(task)
            self.fd.llm_logger.info(f"request {name} was aborted")
        if name in self.resource_manager.to_be_rescheduled_request_id_set:
            self.fd.llm_logger.info(f"request {name} was preempted")
            self.resource_manager.reschedule_preempt_task(name)

    def _is_discarded(self, name: str) -> bool:
        """Whether tokens are dropped: on a decode instance those of a preempted or aborted request."""
        if not self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            return False
        return name in self.resource_manager.to_be_rescheduled_request_id_set or self._is_to_be_aborted(name)

    def _is_within_chunks(self, task: Any) -> bool:
        """Count a prefill chunk of the V0 scheduler; True before the last one."""
        task.prefill_chunk_num = task.get("prefill_chunk_num", 0) + 1
        return task.prefill_chunk_num < len(task.prefill_chunk_info)

    # ---- the result --------------------------------------------------------------------------------

    def _stamp(self, task: Any, now: float, rid: str) -> Any:
        """Stamp the request's metrics; the copy that the client gets."""
        fd, name = self.fd, task.request_id
        if self.tokens_counter[name] == 0:
            task.metrics.record_recv_first_token()
            task.metrics.cal_cost_time()
            copied = fd.copy.copy(task.metrics)
            fd.llm_logger.info(f"request {name}: first token")
            self._record_first_token_metrics(task, now)
            fd.tracing.trace_report_span(
                name=fd.tracing.TraceSpanName.PREFILL,
                rid=rid,
                start_time_ns=int(task.metrics.inference_start_time * 1e9),
                end_time_ns=int(fd.time.time() * 1e9),
                thread_finish_flag=False,
            )
            return copied
        task.metrics.record_recv_token()
        if self.tokens_counter[name] == 1 and self.cfg.scheduler_config.splitwise_role == "decode":
            task.metrics.record_decode_recv_second_token()
        return fd.copy.copy(task.metrics)

    def _new_result(self, slot: int, task: Any, mtype: int, metrics: Any) -> Any:
        fd, name = self.fd, task.request_id
        outputs = fd.CompletionOutput(
            index=slot, send_idx=self.tokens_counter[name], token_ids=[], draft_token_ids=[]
        )
        result = fd.RequestOutput(
            request_id=name,
            output_type=mtype,
            outputs=outputs,
            finished=False,
            metrics=metrics,
            ic_req_data=task.ic_req_data,
            prompt_token_ids_len=task.prompt_token_ids_len,
            trace_carrier=None,
        )
        if self.tokens_counter[name] == 0 and task.messages is not None:
            result.prompt = task.messages
        result.num_cached_tokens = task.num_cached_tokens
        if task.get("multimodal_inputs", None):
            result.num_input_image_tokens = task.multimodal_inputs.get("num_input_image_tokens", 0)
            result.num_input_video_tokens = task.multimodal_inputs.get("num_input_video_tokens", 0)
        return result

    def _append_tokens(
        self,
        slot: int,
        task: Any,
        tokens: list[int],
        received: Received,
        result: Any,
        now: float,
        rid: str,
        kind: Kind,
    ) -> None:
        """Give the tokens to the result and to the request, up to the first that ends it."""
        fd, name, outputs = self.fd, task.request_id, result.outputs
        speculative = self.cfg.speculative_config.method
        for position, token in enumerate(tokens):
            self.tokens_counter[name] += 1
            if token != fd.RECOVERY_STOP_SIGNAL:
                if not (fd.envs.FD_ENABLE_INTERNAL_ADAPTER and token in task.eos_token_ids):
                    outputs.token_ids.append(token)
                task.output_token_ids.append(token)
                if self.use_logprobs:
                    ids, scores, ranks = received.tokens[slot], received.scores[slot], received.ranks[slot]
                    if speculative:
                        ids, scores, ranks = ids[position], scores[position], ranks[position]
                    outputs.logprob = scores[0]
                    outputs.top_logprobs = append_row(fd, outputs.top_logprobs, ids, scores, ranks)
            if token in task.eos_token_ids or kind.prefill or kind.recovery:
                self._finish(slot, task, result, now, rid, kind)
                break

    # ---- the batch ---------------------------------------------------------------------------------

    def postprocess(self, batch_result: list[Any], mtype: int = TARGET) -> None:
        """Deliver a batch.  With draft logprobs on, a target waits for the draft message that follows it.

        Target and draft results are paired by position, the shorter list decides, a second target replaces
        the first, and errors are swallowed: as upstream.
        """
        try:
            deliverable = self._deliverable(batch_result, mtype)
            if deliverable is not None:
                self.cached_generated_tokens.put_results(deliverable)
        except Exception as error:
            fd = self.fd
            fd.llm_logger.error(f"postprocess failed: {error}, {fd.traceback.format_exc()}")

    def _deliverable(self, batch_result: list[Any], mtype: int) -> list[Any] | None:
        """What goes out now; None if the batch was put aside."""
        config = self.cfg.speculative_config
        if not (config.method and self.use_logprobs and self.enable_draft_logprob):
            return batch_result
        if mtype == TARGET and not any(result.finished for result in batch_result):
            self._batch_result_buffer = list(batch_result)
            return None
        if mtype != DRAFT:
            return batch_result
        paired = []
        for target, draft in zip(self._batch_result_buffer or [], batch_result, strict=False):
            target.outputs.draft_top_logprobs = draft.outputs.draft_top_logprobs
            paired.append(target)
        self._batch_result_buffer = None
        return paired


class StockStep(MasksMixin, GapsMixin, AbortResultsMixin, RoutingMixin, CommonStep):
    """FastDeploy's step, to be mixed into a class that gives construction and the receive loop."""

"""The end of a request, the metrics of first and last tokens, aborts, and clearing everything."""

from __future__ import annotations

from typing import Any

from .state import State

RECOVERY_TEXT = "Recover is not supported, the result is incomplete!"  # what clients of upstream read
POLL_SECONDS = 0.005
OK, TRANSFER_FAILED = 200, 501


class FinishMixin(State):
    """Everything that is rare.

    Attributes
    ----------
    completes_prefill : bool
        Whether a request that a prefill instance hands over counts as completed there.
    """

    completes_prefill = True

    # ---- metrics -----------------------------------------------------------------------------------

    def _record_metrics(self, task: Any, current_time: float, token_ids: list[int]) -> None:
        """A step of a request: the whole gap is one observation, whatever the number of tokens."""
        metrics = self.fd.main_process_metrics
        if hasattr(task, "last_token_time") and task.last_token_time is not None:
            gap = current_time - task.last_token_time
            metrics.time_per_output_token.observe(gap)
            self._note_gap(task, gap)
        task.last_token_time = current_time
        metrics.generation_tokens_total.inc(len(token_ids))

    def _note_gap(self, task: Any, gap: float) -> None:
        """For the benchmark logger."""

    def _print_trace(self, task: Any, *events: str) -> None:
        for event in events:
            name = getattr(self.fd.LoggingEventName, event)
            self.fd.trace_print(name, task.request_id, getattr(task, "user", ""))

    def _record_first_token_metrics(self, task: Any, current_time: float) -> None:
        stamps, metrics = task.metrics, self.fd.main_process_metrics
        self._print_trace(task, "FIRST_TOKEN_GENERATED", "DECODE_START")
        metrics.time_to_first_token.observe(current_time - stamps.arrival_time)
        metrics.request_queue_time.observe(stamps.inference_start_time - stamps.preprocess_end_time)
        metrics.request_prefill_time.observe(current_time - stamps.inference_start_time)

    def _record_completion_metrics(self, task: Any, current_time: float) -> None:
        stamps, metrics = task.metrics, self.fd.main_process_metrics
        self._record_decode_time(task, current_time)
        self._print_trace(task, "POSTPROCESSING_START")
        metrics.request_success_total.inc()
        metrics.request_inference_time.observe(current_time - stamps.inference_start_time)
        metrics.request_generation_tokens.observe(self.tokens_counter[task.request_id])

    def _record_decode_time(self, task: Any, current_time: float) -> None:
        role, stamps = self.cfg.scheduler_config.splitwise_role, task.metrics
        if role in ("mixed", "decode"):
            self._observe_decode_time(stamps, current_time)
            self._print_trace(task, "INFERENCE_END")
        if role == "prefill":
            self._print_trace(task, "PREFILL_INFERENCE_END")
        elif role == "decode":
            self._print_trace(task, "DECODE_INFERENCE_END")

    def _observe_decode_time(self, stamps: Any, current_time: float) -> None:
        if stamps.engine_recv_first_token_time:
            decoded = current_time - stamps.engine_recv_first_token_time
            self.fd.main_process_metrics.request_decode_time.observe(decoded)

    # ---- the last token ----------------------------------------------------------------------------

    def _finish(self, slot: int, task: Any, result: Any, now: float, rid: str, kind: Any) -> None:
        """End a request.  A missing stamp or zero duration raises, and the slot stays taken: as upstream."""
        fd, name, stamps = self.fd, task.request_id, task.metrics
        result.finished = True
        result.trace_carrier = fd.tracing.trace_get_proc_propagate_context(rid=rid)
        fd.tracing.trace_report_span(
            name=fd.tracing.TraceSpanName.DECODE,
            rid=rid,
            start_time_ns=int(stamps.inference_start_time * 1e9),
            end_time_ns=int(fd.time.time() * 1e9),
            thread_finish_flag=True,
        )
        if kind.recovery:
            result.error_msg = RECOVERY_TEXT

        started = stamps.get_inference_start_time(kind.decode)
        stamps.cal_cost_time()
        elapsed, tokens = now - started, self.tokens_counter[name]
        ratio = tokens / elapsed
        first = stamps.first_token_time or 0
        on_gpu, on_cpu = getattr(stamps, "gpu_cache_token_num", 0), getattr(stamps, "cpu_cache_token_num", 0)
        fd.llm_logger.info(
            f"request {name} ended: {task.prompt_token_ids_len} input tokens, of them cached "
            f"{on_gpu + on_cpu} ({on_gpu} GPU, {on_cpu} CPU), {tokens} output tokens, {ratio:.2f} a second, "
            f"first after {first:.2f} s ({first + stamps.time_in_queue:.2f} s with the queue), "
            f"{elapsed:.2f} s in all, prefill {kind.prefill}, recovery {kind.recovery}, "
            f"preempted {getattr(stamps, 'preempted_count', 0)} times"
        )
        fd.main_process_metrics.request_token_ratio.observe(ratio)
        fd.llm_logger.info(f"{self.resource_manager.info()}")
        if self.cfg.speculative_config.method:
            self._compute_speculative_status(result)
        if self.completes_prefill or not kind.prefill:
            self._record_completion_metrics(task, now)
        fd.llm_logger.info(f"request {name}: end token, recycling")
        caching = self.cfg.cache_config
        if (
            fd.envs.ENABLE_V1_KVCACHE_SCHEDULER
            and caching.enable_prefix_caching
            and caching.enable_output_caching
        ):
            self.resource_manager.cache_output_tokens(task)
        self._hand_over_routing(name, task, result, kind.prefill)
        self._recycle_resources(name, slot, task, result, kind.prefill)
        fd.llm_logger.info(f"request {name}: recycled")

    def _hand_over_routing(self, task_id: str, task: Any, result: Any, is_prefill: bool) -> None:
        """Expert routing of a request whose blocks are about to be freed."""

    def _recycle_resources(
        self, task_id: str, index: int, task: Any, result: Any = None, is_prefill: bool = False
    ) -> None:
        """Free the slot; on a prefill instance only after the cache has been transferred."""
        if is_prefill:
            self._wait_for_transfer(task_id, task, result)
        if self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            self.resource_manager.finish_requests_async(task_id)
        else:
            manager = self.resource_manager
            manager.stop_flags[index], manager.tasks_list[index] = True, None
            manager._recycle_block_tables(task)
            manager.req_dict.pop(task_id, None)
        self._set_resource_gauges()
        if task_id in self.tokens_counter:
            del self.tokens_counter[task_id]

    def _wait_for_transfer(self, task_id: str, task: Any, result: Any) -> None:
        """See the cache on its way, then pass the first token on."""
        fd = self.fd
        result.metrics.wait_for_sending_cache_time = fd.time.time()
        self._trace_transfer(task_id, task, "CHECK_CACHE_TRANSFER_START")
        if self._sends_through_storage():
            self._write_to_storage(task_id, task, result)
        else:
            self._poll_for_transfer(task_id, result)
        self._trace_transfer(task_id, task, "CHECK_CACHE_TRANSFER_END")
        result.metrics.send_request_output_to_decode_time = fd.time.time()
        self.split_connector.send_first_token(task.disaggregate_info, [result])

    def _sends_through_storage(self) -> bool:
        return bool(self.fd.envs.FD_PD_TRANSFER_VIA_STORAGE)

    def _write_to_storage(self, task_id: str, task: Any, result: Any) -> None:
        """Write the request's cache where the decode instance reads it."""
        if result.error_code != OK:
            return
        cache = self.resource_manager.cache_manager
        if not cache.write_all_cache_to_storage(task, include_output=False):
            result.error_code = TRANSFER_FAILED
            result.error_msg = f"P instance failed to write cache to storage for request {task_id}"

    def _poll_for_transfer(self, task_id: str, result: Any) -> None:
        """Wait until this request's transfer has ended.

        In the one token thread and without a limit, so that every other request waits as well: as upstream.
        """
        fd, statuses = self.fd, self.prefill_result_status
        while True:
            for name, status in self.engine_worker_queue.get_finished_req():
                fd.llm_logger.info(f"cache transfer of {name}: {status}")
                statuses[name] = status
            if task_id in statuses:
                break
            fd.time.sleep(POLL_SECONDS)
        status = self._answer(task_id)
        if status != "finished":
            self._tell_failed_transfer(task_id, result, status)

    def _answer(self, task_id: str) -> str:
        return self.prefill_result_status.pop(task_id)

    def _tell_failed_transfer(self, task_id: str, result: Any, status: str) -> None:
        result.error_code = TRANSFER_FAILED
        result.error_msg = f"PD Error: prefill failed to send cache to decode, {task_id}, {status}"

    def _trace_transfer(self, task_id: str, task: Any, event: str) -> None:
        self.fd.trace_print(getattr(self.fd.LoggingEventName, event), task_id, getattr(task, "user", ""))

    def _set_resource_gauges(self) -> None:
        metrics, manager = self.fd.main_process_metrics, self.resource_manager
        blocks = sum(len(task.block_tables) for task in manager.tasks_list if task)
        metrics.available_gpu_block_num.set(manager.total_block_number() - blocks)
        metrics.batch_size.set(manager.max_num_seqs - manager.available_batch())
        metrics.available_batch_size.set(manager.available_batch())

    # ---- without a last token ----------------------------------------------------------------------

    def clear_data(self) -> None:
        """Free every slot.  Results are dropped, and an empty slot without a flag raises: as upstream."""
        fd, manager = self.fd, self.resource_manager
        if fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            manager.clear_data()
        for slot in range(manager.max_num_seqs):
            if manager.stop_flags[slot]:
                continue
            task = manager.tasks_list[slot]
            name, pair = task.request_id, task.disaggregate_info
            outputs = fd.CompletionOutput(
                index=slot,
                send_idx=self.tokens_counter[name],
                token_ids=task.eos_token_ids,
                draft_token_ids=[],
            )
            stamps = fd.RequestMetrics(
                arrival_time=fd.time.time(), request_start_time=task.metrics.arrival_time
            )
            result = fd.RequestOutput(request_id=name, outputs=outputs, finished=True, metrics=stamps)
            is_prefill = pair is not None and pair["role"] == "prefill"
            self._hand_over_routing(name, task, result, is_prefill)
            self._recycle_resources(name, slot, task, result, is_prefill)
            fd.llm_logger.warning(f"request {name} was cleared")

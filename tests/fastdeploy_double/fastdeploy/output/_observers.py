"""What is told of a request at its end, where that is switched on: benchmark records and expert routing."""

import numpy as np


class ObserversMixin:
    def _record_completion_metrics(self, task, current_time):
        super()._record_completion_metrics(task, current_time)
        if not self._benchmark_logger:
            return
        from fastdeploy.metrics.benchmark_metrics_logger import CompletedRequestRecord

        stamps = task.metrics
        self._benchmark_logger.on_request_completed(
            CompletedRequestRecord(
                request_id=task.request_id,
                completion_time=current_time,
                arrival_time=stamps.arrival_time or 0.0,
                inference_start_time=stamps.inference_start_time or 0.0,
                first_token_time=stamps.engine_recv_first_token_time or 0.0,
                last_token_time=stamps.engine_recv_latest_token_time or current_time,
                input_len=getattr(task, "prompt_token_ids_len", 0) or 0,
                output_len=self.tokens_counter[task.request_id],
                num_cached_tokens=getattr(task, "num_cached_tokens", 0) or 0,
                itl_samples=getattr(task, "_itl_samples", []),
            )
        )

    def _finalize_routing(self, task_id, task, result, is_prefill=False):
        """Expert routing of a request, before its blocks are freed: in its result, or in a store."""
        config = self.cfg.routing_replay_config
        if result is None or not config.enable_routing_replay:
            return
        try:
            length = task.prompt_token_ids_len
            if not is_prefill:
                length += len(task.output_token_ids)
            if is_prefill or config.routing_store_type == "response":
                gathered = self._gather_routing_for_finished_request(task, length)
                if gathered is not None and (result.error_code == 200 or not is_prefill):
                    result.routing_data = gathered
            elif self.routing_cache_manager is not None:
                self.routing_cache_manager.on_request_finished(
                    request_id=task_id, block_table=task.block_tables, seq_len=length
                )
        except Exception as error:
            self.fd.llm_logger.warning(f"routing of {task_id} is lost: {error!r}")

    def _gather_routing_for_finished_request(self, task, seq_len):
        """One row for each token, from the host's copy of the cache; None if there is none."""
        if self.routing_host_view is None:
            return None
        size = self._routing_block_size
        position = np.arange(seq_len)
        return self.routing_host_view.gather(
            np.array(task.block_tables)[position // size] * size + position % size
        )

"""The token thread: its start and its two receive loops."""

import copy
import threading
import time
import traceback

import numpy as np

import fastdeploy.metrics.trace as tracing

K = 20


class LoopsMixin:
    """Receives forever; whatever a batch raises is logged, and the batch is lost."""

    def _set_up(self):
        """The end of the chain of what features set."""

    def run(self):
        """Start the token thread."""
        assert self.resource_manager is not None, "set_resource_manager comes before run"
        if self.worker is not None:
            raise Exception("the token thread runs already")
        use_zmq = self.fd.envs.FD_USE_GET_SAVE_OUTPUT_V1
        loop = self.process_sampling_results_use_zmq if use_zmq else self.process_sampling_results
        self.worker = threading.Thread(target=loop, daemon=True)
        self.worker.start()

    def process_sampling_results(self):
        """The message-queue loop."""
        tracing.trace_set_thread_info("Token Processor")
        from fastdeploy.model_executor.ops import gpu as ops

        rank = self.cfg.parallel_config.local_data_parallel_id
        while True:
            try:
                if not self._receive(ops, rank):
                    continue
                with self.health_lock:
                    self.timestamp_for_alive_before_handle_batch = time.time()
                    self.timestamp_for_alive_after_handle_batch = None
                self._process_batch_output()
                with self.health_lock:
                    self.timestamp_for_alive_before_handle_batch = None
                    self.timestamp_for_alive_after_handle_batch = time.time()
            except Exception as error:
                self.fd.llm_logger.info(f"a step was lost: {error} {traceback.format_exc()}")

    def _receive(self, ops, rank):
        """Wait for a message; False if the op reports that there is none."""
        parallel, wait = self.cfg.parallel_config, True
        if self.speculative_decoding and not self.use_logprobs:
            every_rank = parallel.enable_expert_parallel and parallel.data_parallel_size > 1
            ops.speculate_get_output(self.output_tokens, rank, wait, every_rank)
            return every_rank or self.output_tokens[0] != -2  # no test under EP and DP, as upstream
        if self.use_logprobs:
            op = ops.speculate_get_output_topk if self.speculative_decoding else ops.get_output_topk
            op(self.output_tokens, self.output_scores, self.output_ranks, K, rank, wait)
        elif parallel.data_parallel_size > 1:
            ops.get_output_ep(self.output_tokens, rank, wait)
        else:
            ops.get_output(self.output_tokens, rank, wait)
        if self.output_tokens[0, 0] == -2:
            return False
        if not self.speculative_decoding:
            self.fd.llm_logger.debug(f"rank {rank} received {self.output_tokens[0, 0]}")
        return True

    def process_sampling_results_use_zmq(self):
        """The socket loop; a rank that does not read spins, as upstream."""
        if self.speculative_decoding:
            raise NotImplementedError("FD_USE_GET_SAVE_OUTPUT_V1 has no speculative decoding")
        parallel = self.cfg.parallel_config
        while True:
            try:
                everywhere = parallel.enable_expert_parallel and parallel.data_parallel_size > 1
                if everywhere or parallel.local_data_parallel_id == 0:
                    data = self.zmq_server.recv_pyobj()
                    assert isinstance(data, list)
                    self._reschedule_preempt_task_use_zmq(data)
                    self.postprocess(self._process_batch_output_use_zmq(data))
            except Exception as error:
                self.fd.llm_logger.error(
                    f"message {data}: {error}"
                )  # NameError if the first one fails, as upstream

    def _reschedule_preempt_task_use_zmq(self, datas):
        """Queue preempted requests again whose slots the worker no longer mentions."""
        if not self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            return
        manager, mentioned = self.resource_manager, {data.batch_id for data in datas}
        for name in list(manager.to_be_rescheduled_request_id_set):
            if manager.requests[name].idx not in mentioned:
                manager.reschedule_preempt_task(name)

    def _process_batch_output_use_zmq(self, receive_datas):
        """Results of a pickled step: one token each, no speculation, no pooling."""
        fd, results = self.fd, []
        for data in receive_datas:
            slot = data.batch_id
            if self.resource_manager.stop_flags[slot]:
                continue
            task = self.resource_manager.tasks_list[slot]
            token = None if data.tokens is None else int(data.tokens[-1])
            if token is not None and token < 0:
                if self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER and token == fd.PREEMPTED_TOKEN_ID:
                    self._let_go(task.request_id, task)
                continue
            is_decode = self.cfg.scheduler_config.splitwise_role == "decode"
            if is_decode and self._is_discarded(task.request_id):
                continue
            results.append(self._socket_result(slot, task, data))
        return results

    def _socket_result(self, slot, task, data):
        fd, name, now = self.fd, task.request_id, time.time()
        if self.tokens_counter[name] == 0:
            task.metrics.record_recv_first_token()
            task.metrics.cal_cost_time()
            metrics = copy.copy(task.metrics)
            self._record_first_token_metrics(task, now)
        else:
            task.metrics.record_recv_token()
            metrics = copy.copy(task.metrics)
        outputs = fd.CompletionOutput(
            index=slot, send_idx=self.tokens_counter[name], token_ids=[], draft_token_ids=[]
        )
        result = fd.RequestOutput(
            request_id=name, outputs=outputs, finished=False, metrics=metrics, ic_req_data=task.ic_req_data
        )
        if self.use_logprobs and getattr(data, "logprobs", None) is not None:
            outputs.top_logprobs = data.logprobs.tolists()
            outputs.logprob = float(outputs.top_logprobs.logprobs[0][0])
        if self.tokens_counter[name] == 0:
            result.prompt = task.messages
            result.num_cached_tokens = task.num_cached_tokens
        pair = task.disaggregate_info
        is_prefill = pair is not None and pair["role"] == "prefill"
        return self._process_per_token(task, slot, np.asarray(data.tokens), result, is_prefill)

    def _process_per_token(self, task, batch_id, token_ids, result, is_prefill):
        """Append tokens until one ends the request."""
        fd, name, now = self.fd, task.request_id, time.time()
        tokens = token_ids.tolist()
        self._record_metrics(task, now, tokens)
        for token in tokens:
            recovery = token == fd.RECOVERY_STOP_SIGNAL
            self.tokens_counter[name] += 1
            if not recovery:
                result.outputs.token_ids.append(token)
                task.output_token_ids.append(token)
            if token in task.eos_token_ids or is_prefill or recovery:
                result.finished = True
                self._record_completion_metrics(task, now)
                self._recycle_resources(name, batch_id, task, result, is_prefill)
                break
        return result

"""The socket loop (FD_USE_GET_SAVE_OUTPUT_V1): steps come as pickled lists of objects, one a request."""

import copy
import time


class StreamsMixin:
    """Results of objects; a step that raises is lost for every request, as upstream."""

    def process_sampling_results_use_zmq(self):
        """Receive forever; a rank that does not read spins, as upstream."""
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
            except Exception as error:  # UnboundLocalError if the very first receive fails, as upstream
                self.fd.llm_logger.error(f"message {data}: {error}")

    def _reschedule_preempt_task_use_zmq(self, datas):
        """Queue preempted requests again whose slots the worker no longer mentions."""
        if not self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            return
        manager, mentioned = self.resource_manager, {data.batch_id for data in datas}
        for name in list(manager.to_be_rescheduled_request_id_set):
            if manager.requests[name].idx not in mentioned:
                manager.reschedule_preempt_task(name)

    def _process_batch_output_use_zmq(self, receive_datas):
        """The results of a step."""
        results = []
        for data in receive_datas:
            if self.resource_manager.stop_flags[data.batch_id]:
                continue
            task = self.resource_manager.tasks_list[data.batch_id]
            result = self._stream_result(data.batch_id, task, task.request_id, data)
            if result is not None:
                results.append(result)
        return results

    def _stream_result(self, slot, task, name, data):
        """What a client is told of its request; None if nothing."""
        managed = self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER
        code = 0 if data.tokens is None else data.tokens[-1]
        if code < 0:
            if managed and code == self.fd.PREEMPTED_TOKEN_ID:
                self._let_go(name, task)
            return None
        role = self.cfg.scheduler_config.splitwise_role
        if role == "decode" and self._is_discarded(name):
            return None
        now, sent = time.time(), self.tokens_counter[name]
        metrics = self._stream_stamps(task, now, sent, role)
        if task.pooling_params is not None:
            return self._pooled(slot, task, data.pooler_output, metrics)
        result = self._stream_output(slot, task, data, sent, metrics)
        pair = task.disaggregate_info
        is_prefill = pair is not None and pair["role"] == "prefill"
        result = self._process_per_token(task, slot, data.tokens, result, is_prefill)
        return result if not is_prefill or self.cfg.scheduler_config.name == "splitwise" else None

    def _stream_stamps(self, task, now, sent, role):
        if sent == 0:
            task.metrics.record_recv_first_token()
            task.metrics.cal_cost_time()
            metrics = copy.copy(task.metrics)
            self._record_first_token_metrics(task, now)
            return metrics
        task.metrics.record_recv_token()
        if sent == 1 and role == "decode":
            task.metrics.record_decode_recv_second_token()
        return copy.copy(task.metrics)

    def _pooled(self, slot, task, output, metrics):
        fd, name = self.fd, task.request_id
        result = fd.PoolingRequestOutput(
            request_id=name,
            finished=True,
            metrics=metrics,
            prompt_token_ids=task.prompt_token_ids,
            outputs=fd.PoolingOutput(data=output if output is None else output.tolist()),
        )
        self._hand_over_routing(name, task, result, False)
        self._recycle_resources(name, slot, task, result, False)
        return result

    def _stream_output(self, slot, task, data, sent, metrics):
        """A result without tokens."""
        fd = self.fd
        outputs = fd.CompletionOutput(index=slot, send_idx=sent, token_ids=[], draft_token_ids=[])
        result = fd.RequestOutput(
            request_id=task.request_id,
            outputs=outputs,
            finished=False,
            metrics=metrics,
            ic_req_data=task.ic_req_data,
        )
        if self.use_logprobs and data.logprobs is not None:
            try:
                rows = data.logprobs.tolists()
                outputs.logprob = float(rows.logprobs[0][0])
                outputs.top_logprobs = rows
            except Exception as error:
                fd.llm_logger.warning(f"no logprobs: {error!r}")
        if self.use_logprobs and data.prompt_logprobs is not None:
            result.prompt_logprobs = data.prompt_logprobs
        if getattr(data, "sampling_mask", None) is not None:
            outputs.sampling_mask = data.sampling_mask.tolist()
        if sent == 0:
            if task.messages is not None:
                result.prompt = task.messages
            result.num_cached_tokens = task.num_cached_tokens
            if task.multimodal_inputs:
                for name in ("num_input_image_tokens", "num_input_video_tokens"):
                    setattr(result, name, task.multimodal_inputs.get(name, 0))
        return result

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
                if recovery:
                    result.error_msg = "Recover is not supported, the result is incomplete!"
                decodes = self.cfg.scheduler_config.splitwise_role == "decode"
                started = task.metrics.get_inference_start_time(decodes)
                task.metrics.cal_cost_time()
                self._observe_ratio(self.tokens_counter[name] / (now - started))
                if self.completes_prefill or not is_prefill:
                    self._record_completion_metrics(task, now)
                self._hand_over_routing(name, task, result, is_prefill)
                self._recycle_resources(name, batch_id, task, result, is_prefill)
                break
        return result

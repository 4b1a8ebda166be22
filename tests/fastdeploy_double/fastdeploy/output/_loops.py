"""The token thread: its start and the message-queue loop; the socket loop is in _streams.py."""

import threading
import time
import traceback

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

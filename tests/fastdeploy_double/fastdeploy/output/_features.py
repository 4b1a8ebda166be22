"""Features that not every version has: one class for each, with what its construction sets."""

import numpy as np

from fastdeploy._shapes import recording
from fastdeploy.inter_communicator.zmq_server import PULL, ZmqIpcServer
from tests.restated.optional import (
    AbortResultsMixin,
    GapsMixin,
    MasksMixin,
    RoutingMixin,
)


class SamplingMaskMixin(MasksMixin):
    """Sampling masks over a socket of their own."""

    def _set_up(self):
        super()._set_up()
        self.use_sampling_mask = getattr(self.cfg.model_config, "enable_keep_sampling_mask", False)
        if self.use_sampling_mask and not self.fd.envs.FD_USE_GET_SAVE_OUTPUT_V1:
            rank = self.cfg.parallel_config.local_data_parallel_id
            port = self.cfg.parallel_config.engine_worker_queue_port[rank]
            self.sampling_mask_zmq_server = ZmqIpcServer(
                name=f"sampling_mask_output_rank_{rank}_{port}", mode=PULL
            )


class BenchmarkMixin(GapsMixin):
    """Tells the benchmark logger of a request."""

    def _set_up(self):
        super()._set_up()
        self._benchmark_logger = None

    def set_benchmark_logger(self, benchmark_logger):
        self._benchmark_logger = benchmark_logger

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


class RoutingReplayMixin(RoutingMixin):
    """Gathers the expert routing of a request."""

    def _set_up(self):
        super()._set_up()
        self.routing_host_view = None
        self._routing_host_view_init_attempted = False
        self.routing_cache_manager = None

    def _init_routing_host_view(self):
        """The double's view is set by tests."""

    def _finalize_routing(self, task_id, task, result, is_prefill=False):
        """Expert routing of a request, before its blocks are freed: in its result, or in a store."""
        config = self.cfg.routing_replay_config
        if result is None or not config.enable_routing_replay:
            return
        try:
            length = task.prompt_token_ids_len
            if not is_prefill:
                ids = task.output_token_ids
                length += len(ids) - (ids[-1] in task.eos_token_ids)  # the end token has no experts
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


def optional_classes():
    """Those that the recorded version has, each known by a method or an attribute."""
    told = recording()["token_processor"]
    known = {*told["methods"], *told["attributes"]}
    choices = {
        "set_benchmark_logger": BenchmarkMixin,
        "_finalize_routing": RoutingReplayMixin,
        "use_sampling_mask": SamplingMaskMixin,
        "_put_abort_results": AbortResultsMixin,
    }
    return [cls for name, cls in choices.items() if name in known]

"""The stock token processor: construction, receive loops, health.  The step is tests.restated.

What the recorded version does otherwise is in _versions.py; names and methods that it lacks are left out.

The step looks its names up in this module at each call, so a test may patch them here.
"""
# ruff: noqa: F401

import copy
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import paddle

import fastdeploy.metrics.trace as tracing
from fastdeploy import envs
from fastdeploy._shapes import recording
from fastdeploy.config import PREEMPTED_TOKEN_ID
from fastdeploy.engine.request import (
    CompletionOutput,
    PoolingOutput,
    PoolingRequestOutput,
    Request,
    RequestMetrics,
    RequestOutput,
    RequestStatus,
    SpeculateMetrics,
)
from fastdeploy.inter_communicator.zmq_server import PULL, ZmqIpcServer
from fastdeploy.metrics.metrics import main_process_metrics
from fastdeploy.output._features import optional_classes
from fastdeploy.output._loops import LoopsMixin
from fastdeploy.output._streams import StreamsMixin
from fastdeploy.output._versions import step_classes
from fastdeploy.spec_decode import SpecMethod
from fastdeploy.trace.constants import LoggingEventName
from fastdeploy.trace.trace_logger import print as trace_print
from fastdeploy.utils import get_base_request_id, llm_logger, spec_logger
from fastdeploy.worker.output import LogprobsLists

NOT_IN_ALL = {"PREEMPTED_TOKEN_ID", "RequestStatus", "SpecMethod", "get_base_request_id", "tracing"}
_CONSTANTS = recording()["module"]["constants"]
RECOVERY_STOP_SIGNAL = _CONSTANTS["RECOVERY_STOP_SIGNAL"]
MAX_DRAFT_TOKENS = _CONSTANTS["MAX_DRAFT_TOKENS"]
SPECULATE_MAX_BSZ = _CONSTANTS["SPECULATE_MAX_BSZ"]
MAX_BSZ = _CONSTANTS["MAX_BSZ"]
K = _CONSTANTS["K"]


class TokenProcessor(*optional_classes(), *step_classes(), StreamsMixin, LoopsMixin):
    """Receives steps and turns them into results."""

    fd = sys.modules[__name__]

    def __init__(self, cfg, cached_generated_tokens, engine_worker_queue, split_connector):
        paddle.device.set_device("cpu")
        self.cfg = cfg
        self.cached_generated_tokens = cached_generated_tokens
        self.engine_worker_queue = engine_worker_queue
        self.split_connector = split_connector
        self.resource_manager = None
        self.tokens_counter = Counter()

        self.speculative_decoding = cfg.speculative_config.method is not None
        self.use_logprobs = cfg.model_config.enable_logprob
        self.enable_draft_logprob = cfg.speculative_config.enable_draft_logprob
        self._open_sockets()
        self._allocate()

        self.worker = None
        self.executor = ThreadPoolExecutor(max_workers=1)
        self._finalizer = weakref.finalize(self, self._cleanup_resources)  # holds self forever, as upstream
        self.prefill_result_status = {}
        self._batch_result_buffer = None
        self.statics_start_time = time.time()
        for counter in (
            *("number_of_tasks", "number_of_input_tokens", "number_of_output_tokens", "total_step"),
            *("speculative_stats_step", "num_draft_tokens", "num_accepted_tokens", "num_emitted_tokens"),
            "max_num_emitted_tokens",
        ):
            setattr(self, counter, 0)
        self.total_step_per_request = {}
        self.accept_token_num_per_head_per_request = {}
        self.accept_token_num_per_head = [0] * MAX_DRAFT_TOKENS

        self.health_lock = threading.Lock()
        self.timestamp_for_alive_before_handle_batch = None
        self.timestamp_for_alive_after_handle_batch = None
        self.engine_output_token_hang = False
        self.scheduler_metrics_logger = None
        self._set_up()  # what features of the version have besides

    def _open_sockets(self):
        parallel = self.cfg.parallel_config
        rank = parallel.local_data_parallel_id
        if envs.FD_USE_GET_SAVE_OUTPUT_V1:
            port = parallel.local_engine_worker_queue_port
            self.zmq_server = ZmqIpcServer(name=f"get_save_output_rank{rank}_{port}", mode=PULL)

    def _allocate(self):
        """The tensors that the receive ops fill."""
        columns, drafts = K + 1, MAX_DRAFT_TOKENS

        def full(shape, value, dtype):
            return paddle.full(shape=shape, fill_value=value, dtype=dtype)

        if not self.use_logprobs:
            slots = SPECULATE_MAX_BSZ
            shape = [slots * drafts + slots + 2] if self.speculative_decoding else [MAX_BSZ + 2, 1]
            self.output_tokens = full(shape, 2, "int64")
            return
        rows, header = (MAX_BSZ * drafts, MAX_BSZ + 3) if self.speculative_decoding else (MAX_BSZ, 2)
        self.output_tokens = full([rows * columns + header, 1], 2, "int64")
        self.output_scores = full([rows * columns, 1], 0.0, "float32")
        self.output_ranks = full([rows], 0, "int64")

    def _cleanup_resources(self):
        if hasattr(self, "executor"):
            self.executor.shutdown(wait=False)

    def set_resource_manager(self, resource_manager):
        assert self.resource_manager is None, "there is a resource manager already"
        self.resource_manager = resource_manager

    def set_scheduler_metrics_logger(self, scheduler_metrics_logger):
        self.scheduler_metrics_logger = scheduler_metrics_logger

    def healthy(self):
        """False once a batch has been in hand for longer than the timeout; idle or not, as upstream."""
        with self.health_lock:
            if self.timestamp_for_alive_after_handle_batch is not None:
                return not self.engine_output_token_hang
            began = self.timestamp_for_alive_before_handle_batch
            return began is None or time.time() - began <= envs.FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT


class WarmUpTokenProcessor(TokenProcessor):
    """Cannot be constructed, as upstream: it passes one argument of four."""

    def __init__(self, cfg):
        super().__init__(cfg)


for _name in NOT_IN_ALL - set(recording()["module"]["names"]):  # what the version's module does not have
    del globals()[_name]

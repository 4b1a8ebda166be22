"""Steady decode: a full batch of running requests, and one message that is processed again and again."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from fd_postproc.core.tensors import host_address

COLUMNS, DRAFTS, SLOTS, SPEC_SLOTS = 21, 6, 512, 256
CHANNELS = ("plain", "topk", "spec", "spec_topk_target", "spec_topk_draft")


@dataclass(frozen=True)
class Case:
    """What a step carries.

    Attributes
    ----------
    channel : one of CHANNELS
    columns : int
        Log-probability columns; 1 on channels without.
    accepted : int
        Tokens of each request.
    batch : int
        Requests, all of them running.
    """

    channel: str
    columns: int
    accepted: int
    batch: int

    @property
    def speculative(self) -> bool:
        return self.channel.startswith("spec")

    @property
    def logprobs(self) -> bool:
        return self.channel not in ("plain", "spec")


class Sink:
    """A scheduler that keeps the last results only."""

    def __init__(self) -> None:
        self.last: list[Any] = []

    def put_results(self, results: list[Any]) -> None:
        self.last = results


class Load:
    """A token processor with a full batch and its message in the tensors.

    Parameters
    ----------
    module : module or namespace
        ``fastdeploy.output.token_processor``, or something with its names.
    cls : type
        The token processor.
    case : Case
    """

    def __init__(self, module: Any, cls: type, case: Case) -> None:
        self.case, self.sink = case, Sink()
        self.processor = cls(
            cfg=configuration(case),
            cached_generated_tokens=self.sink,
            engine_worker_queue=None,
            split_connector=None,
        )
        self.tasks = [self._task(module, slot) for slot in range(case.batch)]
        self.processor.set_resource_manager(
            SimpleNamespace(
                stop_flags=[False] * case.batch,
                tasks_list=list(self.tasks),
                to_be_rescheduled_request_id_set=set(),
                to_be_aborted_req_id_set=set(),
            )
        )
        _fill(self.processor, case)
        self.reset()

    def _task(self, module: Any, slot: int) -> Any:
        now = time.time()
        stamps = module.RequestMetrics(
            arrival_time=now - 2.0,
            preprocess_start_time=now - 1.98,
            preprocess_end_time=now - 1.97,
            scheduler_recv_req_time=now - 1.96,
            engine_get_req_time=now - 1.95,
            add_req_to_resource_manager_time=now - 1.95,
            inference_start_time=now - 1.94,
        )
        stamps.record_recv_first_token()
        stamps.cal_cost_time()
        task = module.Request(
            request_id=f"chatcmpl-{slot:032x}_0", prompt_token_ids_len=1000, eos_token_ids=[2], metrics=stamps
        )
        task.status = module.RequestStatus.RUNNING_DECODE
        task.num_computed_tokens = task.need_prefill_tokens
        task.last_token_time = now
        return task

    def reset(self) -> None:
        """Make every request as young as at first."""
        for task in self.tasks:
            task.output_token_ids.clear()
            self.processor.tokens_counter[task.request_id] = 1

    def step(self) -> None:
        """Process the message once."""
        self.processor._process_batch_output()


def configuration(case: Case) -> Any:
    """The part of FastDeploy's configuration that a token processor reads."""
    speculative = {"method": "mtp" if case.speculative else None, "num_speculative_tokens": DRAFTS - 1}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            local_data_parallel_id=0,
            local_engine_worker_queue_port=9923,
            engine_worker_queue_port=[9923],
            data_parallel_size=1,
            enable_expert_parallel=False,
        ),
        speculative_config=SimpleNamespace(
            enable_draft_logprob=case.channel == "spec_topk_draft", **speculative
        ),
        model_config=SimpleNamespace(enable_logprob=case.logprobs, enable_keep_sampling_mask=False),
        scheduler_config=SimpleNamespace(splitwise_role="mixed", name="local"),
        cache_config=SimpleNamespace(
            enable_prefix_caching=True, enable_output_caching=False, block_size=64, total_block_num=4096
        ),
        routing_replay_config=SimpleNamespace(enable_routing_replay=False),
    )


def _fill(processor: Any, case: Case) -> None:
    """Write the message as the receive op would; ids avoid the end token."""
    rng = np.random.default_rng(0)
    tokens = flat_view(processor.output_tokens)
    batch, columns = case.batch, case.columns
    tokens[:2] = 1, batch
    if case.channel == "plain":
        tokens[2 : 2 + batch] = rng.integers(1000, 100_000, batch)
        return
    if case.channel == "spec":
        tokens[2 : 2 + batch] = case.accepted
        tokens[2 + SPEC_SLOTS :] = rng.integers(1000, 100_000, SPEC_SLOTS * DRAFTS)
        return
    scores, ranks = flat_view(processor.output_scores), flat_view(processor.output_ranks)
    ranks[:] = rng.integers(1, 30, len(ranks))
    scores[:] = -rng.exponential(3.0, len(scores))
    if case.channel == "topk":
        tokens[1] = batch | columns << 16
        tokens[2:] = rng.integers(1000, 100_000, len(tokens) - 2)
        return
    tokens[1:3] = (4 if case.channel == "spec_topk_draft" else 3) | columns << 8, batch
    tokens[3 : 3 + batch] = case.accepted
    tokens[3 + SLOTS :] = rng.integers(1000, 100_000, SLOTS * DRAFTS * COLUMNS)


def flat_view(tensor: Any) -> np.ndarray:
    """The elements of a host tensor (int64 or float32) as a flat array that shares them."""
    dtype, size = str(tensor.dtype).rpartition(".")[2], int(np.prod(tensor.shape))
    element = ctypes.c_int64 if dtype == "int64" else ctypes.c_float
    address = host_address(tensor, "tensor", dtype, size)
    return np.ctypeslib.as_array((element * size).from_address(address))

"""Fake surroundings of a token processor: requests, resource manager, scheduler, configuration."""

from __future__ import annotations

import functools
import inspect
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from .sandbox import Sandbox
from .steps import END, Script

HEADS = 2  # drafts a step in the speculative scripts

# Seconds before now.  So far apart that a wrong stamp cannot hide in the time that the trial takes.
_STAMPS = {
    "arrival_time": 1000.0,
    "preprocess_start_time": 960.0,
    "preprocess_end_time": 900.0,
    "scheduler_recv_req_time": 850.0,
    "engine_get_req_time": 800.0,
    "add_req_to_resource_manager_time": 750.0,
    "inference_start_time": 600.0,
    "decode_inference_start_time": 500.0,
}
_AS_GIVEN = ("messages", "multimodal_inputs", "ic_req_data", "disaggregate_info")


class Sink:
    """Scheduler that keeps the result objects of each put."""

    def __init__(self) -> None:
        self.puts: list[list[Any]] = []

    def put_results(self, results: list[Any]) -> None:
        self.puts.append(list(results))


class FakeConnector:
    """Connector that records the first tokens that a prefill instance sends."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    def send_first_token(self, pair: Any, results: list[Any]) -> None:
        self.sent.append(list(results))


class EngineWorkerQueue:
    """Answers of finished cache transfers, one for each question; [] when there are none left."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = [*answers]

    def get_finished_req(self) -> list[tuple[str, str]]:
        return [tuple(pair) for pair in self.answers.pop(0)] if self.answers else []


class FakeMasks:
    """The socket of the sampling masks: others in each step, and none for some slots."""

    def __init__(self, script: Script) -> None:
        self._slots, self._speculative, self._step = len(script.requests), script.speculative, 0

    def receive_pyobj_once(self, block: bool = False) -> tuple[None, dict[int, list[Any]]]:
        self._step += 1
        masks: dict[int, list[Any]] = {}
        for slot in range(self._slots):
            if (slot + self._step) % 5 != 4:
                mask = [slot, 1000 + self._step]
                masks[slot] = [mask, [*mask, 7]] if self._speculative else mask
        return None, masks


class FakeExperts:
    """The engine's view of the routed experts: some for each token in the cache."""

    def gather(self, slots: Any) -> Any:
        return (np.asarray(slots)[:, None, None] * np.arange(1, 7).reshape(2, 3) % 251).astype(np.uint8)


class FakeStorage:
    """Part of FastDeploy's cache manager: writes a prefilled request's cache into a storage."""

    def __init__(self, script: Script, calls: list[list[Any]]) -> None:
        self._fails = {request_id(slot) for slot, end in script.transfers.items() if end != "finished"}
        self._calls = calls

    def write_all_cache_to_storage(self, task: Any, include_output: bool = True) -> bool:
        self._calls.append(["write_all_cache_to_storage", task.request_id, include_output])
        return task.request_id not in self._fails


class Slots:
    """What a resource manager of FastDeploy's knows of requests, and the calls that were made, in order."""

    def __init__(self, slots: int, blocks: int = 100) -> None:
        self.max_num_seqs, self._blocks = slots, blocks
        self.stop_flags: Any = [True] * slots
        self.tasks_list: list[Any] = [None] * slots
        self.requests: dict[str, Any] = {}
        self.req_dict: dict[str, int] = {}
        self.to_be_rescheduled_request_id_set: set[str] = set()
        self.calls: list[list[Any]] = []

    def insert(self, task: Any, slot: int) -> None:
        """Give a request a slot, as the engine does."""
        self.tasks_list[slot], self.stop_flags[slot] = task, False
        self.requests[task.request_id] = task
        self.req_dict[task.request_id] = task.idx = slot

    def total_block_number(self) -> int:
        return self._blocks

    def available_batch(self) -> int:
        return sum(map(bool, self.stop_flags))

    def info(self) -> str:
        return "a resource manager that is none"


class FakeManager(Slots):
    """Used part of FastDeploy's resource manager; this one frees slots at once."""

    def __init__(self, script: Script, abort_set: str) -> None:
        super().__init__(len(script.requests))
        self.aborted: set[str] = set()
        self.gone: set[str] = set()
        setattr(self, abort_set, self.aborted)
        self.cache_manager = FakeStorage(script, self.calls)

    def _free(self, name: str) -> None:
        slot = self.req_dict.pop(name, None)
        if slot is not None:
            self.tasks_list[slot], self.stop_flags[slot] = None, True
        task = self.requests.pop(name, None)
        if task is not None:
            task.block_tables = []

    def finish_requests_async(self, name: str) -> None:
        self.calls.append(["finish_requests_async", name])
        self._free(name)

    def recycle_abort_task(self, name: str) -> None:
        self.calls.append(["recycle_abort_task", name])
        self.gone.add(name)
        self._free(name)
        self.aborted.discard(name)

    def reschedule_preempt_task(self, name: str, *more: Any) -> None:
        self.calls.append(["reschedule_preempt_task", name])
        self.gone.add(name)
        self._free(name)
        self.to_be_rescheduled_request_id_set.discard(name)

    def _recycle_block_tables(self, task: Any) -> None:
        self.calls.append(["_recycle_block_tables", task.request_id])
        task.block_tables = []

    def cache_output_tokens(self, task: Any) -> None:
        self.calls.append(["cache_output_tokens", task.request_id])


def configuration(script: Script) -> Any:
    """The part of FastDeploy's configuration that the class reads."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            local_data_parallel_id=0,
            local_engine_worker_queue_port=0,
            engine_worker_queue_port=[0],
            data_parallel_size=1,
            tensor_parallel_size=1,
            enable_expert_parallel=False,
        ),
        speculative_config=SimpleNamespace(
            method=script.method if script.speculative else None,
            num_speculative_tokens=HEADS,
            enable_draft_logprob=script.draft_logprobs,
        ),
        model_config=SimpleNamespace(enable_logprob=script.logprobs, enable_keep_sampling_mask=script.masks),
        scheduler_config=SimpleNamespace(
            splitwise_role=script.role, name="local", max_num_seqs=len(script.requests)
        ),
        cache_config=SimpleNamespace(
            enable_prefix_caching=True,
            enable_output_caching=script.caching,
            block_size=64,
            total_block_num=100,
        ),
        routing_replay_config=SimpleNamespace(
            enable_routing_replay=script.experts, routing_store_type="response"
        ),
        max_num_seqs=len(script.requests),
        splitwise_role=script.role,
    )


def request_id(slot: int) -> str:
    """Name of the request in a slot."""
    return f"trial-{slot}_0"


def make_task(box: Sandbox, slot: int, differing: dict[str, Any]) -> Any:
    """Make a running request with the given differences."""
    fd, now = box.module, box.clock.now
    stamps = {name: now - age for name, age in _STAMPS.items() if name in fields_of(fd.RequestMetrics)}
    metrics = fd.RequestMetrics(**stamps)
    if not differing.get("fresh"):
        metrics.engine_recv_first_token_time = now - 400.0
        metrics.cal_cost_time()
    task = _made(
        fd.Request,
        request_id=request_id(slot),
        prompt_token_ids=[5, 6, 7],
        prompt_token_ids_len=3,
        eos_token_ids=[END],
        metrics=metrics,
        **{name: differing[name] for name in _AS_GIVEN if name in differing},
    )
    task.num_cached_tokens = differing.get("num_cached_tokens", 0)
    task.num_computed_tokens = 3
    task.block_tables = [2 * slot + 1, 2 * slot]
    known = _statuses(fd)
    task.status = getattr(known, differing.get("status", "RUNNING"), getattr(known, "RUNNING", None))
    if "pooling_params" in differing:
        task.pooling_params = differing["pooling_params"]
    if "prefill_chunk_info" in differing:
        task.prefill_chunk_info = list(differing["prefill_chunk_info"])
    return task


def _made(cls: type, **arguments: Any) -> Any:
    """Make an instance; further required arguments are None, unknown ones are set as attributes."""
    known, _ = _parameters(cls)
    taken = {name: value for name, value in arguments.items() if name in known}
    made = cls(**{**wanted_by(cls), **taken})
    for name in arguments.keys() - taken.keys():
        setattr(made, name, arguments[name])
    return made


def wanted_by(cls: type) -> dict[str, None]:
    """The arguments of a class without a default, each with None."""
    return dict.fromkeys(_parameters(cls)[1])


@functools.lru_cache(maxsize=8)
def _parameters(cls: type) -> tuple[frozenset[str], tuple[str, ...]]:
    """Names of a class's arguments, and of those without a default."""
    parameters = [one for one in inspect.signature(cls).parameters.values() if one.kind < one.VAR_KEYWORD]
    return (
        frozenset(one.name for one in parameters),
        tuple(one.name for one in parameters if one.default is one.empty),
    )


def _statuses(fd: Any) -> Any:
    """RequestStatus, which older token processors do not import."""
    return getattr(fd, "RequestStatus", None) or sys.modules[fd.Request.__module__].RequestStatus


def fields_of(cls: type) -> Any:
    """Fields of a dataclass by name."""
    return getattr(cls, "__dataclass_fields__", {})

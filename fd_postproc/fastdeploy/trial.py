"""Runs canned steps on one class in a sandbox, and writes down everything that came of them."""

from __future__ import annotations

import ctypes
import functools
import inspect
import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..tensors import host_address
from .canned import END, Message, Script
from .sandbox import Sandbox

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
_LAST_TOKEN, _BETWEEN_STEPS = 3.0, 0.03
_TABLES = (
    *("total_step", "number_of_output_tokens", "num_draft_tokens", "num_accepted_tokens"),
    *("num_emitted_tokens", "max_num_emitted_tokens", "speculative_stats_step"),
    *("total_step_per_request", "accept_token_num_per_head_per_request", "accept_token_num_per_head"),
)


class Trial:
    """One script on one class.

    Parameters
    ----------
    box : Sandbox
        It is reset.
    cls : type
        ``box.module.TokenProcessor`` or a subclass of it.
    script : Script
    abort_set : str
        What FastDeploy calls the set of requests that are to be aborted.
    packed : bool
        Whether the class reads the number of columns from the header.
    """

    def __init__(self, box: Sandbox, cls: type, script: Script, abort_set: str, packed: bool) -> None:
        self.box, self.script, self.packed = box, script, packed
        fd = box.module
        box.reset()
        box.switches.update(
            ENABLE_V1_KVCACHE_SCHEDULER=int(script.v1),
            FD_ENABLE_INTERNAL_ADAPTER=int(script.adapter),
            FD_USE_GET_SAVE_OUTPUT_V1=False,
            FD_DEBUG=0,
        )
        self.scheduler, self.connector = _Scheduler(), _Connector()
        self.processor = processor = cls.__new__(cls)
        fd.TokenProcessor.__init__(
            processor,
            cfg=configuration(script),
            cached_generated_tokens=self.scheduler,
            engine_worker_queue=_Transfers(script),
            split_connector=self.connector,
        )
        self.manager = _Manager(len(script.requests), abort_set)
        processor.resource_manager = self.manager
        self.decode_tokens: list[int] = []
        if script.decode_log:
            log = SimpleNamespace(on_decode_tokens=self.decode_tokens.append)
            processor.scheduler_metrics_logger = log
        if script.masks:
            processor.sampling_mask_zmq_server = _Masks()
        self.tasks: list[Any] = []
        self.kept: list[tuple[str, Any, str]] = []
        for slot, differing in enumerate(script.requests):
            if differing is not None:
                self._insert(slot, differing)

    def _insert(self, slot: int, differing: dict[str, Any]) -> None:
        task = make_task(self.box, slot, differing)
        self.tasks.append(task)
        self.manager.tasks_list[slot], self.manager.stop_flags[slot] = task, False
        self.manager.requests[task.request_id] = task
        self.manager.req_dict[task.request_id] = task.idx = slot
        if not differing.get("fresh"):
            self.processor.tokens_counter[task.request_id] = differing.get("counter", 5)
            task.last_token_time = self.box.clock.now - _LAST_TOKEN

    def run(self) -> list[tuple[str, Any]]:
        """(place in words, value) of everything that can be compared, in order."""
        seen: list[tuple[str, Any]] = []
        for number, message in enumerate(self.script.messages, 1):
            where = f"step {number}"
            for slot in message.stopped:
                self.manager.stop_flags[slot] = True
            for slot in message.preempted:
                self.manager.to_be_rescheduled_request_id_set.add(request_id(slot))
            for slot in message.aborted:
                self.manager.aborted.add(request_id(slot))
            fill(self.processor, self.box.module, self.script, message, self.packed)
            before = len(self.scheduler.put)
            self.processor._process_batch_output()
            seen += self._results(where, self.scheduler.put[before:])
            seen.append((where, self._state()))
            self.box.clock.now += _BETWEEN_STEPS
        seen.append(("at the end", self._end()))
        return seen

    def _results(self, where: str, put: list[list[Any]]) -> list[tuple[str, Any]]:
        seen: list[tuple[str, Any]] = [(f"{where}, results put", [len(batch) for batch in put])]
        for result in (result for batch in put for result in batch):
            place = f"{where}, result of slot {getattr(result.outputs, 'index', None)}"
            seen.append((place, _frozen(result.to_dict())))
            seen.append((f"{place}, left out of to_dict", _frozen(_attributes(result))))
            self.kept.append((place, result, _numbers(result)))
        return seen

    def _pickled(self, result: Any) -> Any:
        """What another process reads.  Its classes must be FastDeploy's: it may not have our package."""
        fd, again = self.box.module, pickle.loads(pickle.dumps(result))
        classes = [type(one) for one in (again, again.outputs, again.metrics)]
        known = [fd.RequestOutput, fd.CompletionOutput, fd.RequestMetrics, type(None)]
        return {
            "attributes": _attributes(again),
            "equal": [again.outputs == result.outputs, result.outputs == again.outputs],
            "equal metrics": [again.metrics == result.metrics, result.metrics == again.metrics],
            "classes": [cls.__name__ if cls in known else repr(cls) for cls in classes],
        }

    def _state(self) -> dict[str, Any]:
        processor, manager = self.processor, self.manager
        return {
            "requests": {task.request_id: _task_state(task) for task in self.tasks},
            "slots": [task and task.request_id for task in manager.tasks_list],
            "stop flags": [bool(flag) for flag in manager.stop_flags],
            "calls of the resource manager": list(manager.calls),
            "tokens_counter": self._known(dict(processor.tokens_counter)),
            "trace events": [(event.name, *rest) for event, *rest in self.box.traced],
            "decode tokens": list(self.decode_tokens),
            **{name: self._known(getattr(processor, name, None)) for name in _TABLES},
        }

    def _known(self, table: Any) -> Any:
        """A table without requests that were let go: FastDeploy's class never frees what it has of them."""
        if not isinstance(table, dict):
            return list(table) if isinstance(table, list) else table
        return {name: table[name] for name in sorted(table) if name not in self.manager.gone}

    def _end(self) -> dict[str, Any]:
        return {
            "first tokens sent to the decode instance": [
                [result.to_dict() for result in results] for results in self.connector.sent
            ],
            "metric samples": self.box.metrics.samples(),
            "changed by a later step": [
                place for place, result, numbers in self.kept if _numbers(result) != numbers
            ],
            "pickled": [self._pickled(result) for _, result, _ in self.kept[-2:]],
            "stamps": {
                "metrics": [
                    {name: getattr(task.metrics, name) for name in _fields(type(task.metrics))}
                    for task in self.tasks
                ]
            },
        }


# ---- what surrounds the class ------------------------------------------------------------------------


class _Scheduler:
    def __init__(self) -> None:
        self.put: list[list[Any]] = []

    def put_results(self, results: list[Any]) -> None:
        self.put.append(list(results))


class _Connector:
    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    def send_first_token(self, pair: Any, results: list[Any]) -> None:
        self.sent.append(list(results))


class _Transfers:
    """Cache transfers that have ended."""

    def __init__(self, script: Script) -> None:
        self._answers = [(request_id(slot), outcome) for slot, outcome in script.transfers.items()]

    def get_finished_req(self) -> list[tuple[str, str]]:
        answers, self._answers = self._answers, []
        return answers


class _Masks:
    def receive_pyobj_once(self, block: bool = False) -> tuple[None, dict[int, list[int]]]:
        return None, {0: [7, 8, 9]}


class _Manager:
    """The part of FastDeploy's resource manager that the token processor uses; frees slots at once."""

    def __init__(self, slots: int, abort_set: str) -> None:
        self.max_num_seqs = slots
        self.stop_flags = [True] * slots
        self.tasks_list: list[Any] = [None] * slots
        self.requests: dict[str, Any] = {}
        self.req_dict: dict[str, int] = {}
        self.to_be_rescheduled_request_id_set: set[str] = set()
        self.aborted: set[str] = set()
        self.gone: set[str] = set()
        setattr(self, abort_set, self.aborted)
        self.calls: list[tuple[str, str]] = []

    def _free(self, name: str) -> None:
        slot = self.req_dict.pop(name, None)
        if slot is not None:
            self.tasks_list[slot], self.stop_flags[slot] = None, True
        self.requests.pop(name, None)

    def finish_requests_async(self, name: str) -> None:
        self.calls.append(("finish_requests_async", name))
        self._free(name)

    def recycle_abort_task(self, name: str) -> None:
        self.calls.append(("recycle_abort_task", name))
        self.gone.add(name)
        self._free(name)
        self.aborted.discard(name)

    def reschedule_preempt_task(self, name: str, *more: Any) -> None:
        self.calls.append(("reschedule_preempt_task", name))
        self.gone.add(name)
        self._free(name)
        self.to_be_rescheduled_request_id_set.discard(name)

    def _recycle_block_tables(self, task: Any) -> None:
        self.calls.append(("_recycle_block_tables", task.request_id))

    def cache_output_tokens(self, task: Any) -> None:
        self.calls.append(("cache_output_tokens", task.request_id))

    def total_block_number(self) -> int:
        return 100

    def available_batch(self) -> int:
        return sum(map(bool, self.stop_flags))

    def info(self) -> str:
        return "a trial"


def configuration(script: Script) -> Any:
    """What the class reads of FastDeploy's configuration."""
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
        routing_replay_config=SimpleNamespace(enable_routing_replay=False),
        max_num_seqs=len(script.requests),
        splitwise_role=script.role,
    )


def request_id(slot: int) -> str:
    return f"trial-{slot}_0"


def make_task(box: Sandbox, slot: int, differing: dict[str, Any]) -> Any:
    """A request that is running, but for what differs."""
    fd, now = box.module, box.clock.now
    stamps = {name: now - age for name, age in _STAMPS.items() if name in _fields(fd.RequestMetrics)}
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
        **{
            name: differing[name]
            for name in ("messages", "multimodal_inputs", "ic_req_data", "disaggregate_info")
            if name in differing
        },
    )
    task.num_cached_tokens = differing.get("num_cached_tokens", 0)
    task.num_computed_tokens = 3
    task.block_tables = [1, 2]
    task.status = getattr(fd.RequestStatus, differing.get("status", "RUNNING"))
    if "prefill_chunk_info" in differing:
        task.prefill_chunk_info = list(differing["prefill_chunk_info"])
    return task


def _made(cls: type, **arguments: Any) -> Any:
    """An instance; what older versions want besides is None."""
    return cls(**{**dict.fromkeys(_wanted(cls)), **arguments})


@functools.lru_cache(maxsize=8)
def _wanted(cls: type) -> tuple[str, ...]:
    """Names of the arguments that have no default."""
    parameters = inspect.signature(cls).parameters.values()
    return tuple(one.name for one in parameters if one.default is one.empty and one.kind < one.VAR_KEYWORD)


def _fields(cls: type) -> Any:
    return getattr(cls, "__dataclass_fields__", {})


def _attributes(result: Any) -> dict[str, Any]:
    """Attributes of a result and its output that to_dict leaves out or could make up."""
    outputs = result.outputs
    names = _fields(type(outputs)) or vars(outputs)
    return {name: value for name, value in vars(result).items() if name not in ("outputs", "metrics")} | {
        f"outputs.{name}": getattr(outputs, name) for name in names
    }


def _frozen(value: Any) -> Any:
    """The value as it is now: containers are copied, what is in them is not."""
    if type(value) is dict:
        return {key: _frozen(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_frozen(item) for item in value]
    if isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        parts = dict(zip(names, map(_frozen, value), strict=True))
        return {"class": type(value).__name__, **parts}
    return value


def _numbers(result: Any) -> Any:
    """What a later step could change by mistake."""
    outputs, metrics = result.outputs, result.metrics
    return _frozen(
        [
            *(outputs.token_ids, outputs.send_idx, outputs.logprob, outputs.top_logprobs),
            getattr(metrics, "engine_recv_latest_token_time", None),
        ]
    )


def _task_state(task: Any) -> dict[str, Any]:
    return {
        "output_token_ids": list(task.output_token_ids),
        "status": getattr(task.status, "name", task.status),
        "last_token_time": getattr(task, "last_token_time", None),
        "prefill_chunk_num": getattr(task, "prefill_chunk_num", None),
    }


# ---- the message -------------------------------------------------------------------------------------


def fill(processor: Any, fd: Any, script: Script, message: Message, packed: bool) -> None:
    """Write a message into the tensors, as FastDeploy's receive op does."""
    most_columns, drafts = fd.K + 1, fd.MAX_DRAFT_TOKENS
    tokens = _flat(processor.output_tokens, "int64")
    batch = len(message.slots)
    rows = [slot if isinstance(slot, tuple) else () for slot in message.slots]
    codes = [len(slot) if isinstance(slot, tuple) else slot for slot in message.slots]
    tokens[0] = 1
    if script.channel == "plain":
        tokens[1] = batch
        tokens[2 : 2 + batch] = [slot[0] if isinstance(slot, tuple) else slot for slot in message.slots]
        return
    if script.channel == "spec":
        tokens[1] = batch
        tokens[2 : 2 + batch] = codes
        ids = tokens[2 + fd.SPECULATE_MAX_BSZ :].reshape(fd.SPECULATE_MAX_BSZ, drafts)
        for slot, row in enumerate(rows):
            ids[slot, : len(row)] = row
        return
    columns = message.columns if packed else most_columns
    scores, ranks = _flat(processor.output_scores, "float32"), _flat(processor.output_ranks, "int64")
    if script.channel == "topk":
        tokens[1] = batch | columns << 16 if packed else batch
        used = batch * columns
        _write(
            tokens[2 : 2 + used].reshape(batch, 1, columns),
            scores[:used].reshape(batch, 1, columns),
            ranks[:batch].reshape(batch, 1),
            [row or (code,) for row, code in zip(rows, codes, strict=True)],
            columns,
        )
        return
    tokens[1] = message.flag | columns << 8 if packed else message.flag
    tokens[2] = batch
    tokens[3 : 3 + batch] = codes
    _write(
        tokens[3 + fd.MAX_BSZ :].reshape(fd.MAX_BSZ, drafts, most_columns),
        scores.reshape(fd.MAX_BSZ, drafts, most_columns),
        ranks.reshape(fd.MAX_BSZ, drafts),
        rows,
        columns,
    )


def _write(ids: Any, scores: Any, ranks: Any, rows: list[tuple[int, ...]], columns: int) -> None:
    for slot, row in enumerate(rows):
        for position, token in enumerate(row):
            ids[slot, position, :columns] = [token, *range(1000, 999 + columns)]
            scores[slot, position, :columns] = [-0.1 * token - 0.01 * column for column in range(columns)]
            ranks[slot, position] = token % 7 + 1
    if rows and len(rows[0]) > 0 and columns > 1:
        scores[0, 0, columns - 1] = -math.inf


def _flat(tensor: Any, dtype: str) -> Any:
    """The elements of a tensor in host memory as a flat array that shares them."""
    size = int(np.prod(tensor.shape))
    element = ctypes.c_int64 if dtype == "int64" else ctypes.c_float
    address = host_address(tensor, "tensor", dtype, size)
    return np.ctypeslib.as_array((element * size).from_address(address))

"""Runs steps on one class in a sandbox, and records all outcomes."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np

from fd_postproc.fastdeploy.engine.processor.transfers import STORAGE

from .fakes import (
    EngineWorkerQueue,
    FakeConnector,
    FakeExperts,
    FakeManager,
    FakeMasks,
    Sink,
    configuration,
    fields_of,
    make_task,
    request_id,
    wanted_by,
)
from .sandbox import Sandbox
from .step_messages import as_frame, fill, objects
from .steps import Script

_LAST_TOKEN, _BETWEEN_STEPS = 3.0, 0.03
_TABLES = (
    *("total_step", "number_of_output_tokens", "num_draft_tokens", "num_accepted_tokens"),
    *("num_emitted_tokens", "max_num_emitted_tokens", "speculative_stats_step"),
    *("total_step_per_request", "accept_token_num_per_head_per_request", "accept_token_num_per_head"),
)


class Trial:
    """Run of one script on one class.

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
            FD_USE_GET_SAVE_OUTPUT_V1=script.streamed,
            FD_DEBUG=0,
            **{STORAGE: int(script.storage)},
        )
        self.scheduler, self.connector = Sink(), FakeConnector()
        told = [] if script.storage else [(request_id(slot), end) for slot, end in script.transfers.items()]
        processor: Any = object.__new__(cls)
        self.processor = processor
        arguments = {
            **wanted_by(fd.TokenProcessor),  # None for what a newer FastDeploy wants besides
            "cfg": configuration(script),
            "cached_generated_tokens": self.scheduler,
            "engine_worker_queue": EngineWorkerQueue(told),
            "split_connector": self.connector,
        }
        fd.TokenProcessor.__init__(processor, **arguments)
        self.manager = FakeManager(script, abort_set)
        processor.resource_manager = self.manager
        self.decode_tokens: list[int] = []
        if script.decode_log:
            log = SimpleNamespace(on_decode_tokens=self.decode_tokens.append)
            processor.scheduler_metrics_logger = log
        if script.masks:
            processor.sampling_mask_zmq_server = FakeMasks(script)
        if script.experts:
            processor.routing_host_view, processor._routing_block_size = FakeExperts(), 40
        self.tasks: list[Any] = []
        self.kept: list[tuple[str, Any, str]] = []
        for slot, differing in enumerate(script.requests):
            if differing is not None:
                self._insert(slot, differing)

    def _insert(self, slot: int, differing: dict[str, Any]) -> None:
        task = make_task(self.box, slot, differing)
        self.tasks.append(task)
        self.manager.insert(task, slot)
        if not differing.get("fresh"):
            self.processor.tokens_counter[task.request_id] = differing.get("counter", 5)
            task.last_token_time = self.box.clock.now - _LAST_TOKEN

    def run(self) -> list[tuple[str, Any]]:
        """Pairs of (place in words, value) of all that can be compared, in order."""
        seen: list[tuple[str, Any]] = []
        for number, message in enumerate(self.script.messages, 1):
            where = f"step {number}"
            for slot in message.stopped:
                self.manager.stop_flags[slot] = True
            for slot in message.preempted:
                self.manager.to_be_rescheduled_request_id_set.add(request_id(slot))
            for slot in message.aborted:
                self.manager.aborted.add(request_id(slot))
            before = len(self.scheduler.puts)
            if self.script.streamed:
                self._stream(objects(self.box.module, self.script, message))
            else:
                fill(self.processor, self.box.module, self.script, message, self.packed)
                self.processor._process_batch_output()
            seen += self._results(where, self.scheduler.puts[before:])
            seen.append((where, self._state()))
            self.box.clock.now += _BETWEEN_STEPS
        seen.append(("at the end", self._end()))
        return seen

    def _stream(self, datas: list[Any]) -> None:
        """Process objects as the receive loop does."""
        processor, parts = self.processor, getattr(self.processor, "parts", None)
        if parts is None:
            processor._reschedule_preempt_task_use_zmq(datas)
            processor.postprocess(processor._process_batch_output_use_zmq(datas))
        elif len(self.scheduler.puts) % 2 or not datas:
            parts.streamed.process(datas)
        else:
            parts.streamed.process(parts.socket.opened(as_frame(datas)))

    def _results(self, where: str, put: list[list[Any]]) -> list[tuple[str, Any]]:
        seen: list[tuple[str, Any]] = [(f"{where}, results put", [len(batch) for batch in put])]
        for result in (result for batch in put for result in batch):
            place = f"{where}, result of slot {getattr(result.outputs, 'index', None)}"
            seen.append((place, _frozen(result.to_dict())))
            if not hasattr(result.outputs, "token_ids"):  # of a pooling model
                continue
            seen.append((f"{place}, left out of to_dict", _frozen(_attributes(result))))
            self.kept.append((place, result, _numbers(result)))
        return seen

    def _pickled(self, result: Any) -> Any:
        """The unpickled object as a process without our package has it."""
        fd, again = self.box.module, pickle.loads(pickle.dumps(result))
        classes = [type(one) for one in (again, again.outputs, again.metrics)]
        known = [fd.RequestOutput, fd.CompletionOutput, fd.RequestMetrics, type(None)]
        return {
            "attributes": _frozen(_attributes(again)),
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
        """A table without released requests, which FastDeploy's class never removes."""
        if not isinstance(table, dict):
            return list(table) if isinstance(table, list) else table
        return {name: table[name] for name in sorted(table) if name not in self.manager.gone}

    def _end(self) -> dict[str, Any]:
        return {
            "first tokens sent to the decode instance": [
                [_frozen(result.to_dict()) for result in results] for results in self.connector.sent
            ],
            "metric samples": self.box.metrics.samples(),
            "changed by a later step": [
                place for place, result, numbers in self.kept if _numbers(result) != numbers
            ],
            "pickled": [self._pickled(result) for _, result, _ in self.kept[-2:]],
            "stamps": {
                "metrics": [
                    {name: getattr(task.metrics, name) for name in fields_of(type(task.metrics))}
                    for task in self.tasks
                ]
            },
        }


def _attributes(result: Any) -> dict[str, Any]:
    """Attributes of a result and its output that to_dict omits or could change."""
    outputs = result.outputs
    names = fields_of(type(outputs)) or getattr(outputs, "__dict__", ())
    return {name: value for name, value in vars(result).items() if name not in ("outputs", "metrics")} | {
        f"outputs.{name}": getattr(outputs, name) for name in names
    }


_PLAIN = frozenset({int, float, str, bool, type(None)})


def _frozen(value: Any) -> Any:
    """A copy of the current value: containers are copied, their items are not."""
    if type(value) is dict:
        return {key: item if type(item) in _PLAIN else _frozen(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "rows": value.tolist()}
    if isinstance(value, list):
        return [item if type(item) in _PLAIN else _frozen(item) for item in value]
    if isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        parts = dict(zip(names, map(_frozen, value), strict=True))
        return {"class": type(value).__name__, **parts}
    return value


def _numbers(result: Any) -> Any:
    """Numbers that a later step could change by mistake."""
    outputs, metrics = result.outputs, result.metrics
    shown = [getattr(outputs, name, None) for name in ("token_ids", "send_idx", "logprob", "top_logprobs")]
    return _frozen([*shown, getattr(metrics, "engine_recv_latest_token_time", None)])


def _task_state(task: Any) -> dict[str, Any]:
    return {
        "output_token_ids": list(task.output_token_ids),
        "status": getattr(task.status, "name", task.status),
        "last_token_time": getattr(task, "last_token_time", None),
        "prefill_chunk_num": getattr(task, "prefill_chunk_num", None),
    }

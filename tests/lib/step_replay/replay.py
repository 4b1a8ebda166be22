"""Feeds the events of a trace to a token processor on the double."""

import contextlib
import importlib
import logging
import os
import sys
import time
from dataclasses import dataclass
from typing import Any
from unittest import mock

from fastdeploy import config
from fastdeploy.engine.request import Request, RequestMetrics, RequestStatus
from fastdeploy.metrics.metrics import main_process_metrics
from fastdeploy.model_executor.ops import gpu as ops
from fastdeploy.output import token_processor

from tests.lib import fakes
from tests.lib.step_replay.record import Recorder
from tests.lib.step_replay.tensors import fill, fill_empty
from tests.lib.step_replay.traces import payload

OPS = ("get_output", "get_output_ep", "get_output_topk", "speculate_get_output", "speculate_get_output_topk")
SETTLING = ("insert", "message", "empty_receive", "clear_data")  # a delayed finish takes effect before these


class EndOfScript(BaseException):
    """Ends the receive loop; no Exception, so that the loop cannot catch it."""


@dataclass(frozen=True)
class Step:
    """A step as recorded and as replayed."""

    number: int
    event: dict
    expected: dict
    actual: dict


def deliver_through_loop(replay, event):
    """Run the class's own receive loop for one message: its op finds the message, then the script ends."""
    mode, processor = replay.trace.mode, replay.processor
    calls = []

    def receive(op):
        def call(*arguments):
            if calls:
                raise EndOfScript
            calls.append(op)
            tensors = arguments[: 3 if mode["enable_logprob"] else 1]
            if "message" in event:
                fill(mode["channel"], tensors, payload(event))
            else:
                fill_empty(mode["channel"], tensors)

        return call

    with contextlib.ExitStack() as patches:
        for op in OPS:
            patches.enter_context(mock.patch.object(ops, op, receive(op)))
        with contextlib.suppress(EndOfScript):
            processor.process_sampling_results()
    return calls[0]


class Replay:
    """A trace on a class; a context manager, because the clock and the environment are the trace's inside.

    Parameters
    ----------
    trace : Trace
    cls : type
        The token processor, constructed and called as FastDeploy's engine does.
    deliver : callable, optional
        ``deliver(replay, event)`` gives a ``message`` or ``empty_receive`` event to ``replay.processor``,
        runs one step as the receive loop does, and returns the name of the receive op that was used.
    metrics_every : int, optional
        In which steps the metrics are collected, which is slow: in all of them, or in each nth.
    """

    def __init__(self, trace, cls, deliver=deliver_through_loop, metrics_every=1):
        self.trace, self.cls, self.deliver, self.metrics_every = trace, cls, deliver, metrics_every
        self.number = 0
        self.clock = 0.0
        self.raised = None

    def __enter__(self):
        mode = self.trace.mode
        with contextlib.ExitStack() as stack:
            environment = {
                "ENABLE_V1_KVCACHE_SCHEDULER": str(int(mode["v1_kvcache_scheduler"])),
                "FD_ENABLE_INTERNAL_ADAPTER": str(int(mode["internal_adapter"])),
                "FD_USE_GET_SAVE_OUTPUT_V1": "0",
                "FD_PD_TRANSFER_VIA_STORAGE": "0",
            }
            stack.enter_context(mock.patch.dict(os.environ, environment))
            stack.enter_context(mock.patch.object(time, "time", self._now))
            stack.enter_context(mock.patch.object(time, "sleep"))
            stack.enter_context(mock.patch.object(token_processor, "trace_print", self._print_trace))
            stack.enter_context(self._watch_logs())
            self._build()
            stack.callback(self._close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.close()

    def _build(self):
        mode = self.trace.mode
        main_process_metrics.reset()
        self.requests = {entry["request_id"]: make_request(entry) for entry in self.trace.requests}
        self.manager = fakes.ResourceManager(mode["max_num_seqs"], **mode["resource_manager"])
        self.scheduler, self.connector = fakes.Scheduler(), fakes.SplitConnector()
        self.transfers, self.masks = fakes.EngineWorkerQueue(), fakes.SamplingMaskSocket()
        self.decode_log, self.traced = fakes.SchedulerMetricsLogger(), []
        self.processor = self.cls(
            cfg=make_config(mode),
            cached_generated_tokens=self.scheduler,
            engine_worker_queue=self.transfers,
            split_connector=self.connector,
        )
        self.processor.set_resource_manager(self.manager)
        if mode["scheduler_metrics_logger"]:
            self.processor.set_scheduler_metrics_logger(self.decode_log)
        if mode["use_sampling_mask"]:
            self.processor.sampling_mask_zmq_server.close()
            self.processor.sampling_mask_zmq_server = self.masks
        self.recorder = Recorder(self)

    def _close(self):
        self.processor._finalizer()  # it keeps the object alive otherwise
        main_process_metrics.reset()

    def _now(self):
        return self.clock

    def _print_trace(self, event, request_id, user):
        self.traced.append([event.name, request_id, user])

    def _note(self, error, record):
        """Note the exception that is being handled when one of FastDeploy's loggers is called."""
        if self.raised is None:
            swallowed = "postprocess:" if record.levelno >= logging.ERROR else ""
            self.raised = swallowed + type(error).__name__

    @contextlib.contextmanager
    def _watch_logs(self):
        watch, logger = logging.Handler(), logging.getLogger("fastdeploy")
        watch.emit = lambda record: sys.exc_info()[0] and self._note(sys.exc_info()[1], record)
        logger.addHandler(watch)
        try:
            yield
        finally:
            logger.removeHandler(watch)

    def steps(self):
        """Walk through the events; a Step for each that has a record."""
        for event in self.trace.events:
            if any(kind in event for kind in SETTLING):
                self.manager.settle()
            if "after" not in event:
                self._apply(event)
                continue
            yield Step(self.number, event, {"op": event.get("op"), **event["after"]}, self._step(event))
            self.number += 1

    def end(self):
        """(recorded, replayed) state at the end."""
        return self.trace.end, self.recorder.end()

    def _step(self, event):
        self.clock, self.raised, op = event["clock"], None, None
        self.recorder.begin()
        if "clear_data" in event:
            try:
                self.processor.clear_data()
            except Exception as error:
                self.raised = type(error).__name__
        else:
            op = self.deliver(self, event)
        return {"op": op, **self.recorder.after()}

    def _apply(self, event):
        """An event that only changes state before the next step."""
        kind, value = next(iter(event.items()))
        manager = self.manager
        if kind == "insert":
            manager.insert(self.requests[value], event["slot"])
            if "tokens_counter" in event:
                self.processor.tokens_counter[value] = event["tokens_counter"]
        elif kind in ("preempt", "abort"):
            waiting = (
                manager.to_be_rescheduled_request_id_set
                if kind == "preempt"
                else manager.to_be_aborted_req_id_set
            )
            waiting.add(value)
            set_task(
                self.requests[value], {"status": "PREEMPTED", "num_computed_tokens": 0, "block_tables": []}
            )
        elif kind == "set_task":
            set_task(self.requests[value], {key: event[key] for key in event if key != "set_task"})
        elif kind == "stop_flag":
            manager.stop_flags[value] = event["value"]
        elif kind == "clear_slot":
            manager.tasks_list[value] = None
        elif kind == "forget_counter":
            if value in self.processor.tokens_counter:
                del self.processor.tokens_counter[value]
        elif kind == "sampling_mask":
            self.masks.waiting = None if value is None else dict(value)
        elif kind == "finished_cache_transfer":
            self.transfers.answers += value
        else:
            raise ValueError(f"{self.trace.name}: unknown event {kind!r}")


_ANOTHER_STATUS = {"RUNNING": "RUNNING_DECODE", "RUNNING_PREFILL": "RUNNING", "RUNNING_DECODE": "RUNNING"}


def status_of(name):
    """A status by name; versions know RUNNING, or RUNNING_PREFILL and RUNNING_DECODE."""
    return RequestStatus[name if name in RequestStatus.__members__ else _ANOTHER_STATUS[name]]


def set_task(request, attributes):
    """Set attributes of a request; the status by name."""
    for name, value in attributes.items():
        if name == "status":
            value = status_of(value)
        elif isinstance(value, list):
            value = list(value)
        setattr(request, name, value)


_SET_AFTER = ("num_cached_tokens", "need_prefill_tokens", "block_tables", "output_token_ids", "status")
_SET_AFTER += ("prefill_chunk_info", "pooling_params")


def make_request(entry):
    """A request from its recorded fields."""
    later = {key: entry[key] for key in _SET_AFTER if key in entry}
    fields = {key: value for key, value in entry.items() if key not in later}
    request = Request(**{**fields, "metrics": RequestMetrics(**entry["metrics"])})
    if "pooling_params" in later:  # of objects over ZeroMQ, in versions that know it
        pooling = importlib.import_module("fastdeploy.engine.pooling_params")
        later["pooling_params"] = pooling.PoolingParams(**later["pooling_params"])
    set_task(request, later)
    return request


def make_config(mode) -> Any:
    """The configuration of a trace."""
    cfg = config.FDConfig()
    cfg.speculative_config.method = mode["method"]
    cfg.speculative_config.num_speculative_tokens = mode["num_speculative_tokens"]
    cfg.speculative_config.enable_draft_logprob = mode["enable_draft_logprob"]
    cfg.model_config.enable_logprob = mode["enable_logprob"]
    cfg.model_config.enable_keep_sampling_mask = mode["use_sampling_mask"]
    cfg.scheduler_config.splitwise_role = mode["splitwise_role"]
    cfg.scheduler_config.name = mode["scheduler_name"]
    cfg.scheduler_config.max_num_seqs = mode["max_num_seqs"]
    cfg.cache_config.enable_prefix_caching = mode["enable_prefix_caching"]
    cfg.cache_config.enable_output_caching = mode["enable_output_caching"]
    cfg.parallel_config.data_parallel_size = mode["data_parallel_size"]
    cfg.parallel_config.enable_expert_parallel = mode["enable_expert_parallel"]
    return cfg

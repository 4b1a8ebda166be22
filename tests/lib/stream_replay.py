"""Replays the traces of `golden_streams`: steps that come as pickled objects (FD_USE_GET_SAVE_OUTPUT_V1)."""

import contextlib
import copy
import dataclasses
import gzip
import json
import lzma
import os
from functools import cache, partial
from types import SimpleNamespace
from unittest import mock

import numpy as np
import paddle
from fastdeploy.model_executor.pre_and_post_process import _build_stream_transfer_data as build
from fastdeploy.output.stream_transfer_data import DecoderState, StreamTransferData
from fastdeploy.worker.output import LogprobsTensors
from paddle.incubate import multiprocessing as reducing  # registers how tensors are pickled

from tests.lib import fakes
from tests.lib.paths import TESTS
from tests.lib.plugged import plugin_class, take
from tests.lib.step_replay import replay
from tests.lib.step_replay.compare import differences
from tests.lib.step_replay.record import Recorder
from tests.lib.step_replay.traces import Trace

FILE = TESTS / "golden_streams" / "traces.jsonl.xz"
OUTCOMES = FILE.with_name("outcomes.gz")
# The receive loop's and the log's doings, which are ours, and not recorded.
OURS = ("op", "raised", "swallowed", "health", "transfer_polls", "error_logs", "loop_died")
# FastDeploy's class refuses it; what ours gets then are no objects: test_streamed_drafts.py.
SPECULATIVE = "v1_h_speculative"
Pickler = reducing.reductions.ForkingPickler


@cache
def traces():
    """Every trace by name."""
    found = {}
    for line in lzma.decompress(FILE.read_bytes()).decode().splitlines():
        told = json.loads(line)
        found[told["name"]] = Trace(*(told[key] for key in ("name", "mode", "requests", "events", "end")))
    return found


# ---- what a worker sends -------------------------------------------------------------------------------


def tensors(rows):
    """LogprobsTensors of lists."""
    if rows is None:
        return None
    parts = ((rows["ids"], "int64"), (rows["scores"], "float32"), (rows["ranks"], "int64"))
    return LogprobsTensors(*(paddle.to_tensor(np.array(part, dtype), place="cpu") for part, dtype in parts))


def prompts(told):
    """A list with LogprobsTensors for some slots."""
    if told is None:
        return None
    listed = [None] * told["length"]
    for slot, rows in told["slots"]:
        listed[slot] = tensors(rows)
    return listed


def arguments(stream):
    """Arguments of the worker's builder for a `stream` event."""
    if "tokens" not in stream:
        dtype = stream.get("pooler_dtype", "float32")
        outputs = [
            None if output is None else paddle.to_tensor(output, dtype="float32", place="cpu").astype(dtype)
            for output in stream["pooler_outputs"]
        ]
        return {"output_tokens": None, "pooler_outputs": outputs}
    masks = stream.get("sampling_mask")
    return {
        "output_tokens": paddle.to_tensor(np.array(stream["tokens"], "int64").reshape(-1, 1), place="cpu"),
        "logprobs": tensors(stream.get("logprobs")),
        "prompt_logprobs_list": prompts(stream.get("prompt_logprobs")),
        "sampling_mask": masks if masks is None else [np.array(mask, "int64") for mask in masks],
    }


def handmade(entries):
    """StreamTransferData that no worker sends."""

    def array(values, dtype):
        return None if values is None else np.array(values, dtype)

    return [
        StreamTransferData(
            decoder_state=DecoderState.TEXT,
            batch_id=entry["batch_id"],
            tokens=array(entry.get("tokens"), "int64"),
            logprobs=tensors(entry.get("logprobs")),
            prompt_logprobs=tensors(entry.get("prompt_logprobs")),
            sampling_mask=array(entry.get("sampling_mask"), "int64"),
            pooler_output=array(entry.get("pooler_output"), "float32"),
        )
        for entry in entries
    ]


def payload(event, builder=build):
    """The object that is sent for an event."""
    if "stream" in event:
        return builder(**arguments(event["stream"]))
    return handmade(event["handmade"]) if "handmade" in event else event["other_payload"]


def message(data):
    """The bytes that FastDeploy's client sends for an object."""
    return bytes(Pickler.dumps({"__meta": {"send_ts": 0.0}, "data": data}))


# ---- the replay ----------------------------------------------------------------------------------------


class EndOfScript(BaseException):
    """No more messages."""


class Socket:
    """FastDeploy's end of the socket: gives one message, then the script ends."""

    address, closed = "ipc:///nowhere", False

    def __init__(self):
        self.waiting = []
        self.socket = self

    def recv(self, flags=0):
        if not self.waiting:
            raise EndOfScript
        told = self.waiting.pop(0)
        if isinstance(told, Exception):
            raise told
        return told

    def poll(self, patience):
        return bool(self.waiting)

    def setsockopt(self, option, value):
        pass

    def close(self):
        self.closed = True


class Scheduler(fakes.Scheduler):
    fails = False

    def put_results(self, results):
        if self.fails:
            self.fails = False
            raise RuntimeError("the scheduler of a test")
        super().put_results(results)


def as_sent(result):
    """to_dict at this moment, arrays included; the class of pooling results."""
    told = copy.deepcopy(fakes.frozen(result.to_dict()))
    if type(result).__name__ == "PoolingRequestOutput":
        told["extra"] = {"class": "PoolingRequestOutput"}
    return told


class Manager(fakes.ResourceManager):
    """With a cache manager that writes into a storage."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.cache_manager, self.answers = self, []

    def write_all_cache_to_storage(self, task, include_output=True):
        self.calls.append(
            ["cache_manager.write_all_cache_to_storage", task.request_id, {"include_output": include_output}]
        )
        return self.answers.pop(0) if self.answers else True


class StreamRecorder(Recorder):
    def begin(self):
        super().begin()
        self.replay.benchmark.clear()

    def after(self):
        with mock.patch.dict(self.replay.trace.mode, use_sampling_mask=False):
            record = super().after()
        if self.replay.benchmark:
            record["benchmark"] = copy.deepcopy(self.replay.benchmark)
        record.pop("spec_tables", None)
        return record


def one_message(replayed, event):
    """A message to our class, as its loop takes it in; or what its loop does without one."""
    processor = replayed.processor
    if "receive_error" in event:
        processor.zmq_server.waiting.append({"OSError": OSError}[event["receive_error"]]("a test"))
    elif "start" not in event:
        take(processor, message(payload(event, replayed.builder)))
        return
    with contextlib.suppress(EndOfScript):
        processor.process_sampling_results_use_zmq()


class StreamReplay(replay.Replay):
    """A trace of objects on a class.

    Parameters
    ----------
    builder : callable, optional
        The worker's builder.
    """

    def __init__(self, trace, cls, deliver=one_message, builder=build):
        super().__init__(trace, cls, deliver)
        self.builder, self.benchmark = builder, []

    def __enter__(self):
        environment = {
            "FD_USE_GET_SAVE_OUTPUT_V1": "1",
            "FD_PD_TRANSFER_VIA_STORAGE": str(int(self.trace.mode["pd_transfer_via_storage"])),
        }
        self._environment = environment
        return super().__enter__()

    def _build(self):
        os.environ.update(self._environment)  # what `Replay` has patched, and restores
        mode = self.trace.mode
        stand_ins = {"ResourceManager": Manager, "Scheduler": partial(Scheduler, as_sent)}
        stand_ins["SplitConnector"] = partial(fakes.SplitConnector, as_sent)
        with (
            mock.patch.multiple(replay.fakes, **stand_ins),
            mock.patch.dict(mode, use_sampling_mask=False),
        ):
            super()._build()
        processor = self.processor
        processor.use_sampling_mask = mode["use_sampling_mask"]
        processor.zmq_server = Socket()
        parallel = processor.cfg.parallel_config
        parallel.local_data_parallel_id = mode["local_data_parallel_id"]
        if mode["benchmark_logger"]:
            note = SimpleNamespace(
                on_request_completed=lambda record: self.benchmark.append(dataclasses.asdict(record))
            )
            processor.set_benchmark_logger(note)
        self.recorder = StreamRecorder(self)

    def _step(self, event):
        self.manager.settle()
        return super()._step(event)

    def _apply(self, event):
        if "storage_answer" in event:
            self.manager.answers += event["storage_answer"]
        elif "put_fails" in event:
            self.scheduler.fails = True
        else:
            name = event.get("preempt")
            if name is not None and name not in self.requests:  # only the set gets it
                self.manager.to_be_rescheduled_request_id_set.add(name)
            else:
                super()._apply(event)


# ---- what FastDeploy loses -----------------------------------------------------------------------------


@cache
def outcomes():
    """By trace and step (or ``end``), what is right where FastDeploy's class has lost something."""
    return json.loads(gzip.decompress(OUTCOMES.read_bytes()))


def wrong_on(cls, name, deliver, seen=lambda record: record, **options):
    """What our class does wrong in a trace, in the first wrong step or at the end; how many were compared."""
    trace, right, compared = traces()[name], outcomes().get(name, {}), 0
    with StreamReplay(trace, cls, deliver, **options) as replayed:
        for step in replayed.steps():
            due = right.get(str(step.number), step.expected)
            lines = differences(seen(due), seen(step.actual), ignore=OURS, sum_tolerance=1e-9)
            if lines:
                return [f"step {step.number}: {line}" for line in lines], compared
            compared += 1
        recorded, actual = replayed.end()
        lines = differences(right.get("end", recorded), actual, sum_tolerance=1e-9)
        return [f"end: {line}" for line in lines], compared


def main():
    """Write the outcomes anew, from our class: whoever runs it shows what has changed."""
    found = {}
    for name in (name for name in traces() if name != SPECULATIVE):
        right = found.setdefault(name, {})
        with StreamReplay(traces()[name], plugin_class(), one_message) as replayed:
            for step in replayed.steps():
                if differences(step.expected, step.actual, ignore=OURS, sum_tolerance=1e-9):
                    told = {key: value for key, value in step.actual.items() if key not in OURS}
                    right[str(step.number)] = copy.deepcopy(told)
            recorded, actual = replayed.end()
            right |= {"end": actual} if differences(recorded, actual, sum_tolerance=1e-9) else {}
    told = json.dumps({name: right for name, right in found.items() if right}, separators=(",", ":"))
    OUTCOMES.write_bytes(gzip.compress(told.encode(), mtime=0))


if __name__ == "__main__":
    main()

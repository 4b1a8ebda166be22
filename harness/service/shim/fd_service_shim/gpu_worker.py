"""``fastdeploy.worker.gpu_worker`` without a GPU: FastDeploy's worker loop is its own, the steps are made up.

Each step's tokens go through the save ops by the names that FastDeploy's worker has for them, so that a
plug-in that rebinds them is reached.
"""

import importlib
import json
import mmap
import os
import queue
import re
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import zmq
from fastdeploy import envs
from fastdeploy.inter_communicator import EngineWorkerQueue, ZmqIpcClient
from fastdeploy.model_executor.ops.gpu import (
    mtp_save_first_token,
    mtp_save_first_token_with_topk,
    save_output,
    save_output_topk,
    speculate_save_output,
    speculate_save_output_topk,
)

from fd_service_shim import tokens as model
from fd_service_shim import transfer, waits

PREFILL = 0.05
"""Seconds before a request's first token.  FastDeploy's API server drops one that comes before it listens."""
SAYS = {int(place): token for place, token in json.loads(os.environ.get("FD_SERVICE_SAYS", "{}")).items()}
"""Tokens of every answer at given places: marks and calls, which a parser looks for."""
WIDTH = 6  # draft tokens of FastDeploy's messages


waits.time_worker(EngineWorkerQueue)


class Slot:
    """A request that is being decoded."""

    def __init__(self, request, spec_tokens, fixed, handed_over=False):
        wanted = getattr(request, "sampling_params", None) or request
        prompt = list(request.prompt_token_ids)
        before = list(request.output_token_ids or [])
        choice = re.split("_|::n::", request.request_id)[-1]  # of n; its separator is FastDeploy's version's
        self.name = request.request_id
        self.seed = model.seed_of(prompt, int(choice) if choice.isdigit() else 0)
        self.prompt_len = len(prompt)
        self.tokens = before
        self.step = len(before)
        self.end = next(iter(request.eos_token_ids))
        self.ends = set(request.eos_token_ids)
        self.max_tokens = request.get("max_tokens") or 1 << 20
        least = request.get("min_tokens") or 1
        self.length = max(6 + int(model.mix(self.seed) % np.uint64(40)), least)
        stops = request.get("stop_token_ids") or []
        lengths = request.get("stop_seqs_len") or [len(row) for row in stops]
        self.stops = [list(row[:n]) for row, n in zip(stops, lengths, strict=False) if n]
        self.logprobs = getattr(wanted, "logprobs", None)
        self.spec_tokens, self.fixed = spec_tokens, fixed
        self.handed_over = handed_over and spec_tokens > 0
        if self.handed_over and len(request.draft_token_ids or ()) < 2:
            raise ValueError(f"{request.request_id} came without a draft token: {request.draft_token_ids}")
        self.done = False
        self.begins = time.monotonic() + PREFILL

    def accepts(self, sprints):
        """How many tokens this step accepts."""
        if self.spec_tokens == 0:
            return 1
        if sprints:
            return WIDTH
        if self.fixed:
            return self.fixed
        most = 1 if self.handed_over and self.step == 1 else self.spec_tokens  # it came with one draft token
        return 1 + int(model.mix(self.seed ^ np.uint64(self.step * 977)) % np.uint64(most + 1))

    def take(self, ids):
        """Tokens sampled for this step: those that are accepted, with the end where the request ends."""
        taken = []
        self.step += 1
        for token in ids:
            position = len(self.tokens)
            token = SAYS.get(position, token)
            if position + 1 >= min(self.length, self.max_tokens) or self._stopped():
                token, self.done = self.end, True
            self.tokens.append(token)
            taken.append(token)
            self.done = self.done or token in self.ends
            if self.done:
                break
        return taken

    def _stopped(self):
        return any(self.tokens[-len(stop) :] == stop for stop in self.stops)


class Runner:
    """What FastDeploy's worker process asks its model runner."""

    def __init__(self, config):
        self.config = config
        self.device_id = 0
        self.slots = {}
        self.preempted = set()
        self.batch = 0
        method = config.speculative_config.method
        self.spec = method is not None
        self.role = config.scheduler_config.splitwise_role
        self.spec_tokens = int(config.speculative_config.num_speculative_tokens) if self.spec else 0
        if self.role == "prefill":
            self.spec_tokens = 0
        self.layers = config.model_config.num_hidden_layers + config.speculative_config.num_extra_cache_layer
        self.rank = config.parallel_config.local_data_parallel_id
        # As FastDeploy's model runner: the queues of each rank are its own.
        os.environ["INFERENCE_MSG_QUEUE_ID"] = str(config.parallel_config.local_engine_worker_queue_port)
        self.draft = bool(getattr(config.speculative_config, "enable_draft_logprob", False))
        self.logprobs = bool(config.model_config.enable_logprob)
        self.vocabulary = int(os.environ["FD_SERVICE_FIRST_ID"]), int(os.environ["FD_SERVICE_LAST_ID"])
        self.fixed = int(os.environ.get("FD_SERVICE_ACCEPT", "0"))
        self.legacy = os.environ["FD_SERVICE_DIALECT"] == "legacy"
        self.plain = os.environ.get("FD_SERVICE_UNASKED") == "plain"
        self.asked = True
        self.counters = _Counters(self.rank)
        self._next = 0.0
        self.async_output_queue = None
        if envs.FD_USE_GET_SAVE_OUTPUT_V1:
            self._send_over_zmq()

    def _send_over_zmq(self):
        """What FastDeploy's model runner has then: a socket, and a thread that sends what is in a queue."""
        port = self.config.parallel_config.local_engine_worker_queue_port
        self.zmq_client = ZmqIpcClient(name=f"get_save_output_rank0_{port}", mode=zmq.PUSH)
        self.zmq_client.connect()
        self.async_output_queue = queue.Queue()
        threading.Thread(target=self._async_output_busy_loop, daemon=True).start()

    def _async_output_busy_loop(self):
        while True:
            self.zmq_client.send_pyobj(self.async_output_queue.get())

    def not_need_stop(self):
        return bool(self.slots or self.preempted)

    def exist_prefill(self):
        return False

    def insert(self, requests, running):
        self.batch = int(running or 0)
        signals = []
        for request in requests:
            index, kind = request.idx, request.task_type.name
            if kind == "PREFILL":
                begin, end = request.prefill_start_index, request.prefill_end_index
                signals.append((index, begin, end - begin))
                whole = len(request.prompt_token_ids) + len(request.output_token_ids or [])
                if request.prefill_end_index >= whole:
                    self.slots[index] = Slot(request, self.spec_tokens, self.fixed, self.role == "decode")
                    self.preempted.discard(index)
            elif kind in ("PREEMPTED", "ABORT"):
                self.slots.pop(index, None)
                self.preempted.add(index)
        if signals and self.role == "prefill":
            transfer.signal(signals, self.layers, self.rank)
        self.batch = max([self.batch, *(i + 1 for i in (*self.slots, *self.preempted))])

    def step(self):
        if not self._wait(len(self.slots)):
            return
        now = time.monotonic()
        live = sorted(i for i, slot in self.slots.items() if slot.begins <= now)
        if not (live or self.preempted):
            time.sleep(0.001)
            return
        sprints = -1 < self.counters.interval() < 0
        sizes = [self.slots[i].accepts(sprints) for i in live]
        seeds = np.repeat(np.array([self.slots[i].seed for i in live], np.uint64), sizes)
        positions = [
            len(self.slots[i].tokens) + j for i, n in zip(live, sizes, strict=True) for j in range(n)
        ]
        ids, scores, ranks = model.candidates(seeds, np.array(positions, np.uint64), *self.vocabulary)
        keep, counts, accepted, row = [], np.zeros(self.batch, np.int32), {}, 0
        for i, n in zip(live, sizes, strict=True):
            taken = self.slots[i].take(ids[row : row + n, 0].tolist())
            accepted[i] = taken
            counts[i] = len(taken)
            keep.extend(range(row, row + len(taken)))
            row += n
        flat = [token for i in live for token in accepted[i]]
        ids, scores, ranks = ids[keep], scores[keep], ranks[keep]
        if flat:
            ids[:, 0] = flat
        wanted = [self.slots[i].logprobs for i in live]
        cols = self._columns(wanted)
        marks = np.zeros((self.batch, 1), np.int32)
        marks[sorted(self.preempted)] = 1
        self.asked = any(n is not None for n in wanted)
        self._send(live, accepted, counts, ids[:, :cols], scores[:, :cols], ranks, marks)
        self.preempted.clear()
        for i in live:
            if self.slots[i].done or self.role == "prefill":
                del self.slots[i]
        self.counters.add(len(live), len(flat))

    def _wait(self, live):
        """For the time of the next step, if steps have an interval; whether there is to be one at all."""
        now, interval = time.monotonic(), self.counters.interval()
        if interval <= -2:
            for slot in self.slots.values():
                slot.length = 0
            return True
        if interval <= -1:
            self.counters.hold(live)
            if interval == -1:  # else it works, as when it compiles
                time.sleep(0.001)
            return False
        if interval > 0:
            if now < self._next:
                time.sleep(self._next - now)
            self._next = max(self._next, now) + interval
        return True

    def _columns(self, wanted):
        if self.legacy:
            return model.TOP + 1
        return 1 + max((model.TOP if n < 0 else n for n in wanted if n is not None), default=0)

    def _send(self, live, accepted, counts, ids, scores, ranks, marks):
        batch = self.batch
        goes_on = paddle.to_tensor([bool(self.slots)], dtype="bool")
        preempted = paddle.to_tensor(marks)
        if not self.spec:
            sampled = np.full((batch, 1), -1, np.int64)
            sampled[live, 0] = [accepted[i][0] for i in live]
            if not self.logprobs or (self.plain and not self.asked):
                save_output(paddle.to_tensor(sampled), goes_on, preempted, 0, False)
                return
            wide = np.full((batch, ids.shape[1]), -1, np.int64)
            values, places = np.zeros(wide.shape, np.float32), np.zeros(batch, np.int64)
            wide[live], values[live], places[live] = ids, scores, ranks
            save_output_topk(*map(paddle.to_tensor, (sampled, wide, values, places)), goes_on, preempted, 0)
            return
        sampled = np.zeros((batch, WIDTH), np.int64)
        for i in live:
            sampled[i, : len(accepted[i])] = accepted[i]
        lengths = paddle.to_tensor(np.full((batch, 1), 9, np.int32))
        prompts = paddle.to_tensor(np.full((batch, 1), 9, np.int64))
        if self.role == "prefill":
            self._draft(live, sampled)
        if self.role == "prefill" and not self.logprobs:
            steps = paddle.to_tensor(counts.reshape(-1, 1).astype(np.int64))
            mtp_save_first_token(paddle.to_tensor(sampled), goes_on, lengths, prompts, steps, 0, False, True)
            return
        if not self.logprobs:
            speculate_save_output(
                paddle.to_tensor(sampled), paddle.to_tensor(counts), goes_on, lengths, prompts, preempted,
                0, False, True,
            )  # fmt: skip
            return
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        common = list(map(paddle.to_tensor, (sampled, ids, scores, ranks, counts, offsets)))
        common += [goes_on, lengths, prompts]
        if self.role == "prefill":
            mtp_save_first_token_with_topk(*common, preempted, 3, 0, False)
            return
        speculate_save_output_topk(*common, preempted, 3, 0, False)
        if self.draft and len(live):
            draft = paddle.to_tensor((scores - 0.125).astype(np.float32))
            common[2] = draft
            speculate_save_output_topk(*common, 4, 0, False)

    def _draft(self, live, sampled):
        """A prefill node's one draft token, behind each first token."""
        seeds = np.array([self.slots[i].seed for i in live], np.uint64)
        places = np.array([len(self.slots[i].tokens) for i in live], np.uint64)
        if live:
            sampled[live, 1] = model.candidates(seeds, places, *self.vocabulary)[0][:, 0]


class _Counters:
    """A file that others map: steps so far, requests of the last one, tokens, seconds between steps."""

    def __init__(self, rank):
        path = Path(os.environ["FD_SERVICE_COUNTERS"] + (f".{rank}" if rank else ""))
        if not path.exists():
            path.write_bytes(bytes(32))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 32)
        self._steps = self._tokens = 0

    def add(self, requests, tokens):
        self._steps += 1
        self._tokens += tokens
        self._map[:24] = struct.pack("<3q", self._steps, requests, self._tokens)

    def hold(self, requests):
        self._map[8:16] = struct.pack("<q", requests)

    def interval(self):
        return struct.unpack("<d", self._map[24:])[0]


class GpuWorker:
    """FastDeploy's class of this name, as far as its worker process asks it."""

    def __init__(self, fd_config, local_rank, rank):
        self.fd_config = fd_config
        self.model_runner = None

    def init_device(self):
        self.model_runner = Runner(self.fd_config)

    def load_model(self):
        # Where FastDeploy loads plug-ins of models, before any step.
        importlib.import_module("fastdeploy.model_executor.models")

    def get_model(self):
        return SimpleNamespace()

    def initialize_cache(self, num_gpu_blocks):
        pass

    def graph_optimize_and_warm_up_model(self):
        pass

    def determine_available_memory(self):
        return 1 << 36

    def cal_theortical_kvcache(self):
        return 1 << 20

    def exist_prefill(self):
        return self.model_runner.exist_prefill()

    def preprocess_new_task(self, requests, num_running_requests=0):
        self.model_runner.insert(requests, num_running_requests)

    def execute_model(self, requests=None, num_running_requests=0):
        self.model_runner.step()

"""Results of a step that comes over ZeroMQ (``FD_USE_GET_SAVE_OUTPUT_V1``).

They say less than those of a queue's step: no length of the prompt; what is cached, and how many images there
are, with the first token only.  FastDeploy's own objects are processed one request after the other.  In a
frame of our worker side, requests in their steady state are advanced by the batch loop, others here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from ...._core import TARGET, Step
from ....flight.codes import End, Kind
from ..results._results import Batch, Stages, Sums
from ..results.step_context import SteadyMode
from .ending import RequestKind
from .frame_step import Framed
from .host import Host
from .journal import Journal
from .request import Requests
from .step import Steps

NO_TOKEN = -1


class Streamed:
    """Processes what a socket's worker has sent for a step; the receive loop calls `process`."""

    def __init__(self, host: Host, journal: Journal, requests: Requests, steps: Steps) -> None:
        self.host, self.journal, self.fd = host, journal, host.fd
        self.requests, self.ending, self.steps = requests, requests.ending, steps
        self._framed: Any = None  # the frame that is processed

    def process(self, step: list[Any] | Framed | Step, stages: Stages | None = None) -> None:
        """Process a step: FastDeploy's objects, a frame, or a frame of speculative decoding."""
        if isinstance(step, list):
            self._process_objects(step)
        elif isinstance(step, Framed):
            self._process_frame(step)
        else:
            self.steps.process(step, stages)

    def _process_objects(self, datas: list[Any]) -> None:
        """Process a list of FastDeploy's ``StreamTransferData``, one request after the other."""
        self._reschedule_left({data.batch_id for data in datas})
        results, slots = self._in_any_order(datas), len(self.host.resource_manager.stop_flags)
        best_effort = self.journal.best_effort
        best_effort("forgetting requests", self.ending.sweep)
        step = best_effort("the entry of a step in the flight recorder", _step_of, datas, slots)
        self._deliver(results, step)

    def _process_frame(self, framed: Framed) -> None:
        """Process a frame of one token a request, or of a pooling model."""
        self._reschedule_left(framed.slots)
        self._framed = framed
        context = self.steps.context(TARGET, framed.masks, self._steady_mode)
        results = self.steps.results_of(framed.step, context, self.advance, self._observe_sums)
        self._framed = None
        self._deliver(results, framed.step)

    def _deliver(self, results: list[Any], step: Step | None) -> None:
        """Deliver the results of a step; record `step`, if any, in the flight recorder."""
        stages = self.journal.counters.stages
        stages.end_build(None)
        self.host.postprocess(results)
        stages.end_put(results, step)

    def _steady_mode(self) -> SteadyMode | None:
        """Options of the batch loop; None if FastDeploy's method was replaced."""
        if not self.host._is_stock("_process_per_token"):
            return None
        steady = self.steps.steady_mode()
        # The scheduler's log gets no tokens here, and there is no speculation.
        return steady and steady._replace(
            decode_log=None, log_decoding=None, steps_of=None, heads_of=None, streamed=True
        )

    def _reschedule_left(self, slots: Collection[int]) -> None:
        """Queue preempted requests again, once the worker no longer reports their slots."""
        manager = self.host.resource_manager
        waiting = list(manager.to_be_rescheduled_request_id_set)
        if not waiting or not self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            return
        for name in waiting:
            request = manager.requests.get(name)
            if request is not None and request.idx not in slots:
                self.fd.llm_logger.info(f"request {name}: preempted, it waits for its turn again")
                self.journal.recorder.let_go(Kind.PREEMPTED, request.idx, name)
                manager.reschedule_preempt_task(name)

    def _in_any_order(self, datas: list[Any]) -> list[Any]:
        """Results of objects, whose slots come in any order."""
        manager, results = self.host.resource_manager, []
        for entry in datas:
            slot, task = entry.batch_id, None
            if 0 <= slot < len(manager.stop_flags) and not manager.stop_flags[slot]:
                task = manager.tasks_list[slot]
            if task is None:
                continue
            try:
                result = self._advance_entry(slot, task, entry)
            except Exception as error:
                result = self.ending.give_up(slot, task, error)
            if result is not None:
                results.append(result)
        return results

    # ---- what the batch loop leaves to us

    def _observe_sums(self, sums: Sums) -> None:
        """Observe the loop's sums in FastDeploy's metrics; attributes count nothing here."""
        if sums.steps:
            _, tokens, _ = sums.take()
            self.journal.best_effort("metrics of a step", sums.observe, tokens)

    def advance(self, slot: int, task: Any, code: int, batch: Batch) -> Any:
        """Advance a frame's request, after the sums of those before it are visible to FastDeploy."""
        self._observe_sums(batch.sums)
        entry = self._framed.entry(slot)
        if entry is None or (code == NO_TOKEN and slot not in self._framed.apart):
            return None
        return self._advance_entry(slot, task, entry)

    def _advance_entry(self, slot: int, task: Any, entry: Any) -> Any:
        """Advance one request by its data; return its result, or None without one."""
        host, requests, name, tokens = self.host, self.requests, task.request_id, entry.tokens
        code, recovery = 0 if tokens is None else int(tokens[-1]), requests.recovery
        if requests.is_transferring(name, code):
            return None
        if code < 0 and code != recovery:
            return requests.without_token(slot, name, task, code)
        decodes = host.cfg.scheduler_config.splitwise_role == "decode"
        if decodes and requests.is_left(name):
            return None
        now = self.fd.time.time()
        metrics = requests.stamped(slot, task, now)
        if getattr(task, "pooling_params", None) is not None:
            return self._pooled(slot, task, entry.pooler_output, metrics)
        pair = task.disaggregate_info
        kind = RequestKind(pair is not None and pair["role"] == "prefill", decodes, code == recovery)
        result = requests.new_result(slot, task, TARGET, metrics, streamed=True)
        if kind.recovery:
            tokens = [code]
        else:
            tokens = tokens.tolist()
            self._add_extras(result, entry)
        self.journal.best_effort("metrics of a step", host._record_metrics, task, now, tokens)
        stop = tokens.index(recovery) if recovery in tokens else len(tokens)
        ends = requests.append_tokens(task, tokens[:stop], result.outputs, kind)[1]
        if not ends and stop < len(tokens):
            self.fd.llm_logger.info(f"request {name}: recovery stop")
            kind = kind._replace(recovery=True)
            ends = requests.append_tokens(task, [recovery], result.outputs, kind)[1]
        if not ends:
            return result
        last = self.ending.finish(slot, task, result, now, "", kind, is_object=True)
        return last if not kind.prefill or self.ending.reports_prefilled else None

    def _pooled(self, slot: int, task: Any, output: Any, metrics: Any) -> Any:
        """The only result of a request to a pooling model."""
        fd = self.fd
        self.journal.recorder.ended(slot, task.request_id, 0, End.TOKEN)
        result = fd.PoolingRequestOutput(
            request_id=task.request_id,
            finished=True,
            metrics=metrics,
            prompt_token_ids=task.prompt_token_ids,
            outputs=fd.PoolingOutput(data=output.tolist() if hasattr(output, "tolist") else output),
        )
        return self.ending.ended(slot, task, result, False)

    def _add_extras(self, result: Any, entry: Any) -> None:
        """Add the data that came with the tokens to a result."""
        outputs = result.outputs
        if self.host.use_logprobs:
            if getattr(entry, "logprobs", None) is not None:
                read, rows = self._read_logprobs, entry.logprobs
                self.journal.best_effort("reading log-probabilities", read, outputs, rows)
            if getattr(entry, "prompt_logprobs", None) is not None:
                result.prompt_logprobs = entry.prompt_logprobs
        mask = getattr(entry, "sampling_mask", None)
        if mask is not None:
            outputs.sampling_mask = mask if isinstance(mask, list) else mask.tolist()

    @staticmethod
    def _read_logprobs(outputs: Any, logprobs: Any) -> None:
        rows = logprobs.tolists()
        outputs.logprob = float(rows.logprobs[0][0])
        outputs.top_logprobs = rows


def _step_of(datas: list[Any], slots: int) -> Step:
    """Make a `Step` of the codes and tokens of a list of objects."""
    codes, tokens = np.full(slots, NO_TOKEN, np.int32), {}
    for data in datas:
        if data.tokens is not None and 0 <= data.batch_id < slots:
            token = int(data.tokens[-1])
            codes[data.batch_id] = 1 if token >= 0 else token
            tokens[data.batch_id] = token
    ids = [[token] for _, token in sorted(tokens.items()) if token >= 0]
    return Step.from_arrays("plain", codes, np.array(ids, np.int32).reshape(-1, 1), as_recorded=True)

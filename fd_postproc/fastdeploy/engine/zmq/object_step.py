"""Results of a step that comes as objects (``FD_USE_GET_SAVE_OUTPUT_V1``).

They say less than those of a queue's step: no length of the prompt; what is cached, and how many images there
are, with the first token only.  FastDeploy's own objects are processed one request after the other.  In a
frame of our worker side, requests in their steady state are advanced by the batch loop, others here.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, partial
from typing import Any

import numpy as np

from ...._core import TARGET, Sequences, Step, _open_streamed
from ....flight.codes import End, Kind
from ..processor.finish import RequestKind
from ..processor.steps import Steps
from ..results._results import Batch, Sums
from ..results.step_context import Context, SteadyMode
from .frame_step import Framed

NO_TOKEN = -1


class Streamed(Steps):
    """Mix-in of `_process_stream`, for what FastDeploy's worker has sent for a step."""

    @property
    def tells_prefilled(self) -> bool:
        """Whether the scheduler also gets a prefill instance's results."""
        return not self.receives_objects or bool(self.cfg.scheduler_config.name == "splitwise")

    @property
    def receives_objects(self) -> bool:
        """Whether steps come as objects; speculative decoding has none."""
        return self.uses_socket and not self.cfg.speculative_config.method

    @property
    def uses_socket(self) -> bool:
        """Whether steps come through FastDeploy's ZeroMQ socket."""
        return bool(self.fd.envs.FD_USE_GET_SAVE_OUTPUT_V1)

    def _process_stream(self, datas: list[Any]) -> None:
        """Process a list of FastDeploy's ``StreamTransferData``, one request after the other."""
        self._reschedule_left({data.batch_id for data in datas})
        results, slots = self._in_any_order(datas), len(self.resource_manager.stop_flags)
        self.best_effort("forgetting requests", self.sweep)
        step = self.best_effort("the entry of a step in the flight recorder", _step_of, datas, slots)
        self._deliver(results, step)

    def _opened(self, content: bytes) -> Framed | Step:
        """Open a frame of our worker side.

        Raises
        ------
        ValueError
            If it does not add up, or is of speculative decoding where the engine is not, or the reverse.
        """
        drafts = not self.receives_objects
        step, sections, sender = _open_streamed(content, drafts, self.layout.max_draft)
        opened: Framed | Step = step
        if not drafts:
            opened = Framed(step, sections, sender, bool(self.use_logprobs), self.fd.LogprobsLists)
        self.sequences.note(sender, step.seq or 0)
        return opened

    @cached_property
    def sequences(self) -> Sequences:
        """The sequence numbers of received frames."""
        return Sequences()

    def _process_framed(self, framed: Framed) -> None:
        """Process a frame of one token a request, or of a pooling model."""
        self._reschedule_left(framed.slots)
        manager = self.resource_manager
        steady = None if self.transfers else self.best_effort("the fast path", self._steady_stream)
        context = Context(manager.stop_flags, manager.tasks_list, TARGET, framed.masks, steady)
        advance = partial(self._advance_streamed, framed)
        self._deliver(self._results_of(framed.step, context, advance, self._observe_sums), framed.step)

    def _deliver(self, results: list[Any], step: Step | None) -> None:
        """Deliver the results of a step; record `step`, if any, in the flight recorder."""
        stages = self.counters.stages
        stages.end_build(None)
        self.postprocess(results)
        stages.end_put(results, step)

    def _steady_stream(self) -> SteadyMode | None:
        """Options of the batch loop; None if FastDeploy's method was replaced."""
        if not self._is_stock("_process_per_token"):
            return None
        steady = self.steady_mode()
        # Neither the scheduler's log is told of tokens here, nor is there speculation.
        return steady and steady._replace(
            decode_log=None, log_decoding=None, steps_of=None, heads_of=None, streamed=True
        )

    def _reschedule_left(self, slots: Collection[int]) -> None:
        """Queue preempted requests again, once the worker no longer reports their slots."""
        manager = self.resource_manager
        waiting = list(manager.to_be_rescheduled_request_id_set)
        if not waiting or not self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            return
        for name in waiting:
            request = manager.requests.get(name)
            if request is not None and request.idx not in slots:
                self.fd.llm_logger.info(f"request {name}: preempted, it waits for its turn again")
                self.recorder.let_go(Kind.PREEMPTED, request.idx, name)
                manager.reschedule_preempt_task(name)

    def _in_any_order(self, datas: list[Any]) -> list[Any]:
        """Results of objects, whose slots come in any order."""
        manager, results = self.resource_manager, []
        for entry in datas:
            slot, task = entry.batch_id, None
            if 0 <= slot < len(manager.stop_flags) and not manager.stop_flags[slot]:
                task = manager.tasks_list[slot]
            if task is None:
                continue
            try:
                result = self._advance_entry(slot, task, entry)
            except Exception as error:
                result = self.give_up(slot, task, error)
            if result is not None:
                results.append(result)
        return results

    # ---- what the batch loop leaves to us ------------------------------------------------------------

    def _observe_sums(self, sums: Sums) -> None:
        """Observe the loop's sums in FastDeploy's metrics; attributes count nothing here."""
        if sums.steps:
            _, tokens, _ = sums.take()
            self.best_effort("metrics of a step", sums.observe, tokens)

    def _advance_streamed(self, framed: Framed, slot: int, task: Any, code: int, batch: Batch) -> Any:
        """Advance a request, after the sums of those before it are visible to FastDeploy."""
        self._observe_sums(batch.sums)
        entry = framed.entry(slot)
        if entry is None or (code == NO_TOKEN and slot not in framed.apart):
            return None
        return self._advance_entry(slot, task, entry)

    def _advance_entry(self, slot: int, task: Any, entry: Any) -> Any:
        """Advance one request by its data; return its result, or None without one."""
        name, tokens = task.request_id, entry.tokens
        code = 0 if tokens is None else int(tokens[-1])
        if name in self.transfers and code != self._preempted:
            return None
        if code < 0 and code != self._recovery:
            return self._without_token(slot, name, task, code)
        decodes = self.cfg.scheduler_config.splitwise_role == "decode"
        if decodes and self._is_left(name):
            return None
        now = self.fd.time.time()
        first = self.tokens_counter.get(name, 0) == 0
        metrics = self._stamped_first(slot, task, now) if first else self._stamped_again(task)
        if getattr(task, "pooling_params", None) is not None:
            return self._pooled(slot, task, entry.pooler_output, metrics)
        pair = task.disaggregate_info
        kind = RequestKind(pair is not None and pair["role"] == "prefill", decodes, code == self._recovery)
        result = self._new_result(slot, task, TARGET, metrics, streamed=True)
        if kind.recovery:
            tokens = [code]
        else:
            tokens = tokens.tolist()
            self._add_extras(result, entry)
        self.best_effort("metrics of a step", self._record_metrics, task, now, tokens)
        stop = tokens.index(self._recovery) if self._recovery in tokens else len(tokens)
        ends = self._append_tokens(task, tokens[:stop], result.outputs, kind)[1]
        if not ends and stop < len(tokens):
            self.fd.llm_logger.info(f"request {name}: recovery stop")
            kind = kind._replace(recovery=True)
            ends = self._append_tokens(task, [self._recovery], result.outputs, kind)[1]
        if not ends:
            return result
        last = self._finish(slot, task, result, now, "", kind, is_object=True)
        return last if not kind.prefill or self.tells_prefilled else None

    def _pooled(self, slot: int, task: Any, output: Any, metrics: Any) -> Any:
        """The only result of a request to a pooling model."""
        fd = self.fd
        self.recorder.ended(slot, task.request_id, 0, End.TOKEN)
        result = fd.PoolingRequestOutput(
            request_id=task.request_id,
            finished=True,
            metrics=metrics,
            prompt_token_ids=task.prompt_token_ids,
            outputs=fd.PoolingOutput(data=output.tolist() if hasattr(output, "tolist") else output),
        )
        return self._ended(slot, task, result, False)

    def _add_extras(self, result: Any, entry: Any) -> None:
        """Add the data that came with the tokens to a result."""
        outputs = result.outputs
        if self.use_logprobs:
            if getattr(entry, "logprobs", None) is not None:
                self.best_effort("reading log-probabilities", self._read_logprobs, outputs, entry.logprobs)
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

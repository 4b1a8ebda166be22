"""A step that comes as objects (``FD_USE_GET_SAVE_OUTPUT_V1``): its results, as FastDeploy makes them there.

They say less than those of a queue's step: no length of the prompt; what is cached, and how many images there
are, with the first token only.  Requests in their steady state are advanced by the batch loop, others here.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, partial
from typing import Any

from ..._core import TARGET, Sequences, Step
from ...flight.codes import End
from ...flight.codes import Kind as Note
from ..stream_frames import sections_of
from ._results import Batch, Entries, SharedTensor, entries_of
from .context import Context, SteadyMode
from .finish import RECOVERY_TEXT, Kind, completes_prefills
from .framed import Framed, accepted_step
from .release import MOST_REQUESTS
from .steps import Steps

NO_TOKEN = -1


class Streamed(Steps):
    """`_process_stream` of what FastDeploy's worker has sent for a step."""

    @property
    def tells_prefilled(self) -> bool:
        """Whether the scheduler gets the results of a prefill instance: here only one of the kinds does."""
        return not self.receives_objects or bool(self.cfg.scheduler_config.name == "splitwise")

    @property
    def receives_objects(self) -> bool:
        """Whether steps come as objects, which FastDeploy has none of for speculative decoding."""
        return self.uses_socket and not self.cfg.speculative_config.method

    @property
    def uses_socket(self) -> bool:
        """Whether steps come through FastDeploy's ZeroMQ socket."""
        return bool(self.fd.envs.FD_USE_GET_SAVE_OUTPUT_V1)

    def _process_stream(self, datas: list[Any]) -> None:
        """Process a list of FastDeploy's ``StreamTransferData``."""
        self._process_entries({data.batch_id for data in datas}, datas)

    def _opened(self, content: bytes) -> Framed | Step:
        """What our worker side sends instead.

        Raises
        ------
        ValueError
            If the frame does not add up, or says less than the engine needs.
        """
        frame = sections_of(content)
        if self.receives_objects:
            if b"compact" in frame.sections:
                raise ValueError("accepted tokens of speculative decoding, which is off in the engine")
            opened: Framed | Step = Framed(frame, bool(self.use_logprobs), self.fd.LogprobsLists)
        else:
            opened = accepted_step(frame, self.layout)
        self.sequences.note(frame.sender, frame.number)
        return opened

    @cached_property
    def sequences(self) -> Sequences:
        """The numbers of the frames that have come."""
        return Sequences()

    def _process_framed(self, framed: Framed) -> None:
        """Process a frame of one token a request, or of a pooling model."""
        self._process_entries(framed.slots, framed)

    def _process_entries(self, slots: Collection[int], told: Framed | list[Any]) -> None:
        stages, manager = self.counters.stages, self.resource_manager
        self._reschedule_left(slots)
        entries = told if isinstance(told, Framed) else entries_of(told, bool(self.use_logprobs))
        if entries is None:  # no worker's
            results = self._in_any_order(told)
        else:
            steady = None if self.transfers else self.best_effort("the quick way", self._steady_stream)
            context = Context(manager.stop_flags, manager.tasks_list, TARGET, entries.masks, steady)
            advance = partial(self._advance_streamed, entries)
            batch = Batch(self.plan, entries.step, context, advance, self.give_up)
            results = batch.results()
            self._observe_sums(batch)
            for what, error in batch.failures.items():
                self.note_failure(what, error)
            if batch.is_crowded(MOST_REQUESTS):
                self.best_effort("forgetting requests", self.sweep)
        stages.end_build(None)
        self.postprocess(results)
        stages.end_put(results, None if entries is None else entries.step)

    def _steady_stream(self) -> SteadyMode | None:
        """What the batch loop may do itself; None if this FastDeploy's method for a token was replaced."""
        if not self._is_stock("_process_per_token"):
            return None
        steady = self.steady_mode()
        # Neither the scheduler's log is told of tokens here, nor is there speculation.
        return steady and steady._replace(
            decode_log=None, log_decoding=None, steps_of=None, heads_of=None, streamed=True
        )

    def _reschedule_left(self, slots: Collection[int]) -> None:
        """Queue preempted requests again whose slots the worker does not speak of any more."""
        manager = self.resource_manager
        waiting = list(manager.to_be_rescheduled_request_id_set)
        if not waiting or not self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            return
        for name in waiting:
            request = manager.requests.get(name)
            if request is not None and request.idx not in slots:
                self.fd.llm_logger.info(f"request {name}: preempted, it waits for its turn again")
                self.recorder.let_go(Note.PREEMPTED, request.idx, name)
                manager.reschedule_preempt_task(name)

    def _in_any_order(self, datas: Any) -> list[Any]:
        """Results of objects, one after the other."""
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

    def _observe_sums(self, batch: Batch) -> None:
        """Give FastDeploy's metrics what the loop has counted; its attributes count nothing on this path."""
        if batch.sums.steps:
            _, tokens, _ = batch.sums.take()
            self.best_effort("metrics of a step", batch.sums.observe, tokens)

    def _advance_streamed(
        self, entries: Entries | Framed, slot: int, task: Any, code: int, batch: Batch
    ) -> Any:
        """Advance a request, after what those before it have added is there for FastDeploy to see."""
        self._observe_sums(batch)
        entry = entries.entry(slot)
        if entry is None or (code == NO_TOKEN and slot not in entries.apart):
            return None
        return self._advance_entry(slot, task, entry)

    def _advance_entry(self, slot: int, task: Any, entry: Any) -> Any:
        """Advance one request by what has come for it; its result, or None if there is nothing to tell."""
        name, tokens = task.request_id, entry.tokens
        code = 0 if tokens is None else int(tokens[-1])
        if name in self.transfers and code != self._preempted:
            return None
        if code < 0 and code != self._recovery:
            return self._without_token(slot, name, task, code)
        if self.cfg.scheduler_config.splitwise_role == "decode" and self._is_left(name):
            return None
        now = self.fd.time.time()
        first = self.tokens_counter.get(name, 0) == 0
        metrics = self._stamped_first(slot, task, now) if first else self._stamped_again(task)
        if getattr(task, "pooling_params", None) is not None:
            return self._pooled(slot, task, entry.pooler_output, metrics)
        pair = task.disaggregate_info
        kind = Kind(pair is not None and pair["role"] == "prefill", False, code == self._recovery)
        result = self._new_entry(slot, task, metrics, first)
        if kind.recovery:
            tokens = [code]
        else:
            tokens = tokens.tolist()
            self._add_extras(result, entry)
        self.best_effort("metrics of a step", self._record_metrics, task, now, tokens)
        last = self._take_tokens(task, result, tokens, kind)
        if last is not None:
            told = self._finish_entry(slot, task, result, now, kind._replace(recovery=last == self._recovery))
            return told if not kind.prefill or self.tells_prefilled else None
        return result

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

    def _new_entry(self, slot: int, task: Any, metrics: Any, first: bool) -> Any:
        """A result without tokens."""
        sent = self.tokens_counter.get(task.request_id, 0)
        result = self.plan.new_result(slot, sent, task.request_id, TARGET, metrics)
        result.trace_carrier = self.plan.carrier
        result.ic_req_data = task.ic_req_data
        if first:
            if task.messages is not None:
                result.prompt = task.messages
            result.num_cached_tokens = task.num_cached_tokens
            self._count_images(task, result)
        return result

    def _add_extras(self, result: Any, entry: Any) -> None:
        """Give a result what came with its tokens."""
        outputs = result.outputs
        if self.use_logprobs:
            if getattr(entry, "logprobs", None) is not None:
                self.best_effort("reading log-probabilities", self._read_logprobs, outputs, entry.logprobs)
            if getattr(entry, "prompt_logprobs", None) is not None:
                result.prompt_logprobs = self.best_effort(
                    "log-probabilities of a prompt", _with_tensors, entry.prompt_logprobs
                )
        mask = getattr(entry, "sampling_mask", None)
        if mask is not None:
            outputs.sampling_mask = mask if isinstance(mask, list) else mask.tolist()

    @staticmethod
    def _read_logprobs(outputs: Any, logprobs: Any) -> None:
        rows = logprobs.tolists()
        outputs.logprob = float(rows.logprobs[0][0])
        outputs.top_logprobs = rows

    def _take_tokens(self, task: Any, result: Any, tokens: list[int], kind: Kind) -> int | None:
        """Give tokens to the result and to the request; the one that ends it, or None."""
        name, ends = task.request_id, task.eos_token_ids or ()
        for token in tokens:
            self.tokens_counter[name] = self.tokens_counter.get(name, 0) + 1
            if token != self._recovery:
                result.outputs.token_ids.append(token)
                task.output_token_ids.append(token)
            if token in ends or kind.prefill or token == self._recovery:
                return token
        return None

    def _finish_entry(self, slot: int, task: Any, result: Any, now: float, kind: Kind) -> Any:
        """End a request.  Its result, or None while its transfer is under way."""
        result.finished = True
        self._record_end(slot, task.request_id, kind)
        if kind.recovery:
            self.fd.llm_logger.info(f"request {task.request_id}: recovery stop")
            result.error_msg = RECOVERY_TEXT
        decodes = self.cfg.scheduler_config.splitwise_role == "decode"
        self.best_effort(
            "the summary of a request", self._log_summary, task, now, kind._replace(decode=decodes)
        )
        if not kind.prefill or completes_prefills(self.stock):
            self.best_effort("completion metrics", self._record_completion_metrics, task, now)
        return self._ended(slot, task, result, kind.prefill)


def _with_tensors(logprobs: Any) -> Any:
    """FastDeploy's ``LogprobsTensors`` as it comes to its clients: of Paddle's tensors."""
    if any(type(part) is SharedTensor for part in logprobs):
        parts = [part.tensor() if type(part) is SharedTensor else part for part in logprobs]
        return type(logprobs)(*parts)
    return logprobs

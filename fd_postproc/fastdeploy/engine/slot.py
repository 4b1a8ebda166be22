"""One request in full generality: first and last tokens, codes, roles, chunks.

The steady state of a request is in ``_loop.pxi``; whatever is not that comes here.  What FastDeploy has a
method for is called on self, so that its own text decides.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from ..._core import Step
from ._results import Batch

ERROR = 500
TABLES = ("tokens_counter", "total_step_per_request", "accept_token_num_per_head_per_request")
MOST_REQUESTS = 4096  # entries of a table before it is swept
RECOVERY_TEXT = (
    "Recover is not supported, the result is incomplete!"  # the text that FastDeploy's clients know
)

ABORTED, ABORTED_TEXT = 499, "Your request with request_id:{} is aborted."  # likewise, before 2.6


class Kind(NamedTuple):
    """What decides how a request ends."""

    prefill: bool  # its decoding happens on another instance
    decode: bool  # it was prefilled on another instance
    recovery: bool


class SlotMixin:
    """`advance` and what it is made of.  Other attributes are FastDeploy's."""

    fd: Any
    plan: Any
    aborts_itself: bool
    makes_empty_results: bool

    def advance(self: Any, slot: int, task: Any, code: int, batch: Batch) -> Any:
        """Advance one request by what a step has for it; `code` is its count there, or the code instead.

        Returns
        -------
        RequestOutput or None
            None if there is nothing to tell the client.
        """
        name, role = task.request_id, self.cfg.scheduler_config.splitwise_role
        if name in self.transfers and code != self._preempted:
            return None
        in_pair = task.disaggregate_info is not None
        rid = self.trace_id_of(name)
        self._propagate_trace(rid, task)
        if self.cfg.speculative_config.method:
            record = self._record_speculative_decoding_accept_num_per_request
            self.best_effort("speculative statistics", record, name, code)
        if code < 0 and code != self._recovery:
            return self._without_token(slot, name, task, code)
        tokens = self._tokens_of(slot, name, code, batch.step)
        if tokens is None or (role == "decode" and self._is_left(name)):
            return None
        kind = Kind(in_pair and role == "prefill", in_pair and role == "decode", code == self._recovery)
        logger = getattr(self, "scheduler_metrics_logger", None)  # since FastDeploy 2.5
        if logger:
            log = logger.on_decode_tokens
            self.best_effort("the scheduler's log", self.log_decoding, log, task, len(tokens))
        if task.get("prefill_chunk_info", None) is not None and self._is_within_chunks(task):
            return None

        self.total_step += 1
        known: Any = getattr(self.fd, "RequestStatus", None)
        if hasattr(known, "RUNNING_PREFILL") and task.status == known.RUNNING_PREFILL:
            task.status = known.RUNNING_DECODE
        now = self.fd.time.time()
        metrics = self._stamped(task, now, rid)
        self.number_of_output_tokens += len(tokens)
        self.best_effort("metrics of a step", self._record_metrics, task, now, tokens)
        result = self._new_result(slot, task, batch.output_type, metrics)
        if slot in batch.masks:
            result.outputs.sampling_mask = batch.masks[slot]
        if kind.prefill and len(tokens) > 1:
            result.outputs.draft_token_ids = list(tokens)
        ends = self._append_tokens(slot, task, tokens, batch.step, result, kind)
        if ends:
            return self._finish(slot, task, result, now, rid, kind)
        return result

    def trace_id_of(self: Any, name: str) -> str:
        """What the traces of a request have in common: its name without the number of the choice."""
        of_build = getattr(self.fd, "get_base_request_id", None)  # not in every FastDeploy
        return name.split("_")[0] if of_build is None else of_build(name)

    # ---- the slot's tokens -------------------------------------------------------------------------

    @property
    def _recovery(self: Any) -> int:
        return self.fd.RECOVERY_STOP_SIGNAL

    @property
    def _preempted(self: Any) -> int:
        return getattr(self.fd, "PREEMPTED_TOKEN_ID", -9)

    def _tokens_of(self: Any, slot: int, name: str, code: int, step: Step) -> list[int] | None:
        """The accepted tokens, or the recovery mark alone; None if there is nothing to tell."""
        if code == self._recovery:
            self.fd.llm_logger.info(f"request {name}: recovery stop")
            return [code]
        return step.token_ids(slot) if code > 0 or self.makes_empty_results else None

    def _without_token(self: Any, slot: int, name: str, task: Any, code: int) -> Any:
        """A negative code: the worker has let the request go, or has nothing for it.

        What the request becomes is left to the resource manager: ended if it is to be aborted, queued again
        if it was preempted.  Builds before 2.6 end an aborted one with a result of their own.
        """
        manager, fd, gone = self.resource_manager, self.fd, code == self._preempted
        managed = bool(fd.envs.ENABLE_V1_KVCACHE_SCHEDULER)
        if gone:
            fd.llm_logger.info(f"request {name}: the worker has let it go")
        if self.aborts_itself:
            plain = not self.cfg.speculative_config.method
            if name in manager.abort_req_ids_set and (gone if managed else plain):
                manager.abort_req_ids_set.remove(name)
                self._recycle_resources(name, slot, task)
                fd.llm_logger.info(f"request {name}: aborted")
                text = ABORTED_TEXT.format(name)
                return fd.RequestOutput(request_id=name, finished=True, error_code=ABORTED, error_msg=text)
        elif gone and managed and name in manager.to_be_aborted_req_id_set:
            manager.recycle_abort_task(name)
            if hasattr(self, "_put_abort_results"):
                self._put_abort_results(task)
            fd.llm_logger.info(f"request {name}: aborted")
        if gone and managed and name in manager.to_be_rescheduled_request_id_set:
            fd.llm_logger.info(f"request {name}: preempted, it waits for its turn again")
            manager.reschedule_preempt_task(name)
        return None

    def _is_left(self: Any, name: str) -> bool:
        """Whether a decode instance drops a request's tokens: it was preempted or aborted."""
        if self.aborts_itself or not self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            return False
        manager = self.resource_manager
        return name in manager.to_be_rescheduled_request_id_set or name in manager.to_be_aborted_req_id_set

    def log_decoding(self: Any, log: Callable[[int], None], task: Any, tokens: int) -> None:
        """Tell the scheduler's log of tokens, if the request is past its prefill."""
        if self._is_decode_stage(task):
            log(tokens)

    @staticmethod
    def _is_within_chunks(task: Any) -> bool:
        """Count a prefill chunk of the V0 scheduler; True before the last one."""
        task.prefill_chunk_num = task.get("prefill_chunk_num", 0) + 1
        return task.prefill_chunk_num < len(task.prefill_chunk_info)

    # ---- the result --------------------------------------------------------------------------------

    def _stamped(self: Any, task: Any, now: float, rid: str) -> Any:
        """Stamp the request's metrics; the copy that the client gets."""
        sent = self.tokens_counter.get(task.request_id, 0)
        if sent == 0:
            self.best_effort("first-token stamps", task.metrics.record_recv_first_token)
            self.best_effort("first-token times", task.metrics.cal_cost_time)
            copied = self.plan.copy_metrics(task.metrics)
            self.fd.llm_logger.info(f"request {task.request_id}: first token")
            self.best_effort("first-token metrics", self._record_first_token_metrics, task, now)
            self._report_span("PREFILL", rid, task, ends=False)
            return copied
        self.best_effort("token stamps", task.metrics.record_recv_token)
        if sent == 1 and self.cfg.scheduler_config.splitwise_role == "decode":
            self.best_effort("second-token stamps", task.metrics.record_decode_recv_second_token)
        return self.plan.copy_metrics(task.metrics)

    def _new_result(self: Any, slot: int, task: Any, output_type: int, metrics: Any) -> Any:
        sent = self.tokens_counter.get(task.request_id, 0)
        result = self.plan.new_result(slot, sent, task.request_id, output_type, metrics)
        result.ic_req_data = task.ic_req_data
        result.prompt_token_ids_len = task.prompt_token_ids_len
        if sent == 0 and task.messages is not None:
            result.prompt = task.messages
        result.num_cached_tokens = task.num_cached_tokens
        if task.get("multimodal_inputs", None):
            result.num_input_image_tokens = task.multimodal_inputs.get("num_input_image_tokens", 0)
            result.num_input_video_tokens = task.multimodal_inputs.get("num_input_video_tokens", 0)
        return result

    def _append_tokens(
        self: Any, slot: int, task: Any, tokens: list[int], step: Step, result: Any, kind: Kind
    ) -> bool:
        """Give the tokens to the result and to the request, up to the first that ends it; whether one did."""
        name, outputs, ends = task.request_id, result.outputs, task.eos_token_ids or ()
        hidden = self.fd.envs.FD_ENABLE_INTERNAL_ADAPTER  # whose clients want no end token
        taken, ended = 0, False
        for token in tokens:
            taken += 1
            if not kind.recovery:
                if not (hidden and token in ends):
                    outputs.token_ids.append(token)
                task.output_token_ids.append(token)
            if token in ends or kind.prefill or kind.recovery:
                ended = True
                break
        if taken:  # else FastDeploy's class makes no entry
            self.tokens_counter[name] = self.tokens_counter.get(name, 0) + taken
        if self.use_logprobs and not kind.recovery and taken:
            outputs.top_logprobs = self.plan.logprobs_lists(step, slot, taken)
            if outputs.top_logprobs is not None:  # a plain message: nobody has asked for any
                outputs.logprob = outputs.top_logprobs.logprobs[-1][0]
        return ended

    # ---- what must not disturb a request -----------------------------------------------------------

    def best_effort(self: Any, what: str, call: Callable[..., Any], *arguments: Any) -> bool:
        """Call what serves metrics, logs or traces; False if it raised, which is logged once a kind."""
        failure = None
        try:
            call(*arguments)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        if failure is None:
            return True
        if what not in self.complained:
            self.complained.add(what)
            self.fd.llm_logger.warning(f"fd_postproc: {what} failed, the request goes on ({failure})")
        return False

    def _propagate_trace(self: Any, rid: str, task: Any) -> None:
        tracing = getattr(self.fd, "tracing", None)
        if tracing is not None:
            start = task.metrics.inference_start_time
            started_ns = 0 if start is None else int(start * 1_000_000_000)
            carrier = task.trace_carrier
            self.best_effort("tracing", tracing.trace_set_proc_propagate_context, rid, carrier, started_ns)

    def _report_span(self: Any, name: str, rid: str, task: Any, ends: bool) -> None:
        tracing = getattr(self.fd, "tracing", None)
        start = task.metrics.inference_start_time
        if tracing is None or start is None:
            return

        def report() -> None:
            tracing.trace_report_span(
                name=getattr(tracing.TraceSpanName, name),
                rid=rid,
                start_time_ns=int(start * 1e9),
                end_time_ns=int(self.fd.time.time() * 1e9),
                thread_finish_flag=ends,
            )

        self.best_effort("tracing", report)

    # ---- a request that cannot go on ---------------------------------------------------------------

    def give_up(self: Any, slot: int, task: Any, error: Exception) -> Any:
        """End a request whose step raised; the result that tells its client."""
        name = getattr(task, "request_id", None)
        frames = traceback.extract_tb(error.__traceback__)
        self.counters.failed_requests += 1
        text = f"{type(error).__name__}: {error}"
        details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.fd.llm_logger.error(f"fd_postproc: request {name} (slot {slot}) ends with an error: {details}")
        if not isinstance(name, str):
            return None
        metrics = getattr(task, "metrics", None)
        if not isinstance(metrics, self.fd.RequestMetrics):
            metrics = (
                self.fd.RequestMetrics()
            )  # what cannot be turned into a dict would take the batch with it
        metrics = self.plan.copy_metrics(metrics)
        result = self.plan.new_result(slot, self.tokens_counter.get(name, 0), name, 3, metrics)
        result.finished = True
        result.error_code = ERROR
        where = f" in {os.path.basename(frames[-1].filename)}" if frames else ""
        result.error_msg = f"the token processor could not continue this request{where}: {text}"
        self._release(slot, task, result)
        return result

    def _release(self: Any, slot: int, task: Any, result: Any) -> None:
        """Free the slot and forget the request.  A failure is logged: the client is told anyhow."""
        name = task.request_id
        self.best_effort("recycling a request", self._recycle_resources, name, slot, task, result, False)
        self.forget(name)

    def sweep(self: Any) -> None:
        """Forget requests that are no longer known to FastDeploy, once there are many.

        Aborted requests leave their counters behind: what happens to them meanwhile is FastDeploy's business.
        """
        manager = self.resource_manager
        for table in map(self.__dict__.get, TABLES):
            if table is not None and len(table) > MOST_REQUESTS:
                known = {task.request_id for task in list(manager.tasks_list) if task is not None}
                known.update(getattr(manager, "requests", ()))
                for name in [name for name in list(table) if name not in known]:
                    table.pop(name, None)

    def forget(self: Any, name: str) -> None:
        """Drop what is kept about a request that has ended."""
        for table in TABLES:
            getattr(self, table, {}).pop(name, None)

"""Progress of one request in the general case: first and last tokens, codes, roles, chunks.

The steady state of a request is in ``_loop.pxi``; whatever is not that comes here.  What FastDeploy has a
method for is called on its object, so that its own text decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...._core import Step
from ....core.codes import Code
from ....flight.codes import Kind
from ..results._results import Batch
from .ending import Ending, RequestKind
from .host import Host
from .journal import Journal
from .tracing import Tracing

ABORTED, ABORTED_TEXT = 499, "Your request with request_id:{} is aborted."  # as FastDeploy before 2.6 says it


class Requests:
    """Advances requests one by one: `Steps` calls `advance` for the batch loop, `Streamed` its parts."""

    def __init__(self, host: Host, journal: Journal, tracing: Tracing, ending: Ending) -> None:
        self.host, self.journal, self.tracing, self.ending = host, journal, tracing, ending
        self.fd, self.plan = host.fd, host.plan

    def advance(self, slot: int, task: Any, code: int, batch: Batch) -> Any:
        """Advance one request by its tokens of a step; `code` is their count, or negative.

        The result is None if there is nothing for the client.
        """
        host, best_effort = self.host, self.journal.best_effort
        name, role = task.request_id, host.cfg.scheduler_config.splitwise_role
        if self.is_transferring(name, code):
            return None
        in_pair = task.disaggregate_info is not None
        rid = self.tracing.id_of(name)
        self.tracing.propagate(rid, task)
        if host.cfg.speculative_config.method:
            record = host._record_speculative_decoding_accept_num_per_request
            best_effort("speculative statistics", record, name, code)
        if code < 0 and code != self.recovery:
            return self.without_token(slot, name, task, code)
        tokens = self._tokens_of(slot, name, code, batch.step)
        if tokens is None or (role == "decode" and self.is_left(name)):
            return None
        kind = RequestKind(in_pair and role == "prefill", in_pair and role == "decode", code == self.recovery)
        logger = getattr(host, "scheduler_metrics_logger", None)  # since FastDeploy 2.5
        if logger:
            log = logger.on_decode_tokens
            best_effort("the scheduler's log", self.log_decoding, log, task, len(tokens))
        if task.get("prefill_chunk_info", None) is not None and self._is_within_chunks(task):
            return None

        host.total_step += 1
        known: Any = getattr(self.fd, "RequestStatus", None)
        if hasattr(known, "RUNNING_PREFILL") and task.status == known.RUNNING_PREFILL:
            task.status = known.RUNNING_DECODE
        now = self.fd.time.time()
        is_first = self.is_first(name)
        metrics = self.stamped(slot, task, now)
        if is_first:
            self.fd.llm_logger.info(f"request {name}: first token")
            self.tracing.report_span("PREFILL", rid, task, ends=False)
        host.number_of_output_tokens += len(tokens)
        best_effort("metrics of a step", host._record_metrics, task, now, tokens)
        result = self.new_result(slot, task, batch.output_type, metrics)
        if slot in batch.masks:
            result.outputs.sampling_mask = batch.masks[slot]
        if kind.prefill and len(tokens) > 1:
            result.outputs.draft_token_ids = list(tokens)
        outputs, hidden = result.outputs, self.fd.envs.FD_ENABLE_INTERNAL_ADAPTER  # wants no end token
        taken, ends = self.append_tokens(task, tokens, outputs, kind, hidden)
        if host.use_logprobs and not kind.recovery and taken:
            outputs.top_logprobs = self.plan.logprobs_lists(batch.step, slot, taken)
            if outputs.top_logprobs is not None:  # a plain message has none
                outputs.logprob = outputs.top_logprobs.logprobs[-1][0]
        if ends:
            return self.ending.finish(slot, task, result, now, rid, kind)
        return result

    # ---- the slot's tokens

    @property
    def recovery(self) -> int:
        """The code of a recovery stop."""
        return int(self.fd.RECOVERY_STOP_SIGNAL)

    @property
    def _preempted(self) -> int:
        return getattr(self.fd, "PREEMPTED_TOKEN_ID", Code.PREEMPTED)

    def is_transferring(self, name: str, code: int) -> bool:
        """Whether a request waits for its cache transfer only, and is not preempted."""
        return name in self.ending.transfers.waiting and code != self._preempted

    def is_first(self, name: str) -> bool:
        """Whether a request has had no token yet."""
        return not self.host.tokens_counter.get(name, 0)

    def _tokens_of(self, slot: int, name: str, code: int, step: Step) -> list[int] | None:
        """The accepted tokens, or the recovery mark alone; None if there is nothing to report."""
        if code == self.recovery:
            self.fd.llm_logger.info(f"request {name}: recovery stop")
            return [code]
        return step.token_ids(slot) if code > 0 or self.host.makes_empty_results else None

    def without_token(self, slot: int, name: str, task: Any, code: int) -> Any:
        """Handle a negative code: the worker has released the request, or has nothing for it.

        What the request becomes is left to the resource manager: ended if it is to be aborted, queued again
        if it was preempted.  Builds before 2.6 end an aborted one with a result of their own.
        """
        host, fd, gone = self.host, self.fd, code == self._preempted
        manager, recorder = host.resource_manager, self.journal.recorder
        managed = bool(fd.envs.ENABLE_V1_KVCACHE_SCHEDULER)
        if gone:
            fd.llm_logger.info(f"request {name}: the worker has let it go")
        if host.aborts_itself:
            plain = not host.cfg.speculative_config.method
            is_aborted = name in manager.abort_req_ids_set and (gone if managed else plain)
        else:
            is_aborted = gone and managed and name in manager.to_be_aborted_req_id_set
        if is_aborted or gone:
            recorder.let_go(Kind.ABORTED if is_aborted else Kind.PREEMPTED, slot, name)
        if host.aborts_itself:
            if is_aborted:
                manager.abort_req_ids_set.remove(name)
                host._recycle_resources(name, slot, task)
                fd.llm_logger.info(f"request {name}: aborted")
                text = ABORTED_TEXT.format(name)
                return fd.RequestOutput(request_id=name, finished=True, error_code=ABORTED, error_msg=text)
        elif is_aborted:
            manager.recycle_abort_task(name)
            if hasattr(host, "_put_abort_results"):
                host._put_abort_results(task)
            fd.llm_logger.info(f"request {name}: aborted")
        if gone and managed and name in manager.to_be_rescheduled_request_id_set:
            fd.llm_logger.info(f"request {name}: preempted, it waits for its turn again")
            manager.reschedule_preempt_task(name)
        return None

    def is_left(self, name: str) -> bool:
        """Whether a decode instance drops the tokens of a preempted or aborted request."""
        return any(name in names for names in self.left)

    @property
    def left(self) -> tuple[Any, ...]:
        """The sets of such requests."""
        if self.host.aborts_itself or not self.fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            return ()
        manager = self.host.resource_manager
        return manager.to_be_rescheduled_request_id_set, manager.to_be_aborted_req_id_set

    @staticmethod
    def _is_within_chunks(task: Any) -> bool:
        """Count a prefill chunk of the V0 scheduler; True before the last one."""
        task.prefill_chunk_num = task.get("prefill_chunk_num", 0) + 1
        return bool(task.prefill_chunk_num < len(task.prefill_chunk_info))

    def log_decoding(self, log: Callable[[int], None], task: Any, tokens: int) -> None:
        """Report tokens to the scheduler's log, if the request is past its prefill."""
        if self.host._is_decode_stage(task):
            log(tokens)

    # ---- the result

    def stamped(self, slot: int, task: Any, now: float) -> Any:
        """Stamp the request's metrics; return the client's copy."""
        host, best_effort, stamps = self.host, self.journal.best_effort, task.metrics
        sent = host.tokens_counter.get(task.request_id, 0)
        if sent:
            best_effort("token stamps", stamps.record_recv_token)
            if sent == 1 and host.cfg.scheduler_config.splitwise_role == "decode":
                best_effort("second-token stamps", stamps.record_decode_recv_second_token)
            return self.plan.copy_metrics(stamps)
        arrived = getattr(stamps, "arrival_time", None)
        waited = now - arrived if isinstance(arrived, float) and arrived else None
        length = getattr(task, "prompt_token_ids_len", None)
        self.journal.recorder.began(slot, task.request_id, length, waited)
        best_effort("first-token stamps", stamps.record_recv_first_token)
        best_effort("first-token times", stamps.cal_cost_time)
        copied = self.plan.copy_metrics(stamps)
        best_effort("first-token metrics", host._record_first_token_metrics, task, now)
        return copied

    def new_result(self, slot: int, task: Any, output_type: int, metrics: Any, streamed: bool = False) -> Any:
        """Make a result without tokens; one of a step of objects, `streamed`, says less."""
        sent = self.host.tokens_counter.get(task.request_id, 0)
        result = self.plan.new_result(slot, sent, task.request_id, output_type, metrics)
        result.ic_req_data = task.ic_req_data
        if streamed:
            result.trace_carrier = self.plan.carrier
        else:
            result.prompt_token_ids_len = task.prompt_token_ids_len
        if sent == 0 and task.messages is not None:
            result.prompt = task.messages
        if sent == 0 or not streamed:
            result.num_cached_tokens = task.num_cached_tokens
            if task.get("multimodal_inputs", None):
                result.num_input_image_tokens = task.multimodal_inputs.get("num_input_image_tokens", 0)
                result.num_input_video_tokens = task.multimodal_inputs.get("num_input_video_tokens", 0)
        return result

    def append_tokens(
        self, task: Any, tokens: list[int], outputs: Any, kind: RequestKind, hidden: bool = False
    ) -> tuple[int, bool]:
        """Append the tokens, up to the first that ends the request: how many, and whether one ended it.

        The client does not get a `hidden` end token.
        """
        name, ends = task.request_id, task.eos_token_ids or ()
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
            counter = self.host.tokens_counter
            counter[name] = counter.get(name, 0) + taken
        return taken, ended

"""The end of a request: last result, statistics, a prefill instance's transfer, release, traces.

FastDeploy's ``_recycle_resources`` waits for a prefilled request's cache transfer without a limit, in the one
token thread: a slow transfer stalls every request.  Here a step waits for `TRANSFER_WAIT_S`; then the
request is put by, and its result goes out when its transfer has ended.
"""

from __future__ import annotations

import functools
import os
import traceback
import types
from functools import cached_property
from typing import Any, NamedTuple

from ....flight.codes import End
from ...introspection import STORAGE, names_in
from .pairing import Pairing

RECOVERY_TEXT = (
    "Recover is not supported, the result is incomplete!"  # the text that FastDeploy's clients know
)
ERROR = 500
TABLES = ("tokens_counter", "total_step_per_request", "accept_token_num_per_head_per_request")
MOST_REQUESTS = 4096  # entries of a table before it is swept
TRANSFER_WAIT_S = 0.05  # seconds that a step waits for a cache transfer before other requests go on
POLL = 0.005


class RequestKind(NamedTuple):
    """Properties that decide how a request ends."""

    prefill: bool  # its decoding happens on another instance
    decode: bool  # it was prefilled on another instance
    recovery: bool


@functools.lru_cache(maxsize=8)
def updates_by_name(stock: type) -> bool:
    """Whether FastDeploy's class updates metrics by name, through methods that add the labels."""
    return "obs_value" in names_in(stock)


@functools.lru_cache(maxsize=8)
def completes_prefills(stock: type) -> bool:
    """Whether a prefilled request counts as completed here (since FastDeploy 2.6).

    Until then its class leaves its method out there; since then the method knows that role.
    """
    return "PREFILL_INFERENCE_END" in names_in(stock)


class Finish(Pairing):
    """Mix-in of `_finish`, `give_up`, `forget`, `serve_transfers` and `clear_data`."""

    def _finish(
        self,
        slot: int,
        task: Any,
        result: Any,
        now: float,
        rid: str,
        kind: RequestKind,
        *,
        is_object: bool = False,
    ) -> Any:
        """End a request; return its result, or None while its transfer is under way.

        With `is_object` the step came as an object: FastDeploy leaves its trace and tokens alone, then.
        """
        fd, name = self.fd, task.request_id
        result.finished = True
        self._record_end(slot, name, kind)
        if not is_object:
            self._carry_trace(rid, result)
            self._report_span("DECODE", rid, task, ends=True)
        if kind.recovery:
            result.error_msg = RECOVERY_TEXT
        self.best_effort("the summary of a request", self._log_summary, task, now, kind)
        if self.cfg.speculative_config.method:
            self.best_effort("speculative statistics", self._compute_speculative_status, result)
        if not kind.prefill or completes_prefills(self.stock):
            self.best_effort("completion metrics", self._record_completion_metrics, task, now)
        fd.llm_logger.info(f"request {name}: end token, recycling")
        caching = self.cfg.cache_config
        if (
            not is_object
            and fd.envs.ENABLE_V1_KVCACHE_SCHEDULER
            and caching.enable_prefix_caching
            and getattr(caching, "enable_output_caching", False)
        ):
            self.best_effort("caching output tokens", self.resource_manager.cache_output_tokens, task)
        return self._ended(slot, task, result, kind.prefill)

    def _record_end(self, slot: int, name: str, kind: RequestKind) -> None:
        how = End.RECOVERY if kind.recovery else End.PREFILLED if kind.prefill else End.TOKEN
        self.recorder.ended(slot, name, self.tokens_counter.get(name, 0), how)

    def _ended(self, slot: int, task: Any, result: Any, is_prefill: bool) -> Any:
        """Release a request; on a prefill instance when its cache has arrived."""
        fd, name = self.fd, task.request_id
        if hasattr(self, "_finalize_routing"):
            self.best_effort("routing", self._finalize_routing, name, task, result, is_prefill)
        if not is_prefill:
            self._release(slot, task, result)
        elif getattr(fd.envs, STORAGE, False) or self._transfer_has_ended(name):
            self._hand_over(slot, task, result)
        else:
            self.transfers[name] = (slot, task, result)
            fd.llm_logger.info(f"request {name}: its cache transfer takes longer, other requests go on")
            return None
        fd.llm_logger.info(f"request {name}: recycled")
        return result

    def _log_summary(self, task: Any, now: float, kind: RequestKind) -> None:
        fd, name, stamps = self.fd, task.request_id, task.metrics
        stamps.cal_cost_time()
        started = stamps.get_inference_start_time(kind.decode)
        elapsed = now - started if started is not None else 0.0
        tokens = self.tokens_counter[name]
        on_gpu, on_cpu = getattr(stamps, "gpu_cache_token_num", 0), getattr(stamps, "cpu_cache_token_num", 0)
        first = stamps.first_token_time or 0
        fd.llm_logger.info(
            f"request {name} ended: {task.prompt_token_ids_len} input tokens (cached: {on_gpu} on GPU, "
            f"{on_cpu} on CPU), {tokens} output tokens in {elapsed:.2f} s, first after {first:.2f} s "
            f"({first + (stamps.time_in_queue or 0):.2f} s with the queue), prefill {kind.prefill}, recovery "
            f"{kind.recovery}, preempted {getattr(stamps, 'preempted_count', 0)} times"
        )
        if elapsed > 0:
            self._observe("request_token_ratio", tokens / elapsed)
        fd.llm_logger.info(f"{self.resource_manager.info()}")

    def _observe(self, name: str, value: float) -> None:
        """Update a histogram as FastDeploy's class does: by name since its pull request #7865."""
        metrics = self.fd.main_process_metrics
        if updates_by_name(self.stock):
            metrics.obs_value(name, value)
        elif hasattr(metrics, name):  # not in all versions
            getattr(metrics, name).observe(value)

    # ---- the end of everything -----------------------------------------------------------------------

    def clear_data(self) -> None:
        """Free every slot, and report to each client that its request has ended."""
        fd, manager, ended = self.fd, self.resource_manager, []
        if fd.envs.ENABLE_V1_KVCACHE_SCHEDULER:
            manager.clear_data()
        if self._batch_result_buffer:
            self.deliver_waiting()
        for slot in range(manager.max_num_seqs):
            task = None if manager.stop_flags[slot] else manager.tasks_list[slot]
            if task is None:
                continue
            name, pair = task.request_id, task.disaggregate_info
            result = fd.RequestOutput(
                request_id=name,
                outputs=fd.CompletionOutput(
                    index=slot,
                    send_idx=self.tokens_counter.get(name, 0),
                    token_ids=list(task.eos_token_ids or ()),
                    draft_token_ids=[],
                ),
                finished=True,
                metrics=fd.RequestMetrics(
                    arrival_time=fd.time.time(), request_start_time=task.metrics.arrival_time
                ),
            )
            is_prefill = pair is not None and pair["role"] == "prefill"
            if self._ended(slot, task, result, is_prefill) is not None:
                ended.append(result)
            self.recorder.ended(slot, name, self.tokens_counter.get(name, 0), End.CLEARED)
            fd.llm_logger.warning(f"request {name}: cleared")
        if ended:
            self.cached_generated_tokens.put_results(ended)

    # ---- cache transfers of a prefill instance: `transfers` has the requests that wait for nothing else

    @property
    def tells_prefilled(self) -> bool:
        """Whether the scheduler gets the results of a prefill instance, too."""
        return True

    @cached_property
    def transfers(self) -> dict[str, tuple[int, Any, Any]]:
        """Requests that wait for their cache transfer only: slot, task, result."""
        return {}

    def _transfer_has_ended(self, name: str) -> bool:
        """Wait briefly for the end of a request's transfer."""
        clock = self.fd.time
        began = clock.time()
        while True:
            self._ask_for_transfers()
            if name in self.prefill_result_status:
                return True
            if clock.time() - began >= TRANSFER_WAIT_S:
                return False
            clock.sleep(POLL)

    def _hand_over(self, slot: int, task: Any, result: Any) -> None:
        """Send a prefilled request to its decode instance, or report why not; free its slot.

        FastDeploy's own text, which does not wait any more: the transfer has ended, or there is none to wait
        for, because it writes the cache into a storage itself.
        """
        name, recycle = task.request_id, self._recycle_resources
        function = getattr(recycle, "__func__", None)  # None: replaced by something that is no method
        if function is not None:
            recycle = functools.partial(function, _AllTransfersKnown(self))
        recycle(name, slot, task, result, True)
        self.prefill_result_status.pop(name, None)  # not every FastDeploy does
        self.forget(name, slot)

    def _ask_for_transfers(self) -> None:
        for name, status in self.engine_worker_queue.get_finished_req():
            self.fd.llm_logger.info(f"request {name}: cache transfer {status}")
            self.prefill_result_status[name] = status

    def serve_transfers(self) -> None:
        """Deliver the results whose transfer has ended."""
        if not self.transfers:
            return
        self.best_effort("asking for cache transfers", self._ask_for_transfers)
        tasks, done = self.resource_manager.tasks_list, []
        for name, (slot, task, result) in list(self.transfers.items()):
            if tasks[slot] is not task:
                # Aborted, or taken away by FastDeploy's other threads, who have seen to its client; the
                # slot may be another request's by now.
                del self.transfers[name]
                self.fd.llm_logger.info(f"request {name}: gone while its cache transfer was under way")
            elif name in self.prefill_result_status:
                del self.transfers[name]
                try:
                    self._hand_over(slot, task, result)
                    self.fd.llm_logger.info(f"request {name}: recycled")
                    if self.tells_prefilled:
                        done.append(result)
                except Exception as error:
                    done.append(self.give_up(slot, task, error))
        if done:
            self.cached_generated_tokens.put_results(done)

    # ---- errors, and what is left of a request

    def give_up(self, slot: int, task: Any, error: Exception) -> Any:
        """End a request whose step raised; return the result that reports it to the client."""
        name = getattr(task, "request_id", None)
        frames = traceback.extract_tb(error.__traceback__)
        self.counters.failed_requests += 1
        text = f"{type(error).__name__}: {error}"
        details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.fd.llm_logger.error(f"fd_postproc: request {name} (slot {slot}) ends with an error: {details}")
        if not isinstance(name, str):
            return None
        self.recorder.failed(slot, name, error)
        metrics = getattr(task, "metrics", None)
        if not isinstance(metrics, self.fd.RequestMetrics):
            # What cannot be turned into a dict would take the batch with it.
            metrics = self.fd.RequestMetrics()
        metrics = self.plan.copy_metrics(metrics)
        result = self.plan.new_result(slot, self.tokens_counter.get(name, 0), name, 3, metrics)
        result.finished = True
        result.error_code = ERROR
        where = f" in {os.path.basename(frames[-1].filename)}" if frames else ""
        result.error_msg = f"the token processor could not continue this request{where}: {text}"
        self._release(slot, task, result)
        return result

    def _release(self, slot: int, task: Any, result: Any) -> None:
        """Free the slot and forget the request; a failure is logged only."""
        name = task.request_id
        try:
            self._recycle_resources(name, slot, task, result, False)
        except Exception as error:
            self.note_failure("recycling a request", error)
            self.tokens_counter.pop(name, None)  # else FastDeploy's own text decides
        self.forget(name, slot)

    def sweep(self) -> None:
        """Forget requests that FastDeploy no longer has, once there are many.

        Aborted requests leave their counters behind: what happens to them meanwhile is FastDeploy's business.
        """
        manager = self.resource_manager
        for table in map(self.__dict__.get, TABLES):
            if table is not None and len(table) > MOST_REQUESTS:
                known = {task.request_id for task in list(manager.tasks_list) if task is not None}
                known.update(getattr(manager, "requests", ()))
                for name in [name for name in list(table) if name not in known]:
                    table.pop(name, None)

    def forget(self, name: str, slot: int) -> None:
        """Drop the state of a request that has ended, besides what `_recycle_resources` drops."""
        for table in TABLES[1:]:
            getattr(self, table, {}).pop(name, None)
        commons = self.__dict__.get("commons", ())  # of `steady`, once there was a step
        if slot < len(commons):
            commons[slot] = None

    # ---- traces

    def trace_id_of(self, name: str) -> str:
        """The common trace id of a request's choices: its name without the number of the choice."""
        of_build = getattr(self.fd, "get_base_request_id", None)  # not in every FastDeploy
        return name.split("_")[0] if of_build is None else of_build(name)

    def _propagate_trace(self, rid: str, task: Any) -> None:
        tracing = getattr(self.fd, "tracing", None)
        if tracing is not None:
            start = task.metrics.inference_start_time
            started_ns = 0 if start is None else int(start * 1_000_000_000)
            carrier = task.trace_carrier
            self.best_effort("tracing", tracing.trace_set_proc_propagate_context, rid, carrier, started_ns)

    def _report_span(self, name: str, rid: str, task: Any, ends: bool) -> None:
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

    def _carry_trace(self, rid: str, result: Any) -> None:
        """Put the trace context, which the client's trace continues, into a last result."""
        tracing = getattr(self.fd, "tracing", None)
        if tracing is not None:
            self.best_effort("tracing", _set_carrier, tracing, rid, result)


class _AllTransfersKnown:
    """Token processor whose queue has no news of cache transfers.

    Asking is a call to another process, and what it brings belongs to other requests.
    """

    def __init__(self, processor: Any) -> None:
        self.__dict__["_processor"] = processor

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._processor, name)
        if isinstance(value, types.MethodType) and value.__self__ is self._processor:
            return types.MethodType(value.__func__, self)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._processor, name, value)

    @property
    def engine_worker_queue(self) -> Any:
        return self

    @staticmethod
    def get_finished_req() -> list[Any]:
        return []


def _set_carrier(tracing: Any, rid: str, result: Any) -> None:
    result.trace_carrier = tracing.trace_get_proc_propagate_context(rid=rid)

"""The end of a request: its last result, its statistics, and a prefill instance's wait for its transfer."""

from __future__ import annotations

import functools
import types
from typing import Any

from ..trial.canned import STORAGE
from ..trial.facts import names_in
from .slot import RECOVERY_TEXT, Kind

PATIENCE = 0.05  # seconds that a step waits for a cache transfer before the other requests go on without it
POLL = 0.005


@functools.lru_cache(maxsize=8)
def updates_by_name(stock: type) -> bool:
    """Whether FastDeploy's class updates metrics through methods that take their name and add the labels."""
    return "obs_value" in names_in(stock)


@functools.lru_cache(maxsize=8)
def completes_prefills(stock: type) -> bool:
    """Whether a prefilled request counts as completed on the prefill instance, too: since FastDeploy 2.6.

    Until then its class leaves its method out there; since then the method knows that role.
    """
    return "PREFILL_INFERENCE_END" in names_in(stock)


class FinishMixin:
    """`_finish`, and the transfers that are still under way.

    FastDeploy's ``_recycle_resources`` waits for a prefilled request's cache transfer without a limit, in
    the one token thread: a slow transfer stalls every request.  Here a step waits for `PATIENCE`; then the
    request is put aside, and its result goes out when its transfer has ended.
    """

    fd: Any

    def _finish(self: Any, slot: int, task: Any, result: Any, now: float, rid: str, kind: Kind) -> Any:
        """End a request.  Its result, or None while its transfer is under way."""
        fd, name = self.fd, task.request_id
        result.finished = True
        tracing = getattr(fd, "tracing", None)
        if tracing is not None:
            self.best_effort("tracing", self._carry_trace, tracing, rid, result)
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
            fd.envs.ENABLE_V1_KVCACHE_SCHEDULER
            and caching.enable_prefix_caching
            and getattr(caching, "enable_output_caching", False)
        ):
            self.best_effort("caching output tokens", self.resource_manager.cache_output_tokens, task)
        return self._ended(slot, task, result, kind.prefill)

    def _ended(self: Any, slot: int, task: Any, result: Any, is_prefill: bool) -> Any:
        """Let go of a request; on a prefill instance once its cache has arrived."""
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

    @staticmethod
    def _carry_trace(tracing: Any, rid: str, result: Any) -> None:
        result.trace_carrier = tracing.trace_get_proc_propagate_context(rid=rid)

    def _log_summary(self: Any, task: Any, now: float, kind: Kind) -> None:
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

    def _observe(self: Any, name: str, value: float) -> None:
        """Update a histogram as FastDeploy's class does: by name since its pull request #7865."""
        metrics = self.fd.main_process_metrics
        if updates_by_name(self.stock):
            metrics.obs_value(name, value)
        elif hasattr(metrics, name):  # not in all versions
            getattr(metrics, name).observe(value)

    # ---- the end of everything -----------------------------------------------------------------------

    def clear_data(self: Any) -> None:
        """Free every slot, and tell each client that its request has ended."""
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
            fd.llm_logger.warning(f"request {name}: cleared")
        if ended:
            self.cached_generated_tokens.put_results(ended)

    # ---- cache transfers of a prefill instance -------------------------------------------------------

    def _transfer_has_ended(self: Any, name: str) -> bool:
        """Wait a little for the end of a request's transfer."""
        clock = self.fd.time
        began = clock.time()
        while True:
            self._ask_for_transfers()
            if name in self.prefill_result_status:
                return True
            if clock.time() - began >= PATIENCE:
                return False
            clock.sleep(POLL)

    def _hand_over(self: Any, slot: int, task: Any, result: Any) -> None:
        """Send a prefilled request to its decode instance, or tell its client why not; free its slot.

        FastDeploy's own text, which does not wait any more: the transfer has ended, or there is none to wait
        for, because it writes the cache into a storage itself.
        """
        name, recycle = task.request_id, self._recycle_resources
        function = getattr(recycle, "__func__", None)  # None: replaced by something that is no method
        if function is not None:
            recycle = functools.partial(function, _AllTransfersKnown(self))
        recycle(name, slot, task, result, True)
        self.prefill_result_status.pop(name, None)  # not every FastDeploy does
        self.forget(name)

    def _ask_for_transfers(self: Any) -> None:
        for name, status in self.engine_worker_queue.get_finished_req():
            self.fd.llm_logger.info(f"request {name}: cache transfer {status}")
            self.prefill_result_status[name] = status

    def serve_transfers(self: Any) -> None:
        """Put the results whose transfer has ended meanwhile."""
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
                    done.append(result)
                except Exception as error:
                    done.append(self.give_up(slot, task, error))
        if done:
            self.cached_generated_tokens.put_results(done)


class _AllTransfersKnown:
    """A token processor whose queue has no news of cache transfers: FastDeploy's text need not ask again.

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

"""The end of a request: its last result, its statistics; on a prefill instance, after its transfer."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from ...flight.codes import End
from ..introspection import STORAGE, names_in
from .transfers import Transfers

RECOVERY_TEXT = (
    "Recover is not supported, the result is incomplete!"  # the text that FastDeploy's clients know
)


class Kind(NamedTuple):
    """What decides how a request ends."""

    prefill: bool  # its decoding happens on another instance
    decode: bool  # it was prefilled on another instance
    recovery: bool


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


class Finish(Transfers):
    """`_finish` of one request, and `clear_data` of all."""

    def _finish(self, slot: int, task: Any, result: Any, now: float, rid: str, kind: Kind) -> Any:
        """End a request.  Its result, or None while its transfer is under way."""
        fd, name = self.fd, task.request_id
        result.finished = True
        self._record_end(slot, name, kind)
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
            fd.envs.ENABLE_V1_KVCACHE_SCHEDULER
            and caching.enable_prefix_caching
            and getattr(caching, "enable_output_caching", False)
        ):
            self.best_effort("caching output tokens", self.resource_manager.cache_output_tokens, task)
        return self._ended(slot, task, result, kind.prefill)

    def _record_end(self, slot: int, name: str, kind: Kind) -> None:
        how = End.RECOVERY if kind.recovery else End.PREFILLED if kind.prefill else End.TOKEN
        self.recorder.ended(slot, name, self.tokens_counter.get(name, 0), how)

    def _ended(self, slot: int, task: Any, result: Any, is_prefill: bool) -> Any:
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

    def _log_summary(self, task: Any, now: float, kind: Kind) -> None:
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
            self.recorder.ended(slot, name, self.tokens_counter.get(name, 0), End.CLEARED)
            fd.llm_logger.warning(f"request {name}: cleared")
        if ended:
            self.cached_generated_tokens.put_results(ended)

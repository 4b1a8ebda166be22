"""The end of a request: last result, statistics, release, and what is left of it."""

from __future__ import annotations

import os
import traceback
from typing import Any, NamedTuple

from ....flight.codes import End
from .host import Host
from .journal import Journal
from .tracing import Tracing
from .transfers import Transfers

RECOVERY_TEXT = (
    "Recover is not supported, the result is incomplete!"  # the text that FastDeploy's clients know
)
ERROR = 500
TABLES = ("tokens_counter", "total_step_per_request", "accept_token_num_per_head_per_request")
MOST_REQUESTS = 4096  # entries of a table before it is swept


class RequestKind(NamedTuple):
    """Properties that decide how a request ends."""

    prefill: bool  # its decoding happens on another instance
    decode: bool  # it was prefilled on another instance
    recovery: bool


class Ending:
    """Ends requests: `Requests` calls `finish`, the batch loop `give_up`, the receive loop `serve_transfers`.

    Attributes
    ----------
    templates : list
        By slot, what its request's results have in common; the batch loop keeps them.
    """

    def __init__(self, host: Host, journal: Journal, tracing: Tracing, transfers: Transfers) -> None:
        self.host, self.journal, self.tracing, self.transfers = host, journal, tracing, transfers
        self.fd, self.plan, self.templates = host.fd, host.plan, list[Any]()

    def finish(
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
        host, fd, best_effort, name = self.host, self.fd, self.journal.best_effort, task.request_id
        result.finished = True
        how = End.RECOVERY if kind.recovery else End.PREFILLED if kind.prefill else End.TOKEN
        self.journal.recorder.ended(slot, name, host.tokens_counter.get(name, 0), how)
        if not is_object:
            self.tracing.carry(rid, result)
            self.tracing.report_span("DECODE", rid, task, ends=True)
        if kind.recovery:
            result.error_msg = RECOVERY_TEXT
        best_effort("the summary of a request", self._log_summary, task, now, kind)
        if host.cfg.speculative_config.method:
            best_effort("speculative statistics", host._compute_speculative_status, result)
        if not kind.prefill or host.completes_prefills:
            best_effort("completion metrics", host._record_completion_metrics, task, now)
        fd.llm_logger.info(f"request {name}: end token, recycling")
        caching = host.cfg.cache_config
        if (
            not is_object
            and fd.envs.ENABLE_V1_KVCACHE_SCHEDULER
            and caching.enable_prefix_caching
            and getattr(caching, "enable_output_caching", False)
        ):
            best_effort("caching output tokens", host.resource_manager.cache_output_tokens, task)
        return self.ended(slot, task, result, kind.prefill)

    def ended(self, slot: int, task: Any, result: Any, is_prefill: bool) -> Any:
        """Release a request; on a prefill instance when its cache has arrived."""
        host, name = self.host, task.request_id
        if hasattr(host, "_finalize_routing"):
            self.journal.best_effort("routing", host._finalize_routing, name, task, result, is_prefill)
        if not is_prefill:
            self._release(slot, task, result)
        elif self.transfers.has_ended(name):
            self._hand_over(slot, task, result)
        else:
            self.transfers.waiting[name] = (slot, task, result)
            self.fd.llm_logger.info(f"request {name}: its cache transfer takes longer, other requests go on")
            return None
        self.fd.llm_logger.info(f"request {name}: recycled")
        return result

    def _log_summary(self, task: Any, now: float, kind: RequestKind) -> None:
        host, fd, name, stamps = self.host, self.fd, task.request_id, task.metrics
        stamps.cal_cost_time()
        started = stamps.get_inference_start_time(kind.decode)
        elapsed = now - started if started is not None else 0.0
        tokens = host.tokens_counter[name]
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
        fd.llm_logger.info(f"{host.resource_manager.info()}")

    def _observe(self, name: str, value: float) -> None:
        """Update a histogram; by name where metrics have labels (FastDeploy's pull request #7865)."""
        metrics = self.fd.main_process_metrics
        if hasattr(metrics, "obs_value"):
            metrics.obs_value(name, value)
        elif hasattr(metrics, name):  # not in all versions
            getattr(metrics, name).observe(value)

    def clear(self) -> None:
        """Free every slot, and report to each client that its request has ended."""
        host, fd, manager, results = self.host, self.fd, self.host.resource_manager, []
        for slot in range(manager.max_num_seqs):
            task = None if manager.stop_flags[slot] else manager.tasks_list[slot]
            if task is None:
                continue
            name, pair = task.request_id, task.disaggregate_info
            result = fd.RequestOutput(
                request_id=name,
                outputs=fd.CompletionOutput(
                    index=slot,
                    send_idx=host.tokens_counter.get(name, 0),
                    token_ids=list(task.eos_token_ids or ()),
                    draft_token_ids=[],
                ),
                finished=True,
                metrics=fd.RequestMetrics(
                    arrival_time=fd.time.time(), request_start_time=task.metrics.arrival_time
                ),
            )
            is_prefill = pair is not None and pair["role"] == "prefill"
            if self.ended(slot, task, result, is_prefill) is not None:
                results.append(result)
            self.journal.recorder.ended(slot, name, host.tokens_counter.get(name, 0), End.CLEARED)
            fd.llm_logger.warning(f"request {name}: cleared")
        if results:
            host.cached_generated_tokens.put_results(results)

    # ---- a prefill instance

    @property
    def reports_prefilled(self) -> bool:
        """Whether the scheduler gets the results of a prefill instance, too."""
        host = self.host
        return not host.receives_objects or bool(host.cfg.scheduler_config.name == "splitwise")

    def serve_transfers(self) -> None:
        """Deliver the results whose transfer has ended."""
        if not self.transfers.waiting:
            return
        done = []
        for slot, task, result in self.transfers.taken():
            try:
                self._hand_over(slot, task, result)
                self.fd.llm_logger.info(f"request {task.request_id}: recycled")
                if self.reports_prefilled:
                    done.append(result)
            except Exception as error:
                done.append(self.give_up(slot, task, error))
        if done:
            self.host.cached_generated_tokens.put_results(done)

    def _hand_over(self, slot: int, task: Any, result: Any) -> None:
        self.transfers.hand_over(slot, task, result)
        self.forget(task.request_id, slot)

    # ---- errors, and what is left of a request

    def give_up(self, slot: int, task: Any, error: Exception) -> Any:
        """End a request whose step raised; return the result that reports it to the client."""
        fd, name = self.fd, getattr(task, "request_id", None)
        frames = traceback.extract_tb(error.__traceback__)
        self.journal.counters.failed_requests += 1
        text = f"{type(error).__name__}: {error}"
        details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        fd.llm_logger.error(f"fd_postproc: request {name} (slot {slot}) ends with an error: {details}")
        if not isinstance(name, str):
            return None
        self.journal.recorder.failed(slot, name, error)
        metrics = getattr(task, "metrics", None)
        if not isinstance(metrics, fd.RequestMetrics):
            # What cannot be turned into a dict would take the batch with it.
            metrics = fd.RequestMetrics()
        metrics = self.plan.copy_metrics(metrics)
        result = self.plan.new_result(slot, self.host.tokens_counter.get(name, 0), name, 3, metrics)
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
            self.host._recycle_resources(name, slot, task, result, False)
        except Exception as error:
            self.journal.note_failure("recycling a request", error)
            self.host.tokens_counter.pop(name, None)  # else FastDeploy's own text decides
        self.forget(name, slot)

    def forget(self, name: str, slot: int) -> None:
        """Drop the state of a request that has ended, besides what `_recycle_resources` drops."""
        for table in TABLES[1:]:
            getattr(self.host, table, {}).pop(name, None)
        if slot < len(self.templates):
            self.templates[slot] = None

    def sweep(self) -> None:
        """Forget requests that FastDeploy no longer has, once there are many.

        Aborted requests leave their counters behind: what happens to them meanwhile is FastDeploy's business.
        """
        manager = self.host.resource_manager
        for table in map(self.host.__dict__.get, TABLES):
            if table is not None and len(table) > MOST_REQUESTS:
                known = {task.request_id for task in list(manager.tasks_list) if task is not None}
                known.update(getattr(manager, "requests", ()))
                for name in [name for name in list(table) if name not in known]:
                    table.pop(name, None)

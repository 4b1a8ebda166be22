"""The base of the mix-ins: FastDeploy's attributes, and work that must not disturb requests."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ....flight.recorder import Recorder
from ....log_throttle import Complaints
from ...called import bound_function
from ...fallback import Guard, count
from ..health.counters import Counters

_SEAM_OF = {
    "metrics of a step": "metrics",
    "first-token stamps": "stamps",
    "token stamps": "stamps",
    "second-token stamps": "stamps",
    "the scheduler's log": "decode log",
    "the wait in the scheduler": "wake-up",
}
"""Work of ours at a seam, whose failures are counted as the seam's."""

if TYPE_CHECKING:
    import threading

    from ..results._results import Plan

    class Base:
        """FastDeploy's ``TokenProcessor``, as far as it is relied on, and what `make_class` adds."""

        fd: Any  # FastDeploy's module, whose names are looked up at each use: its patches have effect
        stock: type
        plan: Plan
        aborts_itself: bool
        makes_empty_results: bool

        cfg: Any
        resource_manager: Any  # the table of requests by slot, which other threads change at any time
        cached_generated_tokens: Any  # the scheduler
        engine_worker_queue: Any
        worker: threading.Thread | None
        output_tokens: Any
        output_scores: Any
        output_ranks: Any
        use_logprobs: bool
        enable_draft_logprob: bool
        sampling_mask_zmq_server: Any  # where use_sampling_mask is on
        speculative_decoding: bool
        prefill_result_status: dict[str, str]

        tokens_counter: Any  # a Counter or dict: tokens by request
        total_step: int
        number_of_output_tokens: int
        total_step_per_request: dict[str, int]
        accept_token_num_per_head_per_request: dict[str, list[int]]
        accept_token_num_per_head: list[int]
        num_draft_tokens: int
        num_accepted_tokens: int
        num_emitted_tokens: int
        max_num_emitted_tokens: int

        health_lock: threading.Lock
        timestamp_for_alive_before_handle_batch: float | None
        timestamp_for_alive_after_handle_batch: float | None
        engine_output_token_hang: bool

        run: Any
        _recycle_resources: Any
        _record_metrics: Any
        _record_first_token_metrics: Any
        _record_completion_metrics: Any
        _record_speculative_decoding_accept_num_per_request: Any
        _compute_speculative_status: Any
        _is_decode_stage: Any
        _finalize_routing: Any

else:
    Base = object  # FastDeploy's class comes after the parts, and its methods must not be hidden


class BestEffort(Base):
    """Mix-in of `best_effort`, the counters, the complaints and the flight recorder."""

    recorder = Recorder()  # records nothing, until `run`

    # Per object, but made when first asked for: FastDeploy's tests make objects without __init__.
    @cached_property
    def complained(self) -> set[str]:
        """Kinds of failures that are logged already."""
        return set()

    @cached_property
    def counters(self) -> Counters:
        """Counts and times of this object's work."""
        return Counters()

    @cached_property
    def complaints(self) -> Complaints:
        """Throttled log of events that may come thousands of times a second."""
        return Complaints(lambda text: self.fd.llm_logger.error(f"fd_postproc: {text}"))

    @cached_property
    def guard(self) -> Guard:
        """Guard of the token thread, for which FastDeploy has nothing that could take over within a step."""
        return Guard("token processor", lambda: self.fd.llm_logger, most=None)

    def best_effort(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function for metrics, logs or traces; return None and log if it raises."""
        try:
            return call(*arguments)
        except Exception as error:
            self.note_failure(what, error)
        return None

    def note_failure(self, what: str, error: Exception) -> None:
        """Count a failure that does not disturb requests, and log it, once for each kind."""
        if what in _SEAM_OF:
            count(_SEAM_OF[what])
        if what not in self.complained:
            self.complained.add(what)
            trace = "".join(traceback.format_exception(error))
            failure = f"{type(error).__name__}: {error}\n{trace}"
            self.fd.llm_logger.warning(f"fd_postproc: {what} failed, the request goes on ({failure})")

    def _is_stock(self, name: str) -> bool:
        """Whether a method is FastDeploy's own, neither overridden nor replaced on this object."""
        method = bound_function(getattr(self, name))
        return method is not None and method is getattr(self.stock, name, None)

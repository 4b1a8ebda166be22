"""The contract: what FastDeploy provides to the plug-in, and what the plug-in's parts provide to each other.

Nothing of this exists when the plug-in runs.  The types say, for a reader and for mypy, which of FastDeploy's
names are relied on; what only some of its versions have is asked for with ``getattr`` or ``hasattr``.  A
name's meaning is FastDeploy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading

    from ...complaints import Complaints
    from ...flight.recorder import Recorder
    from ._results import Delivery, Plan
    from .context import SteadyMode
    from .counters import Counters
    from .liveness import Verdict
    from .messages import Packing
    from .send_loop import SendLoop

# ---- what FastDeploy provides ------------------------------------------------------------------------------


class Module(Protocol):
    """``fastdeploy.output.token_processor``: looked up at each use, so that patches of it have effect."""

    __name__: str

    TokenProcessor: Any
    Request: Any
    RequestOutput: Any
    CompletionOutput: Any
    RequestMetrics: Any
    PoolingRequestOutput: Any
    PoolingOutput: Any
    LogprobsLists: Any

    MAX_BSZ: int
    K: int
    MAX_DRAFT_TOKENS: int
    SPECULATE_MAX_BSZ: int
    RECOVERY_STOP_SIGNAL: int

    main_process_metrics: Any
    llm_logger: Any
    envs: Any
    time: Any  # Python's module


class Request(Protocol):
    """A request that is being served: what the scheduler calls a task."""

    request_id: str
    metrics: Any  # RequestMetrics
    status: Any
    messages: Any
    eos_token_ids: list[int]
    output_token_ids: list[int]
    prompt_token_ids_len: int
    num_cached_tokens: int
    ic_req_data: Any
    disaggregate_info: Any
    multimodal_inputs: Any
    prefill_chunk_info: Any
    prefill_chunk_num: int
    trace_carrier: Any

    def get(self, name: str, default: Any) -> Any: ...


class ResourceManager(Protocol):
    """Which request is in which slot.  Other threads change it at any time."""

    max_num_seqs: int
    stop_flags: MutableSequence[bool]
    tasks_list: MutableSequence[Any]  # of Request or None
    requests: dict[str, Any]
    to_be_rescheduled_request_id_set: set[str]
    to_be_aborted_req_id_set: set[str]
    abort_req_ids_set: set[str]  # until FastDeploy 2.5

    def recycle_abort_task(self, name: str) -> None: ...
    def reschedule_preempt_task(self, name: str) -> None: ...
    def cache_output_tokens(self, task: Any) -> None: ...
    def clear_data(self) -> None: ...
    def info(self) -> str: ...


class Scheduler(Protocol):
    """Where results go."""

    def put_results(self, results: list[Any]) -> None: ...


class TransferNews(Protocol):
    """The engine's queue of its workers, as far as it tells of cache transfers."""

    def get_finished_req(self) -> Iterable[tuple[str, str]]: ...


class StockProcessor(Protocol):
    """FastDeploy's ``TokenProcessor``, of which ours is a subclass."""

    cfg: Any  # FDConfig
    resource_manager: ResourceManager
    cached_generated_tokens: Scheduler
    engine_worker_queue: TransferNews
    worker: threading.Thread | None

    output_tokens: Any
    output_scores: Any
    output_ranks: Any
    use_logprobs: bool
    enable_draft_logprob: bool
    sampling_mask_zmq_server: Any  # where use_sampling_mask is on
    speculative_decoding: bool

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
    prefill_result_status: dict[str, str]

    health_lock: threading.Lock
    timestamp_for_alive_before_handle_batch: float | None
    timestamp_for_alive_after_handle_batch: float | None
    engine_output_token_hang: bool

    def run(self) -> None: ...
    def _recycle_resources(
        self, name: str, slot: int, task: Any, result: Any = None, is_prefill: bool = False
    ) -> None: ...
    def _record_metrics(self, task: Any, now: float, tokens: list[int]) -> None: ...
    def _record_first_token_metrics(self, task: Any, now: float) -> None: ...
    def _record_completion_metrics(self, task: Any, now: float) -> None: ...
    def _record_speculative_decoding_accept_num_per_request(self, name: str, count: int) -> None: ...
    def _compute_speculative_status(self, result: Any) -> None: ...
    def _is_decode_stage(self, task: Any) -> bool: ...
    def _finalize_routing(self, name: str, task: Any, result: Any, is_prefill: bool) -> None: ...
    def _put_abort_results(self, task: Any) -> None: ...


# ---- what the parts provide --------------------------------------------------------------------------------
#
# The parts of our class inherit from each other in one line (docs/design.md): what a part may use of another
# is what it inherits.  Who is given a processor, and is no part of it, says here what of it is used.


class Reported(Protocol):
    """For `reporter.Reporter`: a processor that reports on itself now and then."""

    fd: Module
    gauge_period: float

    @property
    def counters(self) -> Counters: ...
    @property
    def complaints(self) -> Complaints: ...

    recorder: Recorder

    def look(self) -> None: ...
    def report_gauges(self) -> None: ...
    def best_effort(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any: ...


class Judged(Protocol):
    """For `watch.Watch`: a processor that says whether it is well."""

    fd: Module

    def health(self) -> Verdict | None: ...
    def best_effort(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any: ...


class Examined(Protocol):
    """For `quick_ways`: a processor that is about to run."""

    fd: Module
    plan: Plan
    cached_generated_tokens: Scheduler
    packing: Packing | None
    send_loop: SendLoop | None

    def steady_mode(self) -> SteadyMode | None: ...
    def quick_delivery(self) -> Delivery | None: ...


if TYPE_CHECKING:

    class Base(StockProcessor, Protocol):
        """What every part of our class has: FastDeploy's, and what `processor.make_class` adds."""

        fd: Module
        stock: type
        plan: Plan
        aborts_itself: bool
        makes_empty_results: bool

else:
    Base = object  # FastDeploy's class comes after the parts, and its methods must not be hidden

"""The contract: what FastDeploy provides to the plug-in.

Nothing of this exists when the plug-in runs.  The types say, for a reader and for mypy, which of FastDeploy's
names are relied on; what only some of its versions have is asked for with ``getattr`` or ``hasattr``.  A
name's meaning is FastDeploy's.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading


class Module(Protocol):
    """``fastdeploy.output.token_processor``, looked up at each use: its patches have effect."""

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
    """A request in service, which the scheduler calls a task."""

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
    """The table of requests by slot, which other threads change at any time."""

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
    """The destination of results."""

    def put_results(self, results: list[Any]) -> None: ...


class TransferNews(Protocol):
    """The queue of the engine's workers, as far as it reports cache transfers."""

    def get_finished_req(self) -> Iterable[tuple[str, str]]: ...


class StockProcessor(Protocol):
    """FastDeploy's ``TokenProcessor``, the base of our class."""

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


_NEEDED = (
    *("TokenProcessor", "Request", "RequestMetrics", "RequestOutput", "CompletionOutput"),
    *("LogprobsLists", "SpeculateMetrics", "main_process_metrics"),
    *("MAX_BSZ", "MAX_DRAFT_TOKENS", "SPECULATE_MAX_BSZ", "K", "RECOVERY_STOP_SIGNAL"),
)
_CODES = {"PREEMPTED_TOKEN_ID": -9, "RECOVERY_STOP_SIGNAL": -3}
"""Marks in a message that stand for no token."""

SERVED = "2.5 and newer"


def contract_gap(module: Any) -> str | None:
    """Reason why the module is not of the supported family; None if it is."""
    for name in _NEEDED:
        if not hasattr(module, name):
            return f"{module.__name__} has no {name}; served are FastDeploy {SERVED}"
    for name, code in _CODES.items():
        if getattr(module, name, code) != code:
            return f"{name} is {getattr(module, name)}, not {code}"
    if not hasattr(module.RequestMetrics, "record_recv_token"):
        return f"RequestMetrics has no record_recv_token; served are FastDeploy {SERVED}"
    return None

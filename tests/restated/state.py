"""What the step finds on self: FastDeploy's constructor and its engine put it there."""

from __future__ import annotations

from typing import Any


class State:
    """Declarations only.

    Attributes
    ----------
    fd : module or namespace
        The names that FastDeploy's token processor finds in its own module.
    """

    fd: Any

    cfg: Any
    cached_generated_tokens: Any  # the scheduler
    engine_worker_queue: Any
    split_connector: Any
    resource_manager: Any
    scheduler_metrics_logger: Any
    _benchmark_logger: Any
    sampling_mask_zmq_server: Any

    use_logprobs: bool
    use_sampling_mask: bool
    enable_draft_logprob: bool
    output_tokens: Any
    output_scores: Any
    output_ranks: Any

    tokens_counter: Any
    number_of_output_tokens: int
    total_step: int
    prefill_result_status: dict[str, str]
    _batch_result_buffer: list[Any] | None

    total_step_per_request: dict[str, int]
    accept_token_num_per_head: list[int]
    accept_token_num_per_head_per_request: dict[str, list[int]]
    num_accepted_tokens: int
    num_draft_tokens: int
    num_emitted_tokens: int
    max_num_emitted_tokens: int
    speculative_stats_step: int

    def _compute_speculative_status(self, result: Any) -> None:
        raise NotImplementedError

"""The parts of a result: its output, its metrics, pooling outputs; their shapes are recorded.

In FastDeploy these live in engine/request.py; here they are a file of their own and are exported there.
`__module__` says so, so that pickles name the place where a FastDeploy process finds them.
"""

from __future__ import annotations

import time
from typing import Any

from fastdeploy._shapes import attributes, made

HOME = "fastdeploy.engine.request"


class _CompletionOutput:
    """Tokens of one step of one request."""

    def __repr__(self) -> str:
        return (
            f"CompletionOutput(index={self.index}, send_idx={self.send_idx}, text={self.text!r}, "
            f"token_ids={self.token_ids}, decode_type={self.decode_type}, "
            f"draft_token_ids={self.draft_token_ids}, reasoning_content={self.reasoning_content!r}, "
            f"reasoning_token_num={self.reasoning_token_num}, logprobs={self.logprobs}, "
            f"top_logprobs={self.top_logprobs}, draft_top_logprobs={self.draft_top_logprobs})"
        )


class _RequestMetrics:
    """When what happened to a request; seconds since the epoch, or seconds."""

    def __post_init__(self) -> None:
        if self.arrival_time is None:
            self.arrival_time = time.time()

    def record_recv_first_token(self) -> None:
        """Stamp the first token."""
        now = time.time()
        self.record_recv_token(now)
        self.engine_recv_first_token_time = now

    def record_recv_token(self, cur_time: float | None = None) -> None:
        """Stamp a token, and the times since arrival and since inference began."""
        now = time.time() if cur_time is None else cur_time
        self.engine_recv_latest_token_time = self.llm_engine_recv_latest_token_timestamp = now
        self.model_execute_time = now - self.arrival_time
        if self.inference_start_time:
            self.model_forward_time = now - self.inference_start_time

    def record_decode_recv_second_token(self) -> None:
        """Stamp the first token that a decode instance makes itself."""
        now = time.time()
        self.record_recv_token(now)
        self.decode_recv_second_token_time = now

    def get_inference_start_time(self, is_decode: bool) -> float | None:
        return self.decode_inference_start_time if is_decode else self.inference_start_time

    def cal_cost_time(self) -> None:
        """Fill in the differences between stamps that are there, and the names that older clients read."""
        start, end = self.preprocess_start_time, self.preprocess_end_time
        inference, first = self.inference_start_time, self.engine_recv_first_token_time
        if first and inference:
            self.first_token_time = first - inference
        if inference and end:
            self.time_in_queue = inference - end
        if end and start:
            self.preprocess_cost_time = end - start
        self.request_start_time = self.arrival_time
        self.llm_engine_recv_req_timestamp = self.engine_get_req_time
        self.llm_engine_send_req_to_engine_timestamp = inference
        if HAS_RECV_TOKEN_STAMP:
            self.llm_engine_recv_token_timestamp = first


class _PoolingOutput:
    """Hidden states of a pooling request."""


class _PoolingRequestOutput:
    """What a pooling request returns.  Three defaults are one-tuples, as FastDeploy has them."""


HAS_RECV_TOKEN_STAMP = "llm_engine_recv_token_timestamp" in attributes("RequestMetrics")
CompletionOutput: Any = made("CompletionOutput", HOME, _CompletionOutput)
RequestMetrics: Any = made("RequestMetrics", HOME, _RequestMetrics)
PoolingOutput: Any = made("PoolingOutput", HOME, _PoolingOutput)
PoolingRequestOutput: Any = made("PoolingRequestOutput", HOME, _PoolingRequestOutput)

"""The parts of a result: its output, its metrics, pooling outputs.

In FastDeploy these live in engine/request.py; here they are a file of their own and are exported there.
`__module__` says so, so that pickles name the place where a FastDeploy process finds them.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields
from typing import Any

from fastdeploy.entrypoints.openai.protocol import DeltaMessage, ToolCall
from fastdeploy.worker.output import LogprobsLists, SampleLogprobs, SpeculateMetrics

HOME = "fastdeploy.engine.request"


def by_name(cls: type, values: dict[str, Any]) -> Any:
    """An instance of a dataclass from those of `values` that are its fields."""
    return cls(**{field.name: values.get(field.name, field.default) for field in fields(cls)})


@dataclass(slots=True)
class CompletionOutput:
    """Tokens of one step of one request."""

    index: int
    send_idx: int
    token_ids: list[Any]
    decode_type: int = 0
    logprob: float | None = None
    top_logprobs: LogprobsLists | None = None
    draft_top_logprobs: LogprobsLists | None = None
    logprobs: SampleLogprobs | None = None
    draft_token_ids: list[int] | None = None
    text: str | None = None
    reasoning_content: str | None = None
    reasoning_token_num: int | None = 0
    tool_calls: ToolCall | None = None
    speculate_metrics: SpeculateMetrics | None = None
    completion_tokens: str | None = None
    delta_message: DeltaMessage | None = None
    multipart: list[Any] | None = None
    num_image_tokens: int | None = None
    sampling_mask: list | None = None

    def to_dict(self) -> dict[str, Any]:
        """Twelve of the fields; the values are the attributes themselves."""
        return {
            "index": self.index,
            "send_idx": self.send_idx,
            "token_ids": self.token_ids,
            "decode_type": self.decode_type,
            "logprob": self.logprob,
            "top_logprobs": self.top_logprobs,
            "draft_top_logprobs": self.draft_top_logprobs,
            "logprobs": self.logprobs,
            "draft_token_ids": self.draft_token_ids,
            "text": self.text,
            "reasoning_content": self.reasoning_content,
            "reasoning_token_num": self.reasoning_token_num,
        }

    @classmethod
    def from_dict(cls, req_dict: dict[str, Any]) -> CompletionOutput:
        return by_name(cls, req_dict)

    def __repr__(self) -> str:
        return (
            f"CompletionOutput(index={self.index}, send_idx={self.send_idx}, text={self.text!r}, "
            f"token_ids={self.token_ids}, decode_type={self.decode_type}, "
            f"draft_token_ids={self.draft_token_ids}, reasoning_content={self.reasoning_content!r}, "
            f"reasoning_token_num={self.reasoning_token_num}, logprobs={self.logprobs}, "
            f"top_logprobs={self.top_logprobs}, draft_top_logprobs={self.draft_top_logprobs})"
        )


@dataclass(slots=True)
class RequestMetrics:
    """When what happened to a request; seconds since the epoch, or seconds."""

    arrival_time: float | None = None
    preprocess_start_time: float | None = None
    preprocess_end_time: float | None = None
    scheduler_recv_req_time: float | None = None
    engine_get_req_time: float | None = None
    ask_decode_resource_start_time: float | None = None
    ask_decode_resource_finish_time: float | None = None
    add_req_to_resource_manager_time: float | None = None
    inference_start_time: float | None = None
    engine_recv_latest_token_time: float | None = None
    engine_recv_first_token_time: float | None = None
    wait_for_sending_cache_time: float | None = None
    send_request_output_to_decode_time: float | None = None
    decode_recv_req_time: float | None = None
    decode_preallocate_req_time: float | None = None
    decode_recv_first_token_time: float | None = None
    decode_inference_start_time: float | None = None
    decode_recv_second_token_time: float | None = None
    first_token_time: float | None = None
    time_in_queue: float | None = None
    preprocess_cost_time: float | None = None
    model_forward_time: float | None = None
    model_execute_time: float | None = None
    request_start_time: float | None = None
    llm_engine_recv_req_timestamp: float | None = None
    llm_engine_send_req_to_engine_timestamp: float | None = None
    llm_engine_send_req_to_decoder_engine_timestamp: float | None = None
    llm_engine_recv_latest_token_timestamp: float | None = None
    llm_engine_recv_token_timestamp: float | None = None
    speculate_metrics: SpeculateMetrics | None = None
    gpu_cache_token_num: int | None = 0
    cpu_cache_token_num: int | None = 0
    storage_cache_token_num: int | None = 0
    cpu_cache_prepare_time: float | None = None
    storage_cache_prepare_time: float | None = None
    preempted_count: int = 0

    def __post_init__(self) -> None:
        if self.arrival_time is None:
            self.arrival_time = time.time()

    @classmethod
    def from_dict(cls, req_dict: dict[str, Any]) -> RequestMetrics:
        return by_name(cls, req_dict)

    def to_dict(self) -> dict[str, Any]:
        """All fields, deeply copied.  The outer copy is FastDeploy's too; its cost belongs to the step."""
        return dict(asdict(self).items())

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
        self.llm_engine_recv_token_timestamp = first


@dataclass
class PoolingOutput:
    """Hidden states of a pooling request."""

    data: list[Any]

    def to_dict(self) -> dict[str, Any]:
        return {"data": self.data}


@dataclass
class PoolingRequestOutput:
    """What a pooling request returns.  Three defaults are one-tuples, as FastDeploy has them."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    finished: bool
    metrics: Any = (None,)
    error_code: Any = (200,)
    error_msg: Any = (None,)

    def to_dict(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "outputs": None if self.outputs is None else self.outputs.to_dict(),
            "prompt_token_ids": self.prompt_token_ids,
            "finished": self.finished,
            "metrics": None if self.metrics is None else self.metrics.to_dict(),
            "error_code": self.error_code,
            "error_msg": self.error_msg,
        }


for _class in (CompletionOutput, RequestMetrics, PoolingOutput, PoolingRequestOutput):
    _class.__module__ = HOME

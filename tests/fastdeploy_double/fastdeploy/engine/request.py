"""Requests and results.  Parameter orders, defaults, attributes and to_dict's key orders are FastDeploy's."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

import numpy as np

from fastdeploy import envs
from fastdeploy.engine._results import (
    CompletionOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestMetrics,
    by_name,
)
from fastdeploy.engine.pooling_params import PoolingParams
from fastdeploy.engine.sampling_params import SamplingParams
from fastdeploy.worker.output import PromptLogprobs, SpeculateMetrics

__all__ = [
    "CompletionOutput",
    "PoolingOutput",
    "PoolingRequestOutput",
    "Request",
    "RequestMetrics",
    "RequestOutput",
    "RequestStatus",
    "RequestType",
    "SpeculateMetrics",
]


class RequestStatus(Enum):
    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3
    RUNNING_PREFILL = 4
    RUNNING_DECODE = 5


class RequestType(Enum):
    PREFILL = 0
    DECODE = 1
    PREEMPTED = 2
    EXTEND = 3


class Request:
    """What the engine knows about a request; the token processor calls it a task."""

    def __init__(
        self,
        request_id: str,
        prompt: Any = None,
        prompt_token_ids: list | None = None,
        prompt_token_ids_len: int | None = None,
        messages: list | None = None,
        tools: list[dict] | None = None,
        system: str | list[str] | None = None,
        history: list[list[str]] | None = None,
        eos_token_ids: list[int] | None = None,
        sampling_params: SamplingParams | None = None,
        pooling_params: PoolingParams | None = None,
        multimodal_inputs: dict | None = None,
        multimodal_data: dict | None = None,
        disable_chat_template: bool = False,
        disaggregate_info: dict | None = None,
        draft_token_ids: list[int] | None = None,
        guided_json: Any = None,
        guided_regex: Any = None,
        guided_choice: Any = None,
        guided_grammar: Any = None,
        structural_tag: Any = None,
        guided_json_object: bool | None = None,
        enable_thinking: bool | None = None,
        reasoning_max_tokens: int | None = None,
        trace_carrier: dict[str, Any] | None = None,
        dp_rank: int | None = None,
        chat_template: str | None = None,
        image_start: int = 0,
        video_start: int = 0,
        audio_start: int = 0,
        image_end: int = 0,
        video_end: int = 0,
        audio_end: int = 0,
        prefill_start_index: int = 0,
        prefill_end_index: int = 0,
        num_computed_tokens: int = 0,
        ic_req_data: Any = (None,),  # a one-tuple: FastDeploy has a stray comma here, and clients see [null]
        metrics: RequestMetrics | None = None,
        user: str | None = None,
        metadata: dict | None = None,
        completion_token_ids: list[int] | None = None,
        chat_template_kwargs: dict | None = None,
        prompt_tokens: str | None = None,
        add_generation_prompt: bool | None = None,
        response_format: Any = None,
        mm_hashes: list | None = None,
        suffix: dict | None = None,
        top_logprobs: int | None = None,
        add_special_tokens: bool | None = False,
        zmq_worker_pid: int | None = None,
    ) -> None:
        arguments = dict(locals())
        for name in _REQUEST_PARAMETERS:
            setattr(self, name, arguments[name])
        self.metrics = RequestMetrics() if metrics is None else metrics

        self.num_cached_tokens = 0
        self.num_cached_blocks = 0
        self.multimodal_img_boundaries = None
        self.block_tables: list[int] = []
        self.output_token_ids: list[int] = []
        self.audio_output_token_ids: list[int] = []
        self.status = RequestStatus.WAITING
        self.task_type = RequestType.PREFILL
        self.has_been_preempted_before = False
        self.idx: int | None = None
        self.need_prefill_tokens = prompt_token_ids_len
        self.use_extend_tables = False
        self.extend_block_tables: list[int] = []
        self.async_process_futures: list[Any] = []
        self.error_message: str | None = None
        self.error_code: int | None = None

    @property
    def num_total_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_token_ids_len + len(self.output_token_ids)

    def get(self, key: str, default_value: Any = None) -> Any:
        """The attribute `key`, else that of the sampling parameters, else `default_value`."""
        for holder in (self, self.sampling_params):
            if hasattr(holder, key):
                return getattr(holder, key)
        return default_value

    def set(self, key: str, value: Any) -> None:
        """Set `key` where the sampling parameters have it, else here."""
        setattr(self.sampling_params if hasattr(self.sampling_params, key) else self, key, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.request_id == other.request_id

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "async_process_futures": []}

    def __repr__(self) -> str:
        if not envs.FD_DEBUG:
            return f"Request(request_id={self.request_id})"
        shown = {name: value for name, value in vars(self).items() if value is not None and name[0] != "_"}
        return f"Request({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_REQUEST_PARAMETERS = list(inspect.signature(Request).parameters)


class RequestOutput:
    """What one step tells a client about its request."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None = None,
        prompt_token_ids: list[int] | None = None,
        prompt_logprobs: PromptLogprobs | None = None,
        output_type: int | None = 3,
        outputs: CompletionOutput | None = None,
        finished: bool = False,
        metrics: RequestMetrics | None = None,
        num_cached_tokens: int | None = 0,
        num_input_image_tokens: int | None = 0,
        num_input_video_tokens: int | None = 0,
        error_code: int | None = 200,
        error_msg: str | None = None,
        ic_req_data: Any = None,
        prompt_token_ids_len: int | None = 0,
        trace_carrier: dict = {},  # noqa: B006  one shared dict, as in FastDeploy
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = [] if prompt_token_ids is None else prompt_token_ids
        self.prompt_logprobs = prompt_logprobs
        self.output_type = output_type
        self.outputs = outputs
        self.finished = finished
        self.metrics = metrics
        self.num_cached_tokens = num_cached_tokens
        self.num_input_image_tokens = num_input_image_tokens
        self.num_input_video_tokens = num_input_video_tokens
        self.error_code = error_code
        self.error_msg = error_msg
        self.ic_req_data = ic_req_data
        self.prompt_token_ids_len = prompt_token_ids_len
        self.trace_carrier = trace_carrier
        self.accumulate_tool_calls = None
        if isinstance(prompt_token_ids, np.ndarray):
            self.prompt_token_ids = prompt_token_ids.tolist()

    def add(self, next_output: RequestOutput) -> None:
        """Merge the result of a later step into this one, in place; rows of its lists are shared."""
        self.prompt = next_output.prompt
        self.prompt_token_ids = next_output.prompt_token_ids
        self.finished |= next_output.finished
        mine, later = self.outputs, next_output.outputs
        mine.index = later.index
        mine.token_ids.extend(later.token_ids)
        for name in ("model_forward_time", "model_execute_time", "engine_recv_latest_token_time"):
            value = getattr(next_output.metrics, name)
            if value is not None:
                setattr(self.metrics, name, value)
        for name in ("top_logprobs", "draft_top_logprobs"):
            if getattr(later, name) is not None:
                for rows, more in zip(getattr(mine, name), getattr(later, name), strict=True):
                    rows.extend(more)

    def __repr__(self) -> str:
        return (
            f"RequestOutput(request_id={self.request_id!r}, prompt={self.prompt!r}, "
            f"prompt_token_ids={self.prompt_token_ids}, prompt_logprobs={self.prompt_logprobs}, "
            f"output_type={self.output_type}, outputs={self.outputs}, finished={self.finished}, "
            f"num_cached_tokens={self.num_cached_tokens}, "
            f"num_input_image_tokens={self.num_input_image_tokens}, "
            f"num_input_video_tokens={self.num_input_video_tokens}, metrics={self.metrics}, "
            f"error_code={self.error_code}, error_msg={self.error_msg})"
        )

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> RequestOutput:
        """The inverse of to_dict; takes `outputs` and `metrics` out of `d`."""
        outputs, metrics = d.pop("outputs", None), d.pop("metrics", None)
        return cls(
            **d,
            outputs=by_name(CompletionOutput, outputs) if isinstance(outputs, dict) else None,
            metrics=by_name(RequestMetrics, metrics) if isinstance(metrics, dict) else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Keys and values as the client gets them."""
        return {
            "request_id": self.request_id,
            "prompt": self.prompt,
            "prompt_token_ids": self.prompt_token_ids,
            "prompt_logprobs": self.prompt_logprobs,
            "output_type": self.output_type,
            "outputs": None if self.outputs is None else self.outputs.to_dict(),
            "metrics": None if self.metrics is None else self.metrics.to_dict(),
            "finished": self.finished,
            "num_cached_tokens": self.num_cached_tokens,
            "num_input_image_tokens": self.num_input_image_tokens,
            "num_input_video_tokens": self.num_input_video_tokens,
            "error_code": self.error_code,
            "error_msg": self.error_msg,
            "ic_req_data": self.ic_req_data,
            "prompt_token_ids_len": self.prompt_token_ids_len,
            "trace_carrier": self.trace_carrier,
        }

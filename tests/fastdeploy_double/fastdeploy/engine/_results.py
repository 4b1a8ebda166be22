"""The parts of a result: its output, its metrics, pooling outputs; their shapes are recorded.

In FastDeploy these live in engine/request.py; here they are a file of their own and are exported there.
`__module__` says so, so that pickles name the place where a FastDeploy process finds them.
"""

from __future__ import annotations

import time
from dataclasses import MISSING, fields
from typing import Any

from fastdeploy._shapes import attributes, made

HOME = "fastdeploy.engine.request"


def by_name(cls: type, values: dict[str, Any]) -> Any:
    """An instance of a dataclass from those of `values` that are its fields."""
    own = [field for field in fields(cls) if field.name in values or field.default is not MISSING]
    return cls(**{field.name: values.get(field.name, field.default) for field in own})


class Items:
    """Attributes as entries, as newer versions have them."""

    __slots__ = ()

    def get(self, key: str, default_value: Any = None) -> Any:
        return getattr(self, key, default_value)

    def set(self, key: str, value: Any) -> None:
        if hasattr(self, key):
            setattr(self, key, value)

    def __getitem__(self, key: str) -> Any:
        if not hasattr(self, key):
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if hasattr(self, key):
            setattr(self, key, value)


class _CompletionOutput:
    """Tokens of one step of one request."""

    get, set, __getitem__, __setitem__ = Items.get, Items.set, Items.__getitem__, Items.__setitem__

    @classmethod
    def from_dict(cls, req_dict: dict[str, Any]) -> Any:
        return by_name(cls, req_dict)

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

    get, __getitem__ = Items.get, Items.__getitem__

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def __post_init__(self) -> None:
        if self.arrival_time is None:
            self.arrival_time = time.time()

    @classmethod
    def from_dict(cls, req_dict: dict[str, Any]) -> RequestMetrics:
        return by_name(cls, req_dict)

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

    def update_decoder_start_time(self) -> None:
        """The name under which older clients read when a decode instance began."""
        self.llm_engine_send_req_to_decoder_engine_timestamp = self.decode_inference_start_time


class _PoolingOutput:
    """Hidden states of a pooling request."""


class _PoolingRequestOutput:
    """What a pooling request returns.  Three defaults are one-tuples, as FastDeploy has them."""


HAS_RECV_TOKEN_STAMP = "llm_engine_recv_token_timestamp" in attributes("RequestMetrics")
CompletionOutput: Any = made("CompletionOutput", HOME, _CompletionOutput)
RequestMetrics: Any = made("RequestMetrics", HOME, _RequestMetrics)
PoolingOutput: Any = made("PoolingOutput", HOME, _PoolingOutput)
PoolingRequestOutput: Any = made("PoolingRequestOutput", HOME, _PoolingRequestOutput)

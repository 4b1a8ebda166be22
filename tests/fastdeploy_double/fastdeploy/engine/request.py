"""Requests and results: recorded shapes, and the double's own words for what their methods do."""

from __future__ import annotations

from typing import Any

from fastdeploy import envs
from fastdeploy._shapes import enumeration, made, shape
from fastdeploy.engine._results import (
    CompletionOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestMetrics,
    by_name,
)
from fastdeploy.worker.output import SpeculateMetrics

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


RequestStatus: Any = enumeration("RequestStatus", __name__)
RequestType: Any = enumeration("RequestType", __name__)


class _Request:
    """What the engine knows about a request; the token processor calls it a task."""

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
        return isinstance(other, type(self)) and self.request_id == other.request_id

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, key: str) -> bool:
        return any(hasattr(holder, key) for holder in (self, self.sampling_params))

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self.get(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "async_process_futures": []}

    def __repr__(self) -> str:
        if not envs.FD_DEBUG:
            return f"Request(request_id={self.request_id})"
        shown = {name: value for name, value in vars(self).items() if value is not None and name[0] != "_"}
        return f"Request({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class _RequestOutput:
    """What one step tells a client about its request."""

    def get(self, key: str, default_value: Any = None) -> Any:
        """The attribute of the result, of its output or of its metrics."""
        for holder in (self, self.outputs, self.metrics):
            if hasattr(holder, key):
                return getattr(holder, key)
        return default_value

    def set(self, key: str, value: Any) -> None:
        """Set it where it is: in the output, in the metrics, else here."""
        holders = [holder for holder in (self.outputs, self.metrics) if hasattr(holder, key)]
        setattr(holders[0] if holders else self, key, value)

    def __contains__(self, key: str) -> bool:
        return any(hasattr(holder, key) for holder in (self, self.outputs, self.metrics))

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self.get(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def add(self, next_output: Any) -> None:
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
    def from_dict(cls, d: dict[str, Any]) -> Any:
        """The inverse of to_dict; takes what is no argument of the constructor out of `d`."""
        outputs, metrics = d.pop("outputs", None), d.pop("metrics", None)
        later = {name: d.pop(name) for name in list(d) if name not in _RESULT_PARAMETERS}
        result = cls(
            **d,
            outputs=by_name(CompletionOutput, outputs) if isinstance(outputs, dict) else None,
            metrics=by_name(RequestMetrics, metrics) if isinstance(metrics, dict) else None,
        )
        for name, value in later.items():
            setattr(result, name, value)
        return result


_KINDS = {"RequestStatus": RequestStatus, "RequestType": RequestType, "RequestMetrics": RequestMetrics}
Request: Any = made("Request", __name__, _Request, _KINDS)
RequestOutput: Any = made(
    "RequestOutput",
    __name__,
    _RequestOutput,
    special={
        "prompt_token_ids": "prompt_token_ids if isinstance(prompt_token_ids, list) else "
        "getattr(prompt_token_ids, 'tolist', list)()"
    },
)
_RESULT_PARAMETERS = [entry[0] for entry in shape("RequestOutput")["parameters"]]

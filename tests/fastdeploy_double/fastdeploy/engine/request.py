"""Requests and results: recorded shapes, and the double's own words for what their methods do."""

from __future__ import annotations

from typing import Any

from fastdeploy import envs
from fastdeploy._shapes import enumeration, made
from fastdeploy.engine._results import (  # noqa: F401  where FastDeploy has them
    CompletionOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestMetrics,
)
from fastdeploy.worker.output import SpeculateMetrics  # noqa: F401

RequestStatus: Any = enumeration("RequestStatus", __name__)
RequestType: Any = enumeration("RequestType", __name__)


class _Request:
    """What the engine knows about a request; the token processor calls it a task."""

    def get(self, key: str, default_value: Any = None) -> Any:
        """The attribute `key`, else that of the sampling parameters, else `default_value`."""
        for holder in (self, self.sampling_params):
            if hasattr(holder, key):
                return getattr(holder, key)
        return default_value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.request_id == other.request_id

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "async_process_futures": []}

    def __repr__(self) -> str:
        if not envs.FD_DEBUG:
            return f"Request(request_id={self.request_id})"
        shown = {name: value for name, value in vars(self).items() if value is not None and name[0] != "_"}
        return f"Request({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class _RequestOutput:
    """What one step tells a client about its request."""

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

"""Requests, and the parts of answers."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from tests.restated.api.models import (  # noqa: F401  what answers are made of
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
    ChatMessage,
    CompletionLogprobs,
    CompletionResponse,
    CompletionResponseChoice,
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
    CompletionTokenUsageInfo,
    DeltaMessage,
    DeltaToolCall,
    LogProbEntry,
    LogProbs,
    PromptTokenUsageInfo,
    ToolCall,
    UsageInfo,
)

AnyResponseFormat = Any


class ErrorResponse(BaseModel):
    error: str


class StreamOptions(BaseModel):
    include_usage: bool = True
    continuous_usage_stats: bool = False


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int | None = None
    stream_options: StreamOptions | None = None
    include_draft_logprobs: bool = False
    include_logprobs_decode_token: bool = True
    include_stop_str_in_output: bool = False
    max_streaming_response_tokens: int | None = None
    return_token_ids: bool = False
    collect_metrics: bool = False
    prompt_logprobs: int | None = None


class ChatCompletionRequest(_Request):
    messages: list[Any]
    logprobs: bool = False
    top_logprobs: int | None = None
    metadata: dict | None = None


class CompletionRequest(_Request):
    prompt: Any
    logprobs: int | None = None
    echo: bool = False
    suffix: dict | None = None

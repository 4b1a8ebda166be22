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


class ChatCompletionRequest(BaseModel):
    model_config = ConfigDict(extra="allow")
    messages: list[Any]
    n: int | None = None


class CompletionRequest(BaseModel):
    model_config = ConfigDict(extra="allow")
    prompt: Any
    n: int | None = None

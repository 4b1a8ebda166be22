"""The parts of an answer, with the fields of FastDeploy 2.6's classes in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Reason = Literal["stop", "length", "tool_calls", "recover_stop", "abort", "pd_reschedule", "repeat_truncate"]


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class SpeculateMetrics:
    accepted_tokens: int
    rejected_tokens: int
    accept_ratio: float
    average_accept_length: float
    accepted_tokens_per_head: list[int]
    accept_ratio_per_head: list[float]


PromptLogprobs = list[dict[int, Logprob] | None]


class LogProbEntry(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[LogProbEntry] | None = None


class LogProbs(BaseModel):
    content: list[LogProbEntry] | None = None
    refusal: str | None = None


class CompletionLogprobs(BaseModel):
    tokens: list[str] | None = None
    token_logprobs: list[float] | None = None
    top_logprobs: list[dict] | None = None
    text_offset: list[int] | None = None


class PromptTokenUsageInfo(BaseModel):
    cached_tokens: int | None = None
    image_tokens: int | None = None
    video_tokens: int | None = None


class CompletionTokenUsageInfo(BaseModel):
    reasoning_tokens: int | None = None
    image_tokens: int | None = None


class UsageInfo(BaseModel):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokenUsageInfo | None = None
    completion_tokens_details: CompletionTokenUsageInfo | None = None


class FunctionCall(BaseModel):
    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(BaseModel):
    id: str | None = None
    type: Literal["function"] | None = None
    index: int
    function: FunctionCall | None = None


class ToolCall(BaseModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


Tools = list[DeltaToolCall | ToolCall]


class DeltaMessage(BaseModel):
    role: str | None = None
    content: str | None = None
    multimodal_content: list[Any] | None = None
    audio_content: str | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    reasoning_content: str | None = None
    tool_calls: Tools | None = None
    prompt_tokens: str | None = None
    completion_tokens: str | None = None


class ChatCompletionResponseStreamChoice(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    index: int
    delta: DeltaMessage
    logprobs: LogProbs | None = None
    draft_logprobs: LogProbs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    sampling_mask: list[list[int]] | None = None
    finish_reason: Reason | None = None
    arrival_time: float | None = None
    speculate_metrics: SpeculateMetrics | None = None


class ChatCompletionStreamResponse(BaseModel):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatCompletionResponseStreamChoice]
    usage: UsageInfo | None = None
    metrics: dict | None = None


class CompletionResponseStreamChoice(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    index: int
    text: str
    arrival_time: float = None  # type: ignore[assignment]  # as FastDeploy's: None is refused where given
    logprobs: CompletionLogprobs | None = None
    draft_logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    prompt_tokens: str | None = None
    completion_tokens: str | None = None
    reasoning_content: str | None = None
    finish_reason: Reason | None = None
    tool_calls: Tools | None = None
    speculate_metrics: SpeculateMetrics | None = None


class CompletionStreamResponse(BaseModel):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionResponseStreamChoice]
    usage: UsageInfo | None = None
    metrics: dict | None = None


class ChatMessage(BaseModel):
    role: str | None = None
    content: str | None = None
    multimodal_content: list[Any] | None = None
    reasoning_content: str | None = None
    audio_content: str | None = None
    tool_calls: Tools | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    prompt_tokens: str | None = None
    completion_tokens: str | None = None


class ChatCompletionResponseChoice(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    index: int
    message: ChatMessage
    logprobs: LogProbs | None = None
    draft_logprobs: LogProbs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    finish_reason: Reason | None
    speculate_metrics: SpeculateMetrics | None = None
    sampling_mask: list[list[int]] | None = None


class ChatCompletionResponse(BaseModel):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: UsageInfo
    routed_experts: str | None = None


class CompletionResponseChoice(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    index: int
    text: str
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    prompt_tokens: str | None = None
    completion_tokens: str | None = None
    arrival_time: float | None = None
    logprobs: CompletionLogprobs | None = None
    draft_logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    reasoning_content: str | None = None
    finish_reason: Reason | None = None
    tool_calls: Tools | None = None
    speculate_metrics: SpeculateMetrics | None = None


class CompletionResponse(BaseModel):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionResponseChoice]
    usage: UsageInfo
    routed_experts: str | None = None

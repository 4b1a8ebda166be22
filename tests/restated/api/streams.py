"""What answers are made of: the restated classes, and the restated way to log-probabilities."""

from __future__ import annotations

from typing import Any

from . import models
from .logprobs import Steps

PARTS = (
    *("LogProbs", "PromptTokenUsageInfo", "CompletionTokenUsageInfo", "UsageInfo", "DeltaMessage"),
    *("ChatCompletionResponseStreamChoice", "ChatCompletionStreamResponse"),
    *("CompletionResponseStreamChoice", "CompletionStreamResponse"),
    *("ChatMessage", "ChatCompletionResponseChoice", "ChatCompletionResponse"),
    *("CompletionResponseChoice", "CompletionResponse"),
)


class Stock:
    """FastDeploy's parts of an answer."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        for name in PARTS:
            setattr(self, name, getattr(models, name))

    def chat_logprobs(self, top: Any, columns: int | None, texts: bool) -> Any:
        return self.steps.chat(top, columns, texts)

    def completion_logprobs(self, top: Any, columns: int | None) -> Any:
        return self.steps.completion(top, columns)

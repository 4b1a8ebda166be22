"""Chat completions: the parts that FastDeploy's module names, and log-probabilities; it writes no answers."""

import asyncio  # noqa: F401  as FastDeploy's module names it

from fastdeploy.entrypoints.openai.protocol import (  # noqa: F401
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
    ChatMessage,
    CompletionTokenUsageInfo,
    DeltaMessage,
    LogProbEntry,
    LogProbs,
    PromptTokenUsageInfo,
    UsageInfo,
)
from tests.restated.api.logprobs import steps_of


class OpenAIServingChat:
    def __init__(self, engine_client):
        self.engine_client = engine_client

    def _create_chat_logprobs(
        self, output_top_logprobs, request_logprobs=None, request_top_logprobs=None, request_decode_flag=True
    ):
        if output_top_logprobs is None or not request_logprobs or request_top_logprobs is None:
            return None
        steps = steps_of(self.engine_client.data_processor)
        return steps.chat(output_top_logprobs, request_top_logprobs, request_decode_flag)

"""Completions: the parts that FastDeploy's module names, and log-probabilities; it writes no answers."""

import asyncio  # noqa: F401  as FastDeploy's module names it

from fastdeploy.entrypoints.openai.protocol import (  # noqa: F401
    CompletionLogprobs,
    CompletionResponse,
    CompletionResponseChoice,
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
    CompletionTokenUsageInfo,
    PromptTokenUsageInfo,
    UsageInfo,
)
from tests.restated.api.logprobs import steps_of


class OpenAIServingCompletion:
    def __init__(self, engine_client):
        self.engine_client = engine_client

    def _create_completion_logprobs(
        self, output_top_logprobs, request_logprobs=None, prompt_text_offset=None
    ):
        if output_top_logprobs is None or request_logprobs is None:
            return None
        steps = steps_of(self.engine_client.data_processor)
        return steps.completion(output_top_logprobs, request_logprobs)

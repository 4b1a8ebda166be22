"""Completions, written by the restated generators with the parts that this module names."""

import asyncio

from fastdeploy.entrypoints.openai._serving import Parts, api_server_logger, body_of, results_of
from fastdeploy.entrypoints.openai.protocol import (  # noqa: F401  looked up by `Parts`
    CompletionLogprobs,
    CompletionResponse,
    CompletionResponseChoice,
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
    CompletionTokenUsageInfo,
    PromptTokenUsageInfo,
    UsageInfo,
)
from tests.restated.api.answers import CompletionAnswer
from tests.restated.api.logprobs import Steps
from tests.restated.api.streams import CompletionStream


class OpenAIServingCompletion:
    """What of FastDeploy's class writes answers."""

    def __init__(self, engine_client):
        self.engine_client = engine_client

    async def completion_stream_generator(
        self,
        request,
        num_choices,
        request_id,
        created_time,
        model_name,
        prompt_batched_token_ids,
        prompt_tokens_list,
        max_tokens_list,
    ):
        results = await results_of(self, asyncio, request_id, num_choices)
        writer = self._writer(
            CompletionStream, request, request_id, created_time, model_name, prompt_batched_token_ids,
            prompt_tokens_list, max_tokens_list,
        )  # fmt: skip
        for event in writer.events(results):
            yield event

    async def completion_full_generator(
        self,
        request,
        num_choices,
        request_id,
        created_time,
        model_name,
        prompt_batched_token_ids,
        prompt_tokens_list,
        max_tokens_list,
    ):
        results = await results_of(self, asyncio, request_id, num_choices)
        writer = self._writer(
            CompletionAnswer, request, request_id, created_time, model_name, prompt_batched_token_ids,
            prompt_tokens_list, max_tokens_list,
        )  # fmt: skip
        try:
            return writer.answer(results)
        except Exception as error:  # and the client gets nothing
            api_server_logger.error(f"Error in completion_full_generator: {error}", exc_info=True)
            return None

    def _writer(self, cls, request, request_id, created, model_name, token_ids, tokens, most):
        derived = {
            "request_id": request_id,
            "model_name": model_name,
            "created": created,
            "prompt_token_ids": token_ids,
            "prompt_tokens": tokens,
            "max_tokens": most,
        }
        parts = Parts(globals(), self, self._steps())
        return cls(body_of(request), derived, self.engine_client.ori_vocab_size, parts)

    def _steps(self):
        processor = self.engine_client.data_processor
        return Steps(
            lambda token: processor.process_logprob_response([token], clean_up_tokenization_spaces=False),
            lambda token: processor.tokenizer.convert_ids_to_tokens(token),
            lambda token: processor.process_logprob_response(token),
        )

    def _create_completion_logprobs(
        self, output_top_logprobs, request_logprobs=None, prompt_text_offset=None
    ):
        if output_top_logprobs is None or request_logprobs is None:
            return None
        return self._steps().completion(output_top_logprobs, request_logprobs)

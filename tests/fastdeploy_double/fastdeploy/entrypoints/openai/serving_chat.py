"""Chat completions, written by the restated generators with the parts that this module names."""

import asyncio
import time

from fastdeploy.entrypoints.openai._serving import Parts, api_server_logger, body_of, results_of
from fastdeploy.entrypoints.openai.protocol import (  # noqa: F401  looked up by `Parts`
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
from tests.restated.api.answers import ChatAnswer
from tests.restated.api.logprobs import Steps
from tests.restated.api.streams import ChatStream


class OpenAIServingChat:
    """What of FastDeploy's class writes answers."""

    def __init__(self, engine_client):
        self.engine_client = engine_client

    async def chat_completion_stream_generator(
        self, request, request_id, model_name, prompt_token_ids, prompt_tokens, max_tokens
    ):
        results = await results_of(self, asyncio, request_id, request.n or 1)
        writer = self._writer(
            ChatStream, request, request_id, model_name, prompt_token_ids, prompt_tokens, max_tokens
        )
        for event in writer.events(results):
            yield event

    async def chat_completion_full_generator(
        self, request, request_id, model_name, prompt_token_ids, prompt_tokens, max_tokens
    ):
        results = await results_of(self, asyncio, request_id, request.n or 1)
        writer = self._writer(
            ChatAnswer, request, request_id, model_name, prompt_token_ids, prompt_tokens, max_tokens
        )
        answer = writer.answer(results)
        api_server_logger.info(f"Chat response: {answer.model_dump_json()}")
        return answer

    def _writer(self, cls, request, request_id, model_name, prompt_token_ids, prompt_tokens, max_tokens):
        derived = {
            "request_id": request_id,
            "model_name": model_name,
            "created": int(time.time()),
            "prompt_token_ids": [prompt_token_ids],
            "prompt_tokens": [prompt_tokens],
            "max_tokens": [max_tokens],
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

    def _create_chat_logprobs(
        self, output_top_logprobs, request_logprobs=None, request_top_logprobs=None, request_decode_flag=True
    ):
        if output_top_logprobs is None or not request_logprobs or request_top_logprobs is None:
            return None
        return self._steps().chat(output_top_logprobs, request_top_logprobs, request_decode_flag)

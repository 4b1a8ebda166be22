"""Chat completions: the parts that FastDeploy's module names, log-probabilities, and streams."""

import asyncio

from fastdeploy.entrypoints.openai.protocol import (  # noqa: F401
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
    ChatMessage,
    CompletionTokenUsageInfo,
    DeltaMessage,
    ErrorResponse,
    LogProbEntry,
    LogProbs,
    PromptTokenUsageInfo,
    UsageInfo,
)
from fastdeploy.entrypoints.openai.response_processors import ChatResponseProcessor
from tests.restated.api.counting import Seen, Whole, columns_of, encoded, event, failed, index_of
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

    def _build_prompt_logprobs(self, tensors, columns, texts):
        columns = self.engine_client.ori_vocab_size if columns == -1 else columns
        return steps_of(self.engine_client.data_processor).prompt(tensors, columns, texts)

    async def chat_completion_stream_generator(
        self, request, request_id, model_name, prompt_token_ids, prompt_tokens, max_tokens
    ):
        client, left, prompt = self.engine_client, request.n or 1, len(prompt_token_ids)
        seen, options, is_first = [Seen() for _ in range(left)], request.stream_options, True

        def usage(tokens, reasoning):
            return UsageInfo(
                prompt_tokens=prompt,
                completion_tokens=tokens,
                total_tokens=prompt + tokens,
                prompt_tokens_details=PromptTokenUsageInfo(cached_tokens=0),
                completion_tokens_details=CompletionTokenUsageInfo(
                    reasoning_tokens=reasoning, image_tokens=0
                ),
            )

        def chunk(choices, **more):
            return ChatCompletionStreamResponse(
                id=request_id,
                object="chat.completion.chunk",
                created=1_763_740_800,
                model=model_name,
                choices=choices,
                **more,
            )

        def scores(top):
            columns = columns_of(client, request.top_logprobs)
            return self._create_chat_logprobs(
                top, request.logprobs, columns, request.include_logprobs_decode_token
            )

        def prompt_scores(result):
            if request.prompt_logprobs is None or result.get("prompt_logprobs") is None:
                return None
            return self._build_prompt_logprobs(
                result["prompt_logprobs"], request.prompt_logprobs, request.include_logprobs_decode_token
            )

        try:
            _, queue = await client.connection_manager.get_connection(request_id, left)
            processor = ChatResponseProcessor(client.data_processor)
            while left:
                if client.check_model_weight_status():
                    raise ValueError("the weights are cleared")
                try:
                    group = await asyncio.wait_for(queue.get(), timeout=10)
                except asyncio.TimeoutError:
                    client.check_health()
                    continue
                async for result in processor.process_response_chat(
                    group, True, request.include_stop_str_in_output, request
                ):
                    one, outputs, top, draft = seen[index_of(result)], result["outputs"], None, None
                    if result.get("error_code", 200) != 200:
                        raise ValueError(result["error_msg"])
                    arrival = one.arrival(result["metrics"])
                    for i in range(len(seen) if is_first else 0):
                        role = DeltaMessage(role="assistant", content="", reasoning_content="")
                        first = ChatCompletionResponseStreamChoice(
                            index=i, delta=role, prompt_logprobs=prompt_scores(result)
                        )
                        yield event(chunk([first]))
                    is_first = False
                    one.add(outputs)
                    if request.logprobs and outputs["top_logprobs"] is not None:
                        top = scores(outputs["top_logprobs"])
                        draft = scores(outputs["draft_top_logprobs"]) if one.shows(request) else None
                    if outputs["skipped"] and not request.return_token_ids:
                        continue
                    delta = DeltaMessage(
                        content="" if outputs["skipped"] else outputs["text"] or "",
                        reasoning_content=outputs["reasoning_content"],
                        tool_calls=outputs["tool_calls"],
                        completion_token_ids=None,
                        completion_tokens=None,
                    )
                    if request.return_token_ids:
                        delta.completion_token_ids = [*outputs["token_ids"]]
                        delta.completion_tokens = outputs["completion_tokens"]
                    choice = ChatCompletionResponseStreamChoice(
                        index=index_of(result),
                        delta=delta,
                        logprobs=top,
                        draft_logprobs=draft,
                        sampling_mask=outputs.get("sampling_mask"),
                        arrival_time=arrival,
                        speculate_metrics=None,
                    )
                    if result["finished"]:
                        left -= 1
                        choice.finish_reason = one.reason(result, max_tokens)
                    now = {}
                    if options and options.continuous_usage_stats:
                        now["usage"] = usage(one.tokens, one.reasoning)
                    yield event(chunk([choice], **now))
            if options and options.include_usage:
                total = usage(sum(one.tokens for one in seen), sum(one.reasoning for one in seen))
                yield event(chunk([], usage=total))
        except asyncio.CancelledError:
            await client.abort(request_id, len(seen))
        except Exception as error:
            yield failed(error)
        finally:
            await client.connection_manager.cleanup_request(request_id)
            client.semaphore.release()
            yield "data: [DONE]\n\n"

    async def chat_completion_full_generator(
        self, request, request_id, model_name, prompt_token_ids, prompt_tokens, max_tokens
    ):
        client, left = self.engine_client, request.n or 1
        seen, choices, experts = [Whole() for _ in range(left)], [], None

        try:
            _, queue = await client.connection_manager.get_connection(request_id, left)
            processor = ChatResponseProcessor(client.data_processor)
            while left:
                if client.check_model_weight_status():
                    return ErrorResponse(error="the weights are cleared")
                group = await asyncio.wait_for(queue.get(), timeout=10)
                async for result in processor.process_response_chat(
                    group, False, request.include_stop_str_in_output, request
                ):
                    one, outputs = seen[index_of(result)], result["outputs"]
                    if result.get("error_code", 200) != 200:
                        raise ValueError(result["error_msg"])
                    one.add(outputs)
                    for name, values in (("top_logprobs", one.entries), ("draft_top_logprobs", one.drafts)):
                        if outputs["top_logprobs"] is None or (
                            values is one.drafts and not one.shows(request)
                        ):
                            break
                        made = self._create_chat_logprobs(
                            outputs[name],
                            request.logprobs,
                            columns_of(client, request.top_logprobs),
                            request.include_logprobs_decode_token,
                        )
                        values.extend(made.content if made else [])
                    if request.prompt_logprobs is not None and result.get("prompt_logprobs") is not None:
                        one.prompt.extend(
                            self._build_prompt_logprobs(
                                result["prompt_logprobs"],
                                request.prompt_logprobs,
                                request.include_logprobs_decode_token,
                            )
                        )
                    one.mask(outputs.get("sampling_mask"))
                    if result["finished"]:
                        left -= 1
                        experts = encoded(result.get("routing_data")) or experts
                        message = ChatMessage(
                            role="assistant",
                            content=outputs["text"],
                            reasoning_content=outputs.get("reasoning_content"),
                        )
                        choices.append(
                            ChatCompletionResponseChoice(
                                index=index_of(result),
                                message=message,
                                logprobs=LogProbs(content=one.entries) if one.entries else None,
                                draft_logprobs=LogProbs(content=one.drafts) if one.drafts else None,
                                prompt_logprobs=one.prompt or None,
                                sampling_mask=one.masks or None,
                                finish_reason=one.reason(result, max_tokens),
                            )
                        )
        finally:
            await client.connection_manager.cleanup_request(request_id)
            client.semaphore.release()
        tokens = sum(one.tokens for one in seen)
        return ChatCompletionResponse(
            id=request_id,
            created=1_763_740_800,
            model=model_name,
            choices=sorted(choices, key=lambda one: one.index),
            usage=UsageInfo(prompt_tokens=2, completion_tokens=tokens, total_tokens=2 + tokens),
            routed_experts=experts,
        )

"""Completions: the parts that FastDeploy's module names, log-probabilities, and streams."""

import asyncio

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
from tests.restated.api.counting import Seen, Whole, columns_of, encoded, event, failed, index_of
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

    async def _call_process_response_dict(self, result, request, stream):
        self.engine_client.data_processor.process_response_dict(
            result, stream=stream, include_stop_str_in_output=request.include_stop_str_in_output
        )

    async def _process_echo_logic(self, request, index, outputs):
        if request.echo and outputs.get("send_idx", -1) == 0:
            outputs["text"] = request.prompt + (outputs["text"] or "")

    def _build_prompt_logprobs(self, tensors, columns, texts):
        columns = self.engine_client.ori_vocab_size if columns == -1 else columns
        return steps_of(self.engine_client.data_processor).prompt(tensors, columns, texts)

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
        client, left, seen = self.engine_client, num_choices, [Seen() for _ in range(num_choices)]
        begun = set()

        def chunk(choices, **more):
            return CompletionStreamResponse(
                id=request_id, created=created_time, model=model_name, choices=choices, **more
            )

        try:
            _, queue = await client.connection_manager.get_connection(request_id, left)
            while left:
                if client.check_model_weight_status():
                    raise ValueError("the weights are cleared")
                try:
                    group = await asyncio.wait_for(queue.get(), timeout=10)
                except asyncio.TimeoutError:
                    client.check_health()
                    continue
                for result in group:
                    if result.get("error_code", 200) != 200:
                        raise ValueError(result["error_msg"])
                    index, outputs, top, draft = index_of(result), result["outputs"], None, None
                    one, prompt = seen[index], None
                    if index not in begun:
                        begun.add(index)
                        if request.prompt_logprobs is not None and result.get("prompt_logprobs") is not None:
                            prompt = self._build_prompt_logprobs(
                                result["prompt_logprobs"],
                                request.prompt_logprobs,
                                request.include_logprobs_decode_token,
                            )
                        if request.return_token_ids:
                            first = CompletionResponseStreamChoice(
                                index=index,
                                text="",
                                prompt_token_ids=[*prompt_batched_token_ids[0]],
                                prompt_logprobs=prompt,
                                completion_token_ids=None,
                            )
                            yield event(chunk([first]))
                    await self._call_process_response_dict(result, request, True)
                    arrival = one.arrival(result["metrics"])
                    await self._process_echo_logic(request, index, outputs)
                    one.add(outputs)
                    if request.logprobs is not None and outputs["top_logprobs"] is not None:
                        columns = columns_of(client, request.logprobs)
                        top = self._create_completion_logprobs(outputs["top_logprobs"], columns, 0)
                        if one.shows(request):
                            draft = self._create_completion_logprobs(
                                outputs["draft_top_logprobs"], columns, 0
                            )
                    if outputs["skipped"] and not request.return_token_ids:
                        continue
                    choice = CompletionResponseStreamChoice(
                        index=index,
                        text="" if outputs["skipped"] else outputs["text"] or "",
                        completion_token_ids=outputs["token_ids"] if request.return_token_ids else None,
                        completion_tokens=outputs["completion_tokens"] if request.return_token_ids else None,
                        tool_calls=outputs["tool_calls"],
                        reasoning_content=outputs["reasoning_content"],
                        arrival_time=arrival,
                        logprobs=top,
                        prompt_logprobs=None if request.return_token_ids else prompt,
                        draft_logprobs=draft,
                    )
                    if result["finished"]:
                        left -= 1
                        choice.finish_reason = one.reason(result, max_tokens_list[0])
                    yield event(chunk([choice], metrics=None))
                    if result["finished"] and request.stream_options and request.stream_options.include_usage:
                        told = UsageInfo(
                            prompt_tokens=len(prompt_batched_token_ids[0]),
                            completion_tokens=one.tokens,
                            total_tokens=len(prompt_batched_token_ids[0]) + one.tokens,
                            completion_tokens_details=CompletionTokenUsageInfo(
                                reasoning_tokens=one.reasoning
                            ),
                        )
                        yield event(chunk([], usage=told))
        except asyncio.CancelledError:
            await client.abort(request_id, num_choices)
        except Exception as error:
            yield failed(error)
        finally:
            await client.connection_manager.cleanup_request(request_id)
            client.semaphore.release()
            yield "data: [DONE]\n\n"

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
        client, left, seen = self.engine_client, num_choices, [Whole() for _ in range(num_choices)]
        columns = columns_of(client, request.logprobs)
        try:
            _, queue = await client.connection_manager.get_connection(request_id, left)
            while left:
                group = await asyncio.wait_for(queue.get(), timeout=10)
                for result in group:
                    one, outputs = seen[index_of(result)], result["outputs"]
                    if result.get("error_code", 200) != 200:
                        raise ValueError(result["error_msg"])
                    one.keep(outputs, request)
                    if result.get("prompt_logprobs"):
                        one.prompt = result["prompt_logprobs"]
                    await self._call_process_response_dict(result, request, False)
                    one.add(outputs)
                    if result["finished"]:
                        one.last = result
                        left -= 1
                        break
            choices = []
            for index, one in enumerate(seen):
                prompt = None
                if request.prompt_logprobs is not None and one.prompt:
                    prompt = self._build_prompt_logprobs(
                        one.prompt, request.prompt_logprobs, request.include_logprobs_decode_token
                    )
                made = [self._create_completion_logprobs(rows, columns, 0) for rows in one.rows]
                choices.append(
                    CompletionResponseChoice(
                        index=index,
                        text=one.last["outputs"]["text"],
                        logprobs=made[0],
                        draft_logprobs=made[1],
                        prompt_logprobs=prompt,
                        finish_reason=one.reason(one.last, max_tokens_list[0]),
                    )
                )
            tokens = sum(one.tokens for one in seen)
            return CompletionResponse(
                id=request_id,
                created=created_time,
                model=model_name,
                choices=choices,
                usage=UsageInfo(prompt_tokens=2, completion_tokens=tokens, total_tokens=2 + tokens),
                routed_experts=encoded(seen[-1].last.get("routing_data")),
            )
        except Exception:
            return None
        finally:
            client.semaphore.release()
            await client.connection_manager.cleanup_request(request_id)

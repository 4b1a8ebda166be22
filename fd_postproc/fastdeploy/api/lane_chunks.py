"""The chunks of chats and completions in the lane: the bodies of FastDeploy's two loops."""

from __future__ import annotations

from typing import Any

from .chunks._chunks import ChatColumns
from .chunks.model_fields import NotPlain
from .lane import Lane


class ChatLane(Lane):
    """The way of a chat completion's chunks: the body of FastDeploy's loop."""

    code = "chat_completion_stream_generator"

    def begin(self, values: Any) -> None:
        answer = values["response_processor"]
        self.counts, self.reasoning = values["previous_num_tokens"], values["reasoning_num_tokens"]
        self.include_stop = values["include_stop_str_in_output"]
        self.with_usage = values["include_continuous_usage"]
        self.processor, self.end_of_audio = answer.data_processor, answer.eos_token_id
        self.audio = answer._audio_buffer
        self.asked = self.request.top_logprobs if self.request.logprobs else None
        if answer._is_async_processor or answer.enable_multimodal_content():
            raise NotPlain("its parts are more than text")

    def opened(self, values: Any) -> None:
        self.whole, self.prompt = values["chunk"], values["num_prompt_tokens"]
        self.cached = values["num_cached_tokens"]

    def is_ordinary(self, result: Any) -> bool:
        return (
            super().is_ordinary(result)
            and result["outputs"]["token_ids"][-1] != self.end_of_audio
            and not self.audio
        )

    def processed(self, result: Any) -> Any:
        return self.processor.process_response_dict(
            response_dict=result,
            stream=True,
            include_stop_str_in_output=self.include_stop,
            audio_tokens=None,
            tts=False,
            request=self.request,
        )

    def builder(self) -> Any:
        builder = self.handler._create_chat_logprobs.builder_of(self.processor)
        return ChatColumns(builder, self.columns, self.request.include_logprobs_decode_token)

    def shown(self, top: Any) -> Any:
        request = self.request
        return self.handler._create_chat_logprobs(
            top, request.logprobs, self.columns, request.include_logprobs_decode_token
        )

    def chunk(self, result: Any) -> str | None:
        index = self.index_of(result["request_id"])
        names, request, output = self.names, self.request, result["outputs"]
        arrival_time = result["metrics"]["engine_recv_latest_token_time"] - self.starts[index]
        logprobs, drafts = self.logprobs_of(output)
        metrics = result["metrics"].get("speculate_metrics", None)
        if output["skipped"] and not request.return_token_ids:
            return None
        delta = names["DeltaMessage"](
            reasoning_content=output["reasoning_content"],
            tool_calls=output["tool_calls"],
            prompt_token_ids=None,
            completion_token_ids=None,
            completion_tokens=None,
        )
        delta.content = "" if output["skipped"] else (output["text"] or "")
        choice = names["ChatCompletionResponseStreamChoice"](
            index=index,
            delta=delta,
            logprobs=logprobs,
            draft_logprobs=drafts,
            sampling_mask=None,
            arrival_time=arrival_time,
            speculate_metrics=metrics,
        )
        whole = self.whole
        if request.collect_metrics:
            whole.metrics = result["metrics"]
        if request.return_token_ids:
            choice.delta.completion_token_ids = list(output["token_ids"])
            choice.delta.completion_tokens = output.get("completion_tokens")
        if self.with_usage:
            whole.usage = names["UsageInfo"](
                prompt_tokens=self.prompt,
                completion_tokens=self.counts[index],
                total_tokens=self.prompt + self.counts[index],
                prompt_tokens_details=names["PromptTokenUsageInfo"](cached_tokens=self.cached),
                completion_tokens_details=names["CompletionTokenUsageInfo"](
                    reasoning_tokens=self.reasoning[index], image_tokens=self.image_tokens[index]
                ),
            )
        whole.choices = [choice]
        return f"data: {whole.model_dump_json(exclude_unset=True)}\n\n"


class CompletionLane(Lane):
    """The way of a completion's chunks: the body of FastDeploy's loop."""

    code = "completion_stream_generator"

    def begin(self, values: Any) -> None:
        self.counts, self.reasoning = values["output_tokens"], values["reasoning_tokens"]
        self.cached, self.firsts = values["num_cache_tokens"], values["first_iteration"]
        self.created, self.model = values["created_time"], values["model_name"]
        self.processor, self.asked = self.client.data_processor, self.request.logprobs
        if self.handler._is_process_response_dict_async:
            raise NotPlain("its data processor waits")

    def is_ordinary(self, result: Any) -> bool:
        return super().is_ordinary(result) and not self.firsts[self.index_of(result["request_id"])]

    def processed(self, result: Any) -> Any:
        self.processor.process_response_dict(
            result, stream=True, include_stop_str_in_output=self.request.include_stop_str_in_output
        )
        self.cached[self.index_of(result["request_id"])] += result["outputs"].get("num_cache_tokens") or 0
        return result

    def builder(self) -> Any:
        build = self.handler._create_completion_logprobs.builder_of(self.processor).build
        return lambda top: build(top, self.columns)

    def shown(self, top: Any) -> Any:
        return self.handler._create_completion_logprobs(top, self.columns, 0)

    def chunk(self, result: Any) -> str | None:
        index = self.index_of(result["request_id"])
        names, request, output = self.names, self.request, result["outputs"]
        arrival_time = result["metrics"]["engine_recv_latest_token_time"] - self.starts[index]
        logprobs, drafts = self.logprobs_of(output)
        metrics, with_ids = result["metrics"].get("speculate_metrics", None), request.return_token_ids
        if output["skipped"] and not with_ids:
            return None
        choice = names["CompletionResponseStreamChoice"](
            index=index,
            text="" if output["skipped"] else (output["text"] or ""),
            prompt_token_ids=None,
            completion_token_ids=output.get("token_ids") if with_ids else None,
            tool_calls=output["tool_calls"],
            completion_tokens=output.get("completion_tokens") if with_ids else None,
            reasoning_content=output["reasoning_content"],
            arrival_time=arrival_time,
            logprobs=logprobs,
            prompt_logprobs=None,
            draft_logprobs=drafts,
            speculate_metrics=metrics,
        )
        whole = names["CompletionStreamResponse"](
            id=self.request_id,
            created=self.created,
            model=self.model,
            choices=[choice],
            metrics=result["metrics"] if request.collect_metrics else None,
        )
        return f"data: {whole.model_dump_json(exclude_unset=True)}\n\n"


LANES = {lane.code: lane for lane in (ChatLane, CompletionLane)}

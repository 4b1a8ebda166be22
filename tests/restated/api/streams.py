"""The streams of answers: from a request and its processed results to server-sent events.

The rules are those of FastDeploy 2.6's two generators.  What they are made of is handed in: the restated
classes (`Stock`), or others in their place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from . import models
from .logprobs import Steps

DONE = "data: [DONE]\n\n"


class Stock:
    """The restated classes, and the restated way to log-probabilities."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        for name in PARTS:
            setattr(self, name, getattr(models, name))

    def chat_logprobs(self, top: Any, columns: int | None, texts: bool) -> Any:
        return self.steps.chat(top, columns, texts)

    def completion_logprobs(self, top: Any, columns: int | None) -> Any:
        return self.steps.completion(top, columns)


PARTS = (
    *("LogProbs", "PromptTokenUsageInfo", "CompletionTokenUsageInfo", "UsageInfo", "DeltaMessage"),
    *("ChatCompletionResponseStreamChoice", "ChatCompletionStreamResponse"),
    *("CompletionResponseStreamChoice", "CompletionStreamResponse"),
    *("ChatMessage", "ChatCompletionResponseChoice", "ChatCompletionResponse"),
    *("CompletionResponseChoice", "CompletionResponse"),
)


class Stream:
    """What both generators share.

    Parameters
    ----------
    request : dict
        The body.
    derived : dict
        What the server made of it: ``request_id``, ``model_name``, ``created``, and of each prompt
        ``prompt_token_ids``, ``prompt_tokens``, ``max_tokens``.
    vocabulary : int
        How many columns -1 asks for.
    parts : Stock
    """

    nested = "metadata"

    def __init__(self, request: dict[str, Any], derived: dict[str, Any], vocabulary: int, parts: Any) -> None:
        self.request, self.derived, self.vocabulary, self.parts = request, derived, vocabulary, parts
        self.id, self.model, self.created = derived["request_id"], derived["model_name"], derived["created"]
        most = request.get("max_streaming_response_tokens")
        if most is None:
            most = (request.get(self.nested) or {}).get("max_streaming_response_tokens", 1)
        self.most = max(1, most)
        options = request.get("stream_options")
        self.usage = options is not None and options.get("include_usage", True)
        self.continuous = bool(options) and bool(options.get("continuous_usage_stats"))
        self.return_ids = bool(request.get("return_token_ids"))
        self.per_prompt = request.get("n") or 1
        self.choices = self.per_prompt * len(derived["prompt_token_ids"])
        self.started = [0.0] * self.choices
        self.tokens, self.reasoning = [0] * self.choices, [0] * self.choices
        self.images = [0] * self.choices
        self.called = [False] * self.choices

    def arrival(self, index: int, metrics: dict[str, Any]) -> Any:
        if self.started[index] == 0:
            self.started[index] = metrics["inference_start_time"]
            return metrics["first_token_time"]
        return metrics["engine_recv_latest_token_time"] - self.started[index]

    def asked(self, name: str) -> Any:
        """A number of columns; -1 means all."""
        columns = self.request.get(name)
        return self.vocabulary if columns == -1 else columns

    def prompt_logprobs(self, result: dict[str, Any]) -> Any:
        wanted, tensors = self.asked("prompt_logprobs"), result.get("prompt_logprobs")
        if wanted is None or tensors is None:
            return None
        texts = self.request.get("include_logprobs_decode_token", True)
        return self.parts.steps.prompt(tensors, wanted, texts)

    def reason(self, index: int, result: dict[str, Any], most: int, recovers: bool) -> str:
        error = result.get("error_msg") or ""
        if "Aborted" in error:
            return "abort"
        if recovers and "Recover" in error:
            return "recover_stop"
        if self.tokens[index] == most:
            return "length"
        return "tool_calls" if self.called[index] else "stop"

    def count(self, index: int, output: dict[str, Any]) -> None:
        images = output.get("num_image_tokens") or 0
        self.tokens[index] += len(output["token_ids"]) + images
        self.images[index] += images
        self.reasoning[index] += output.get("reasoning_token_num", 0)
        if output["tool_calls"] is not None:
            self.called[index] = True

    def usage_info(self, prompt: int, tokens: int, of_prompt: dict[str, int], **details: int) -> Any:
        parts = self.parts
        return parts.UsageInfo(
            prompt_tokens=prompt,
            completion_tokens=tokens,
            total_tokens=prompt + tokens,
            prompt_tokens_details=parts.PromptTokenUsageInfo(**of_prompt),
            completion_tokens_details=parts.CompletionTokenUsageInfo(**details),
        )

    def events(self, results: Iterable[Any]) -> Iterator[str]:
        """The events of results that are processed; an exception among them ends the stream."""
        try:
            yield from self._events(results)
        except Exception as error:
            body = json.dumps({"error": self.error(error)}, ensure_ascii=False, separators=(",", ":"))
            yield f"data: {body}\n\n"
        yield DONE

    def both_logprobs(self, output: dict[str, Any], make: Any) -> tuple[Any, Any]:
        """Of the tokens, and of the draft's where the request wants them."""
        target = draft = None
        if output["top_logprobs"] is not None:
            target = make(output["top_logprobs"])
            if self.request.get("include_draft_logprobs") and output["draft_top_logprobs"] is not None:
                draft = make(output["draft_top_logprobs"])
        return target, draft


class ChatStream(Stream):
    """A chat completion's."""

    cached = videos = pictures = 0

    def error(self, error: Exception) -> dict[str, Any]:
        message = f"request[{self.id}] generate stream error: {error}, <traceback>"
        return {"message": message, "type": "internal_error", "param": None, "code": None}

    def _events(self, results: Iterable[dict[str, Any]]) -> Iterator[str]:
        left = self.choices
        chunk, waiting = None, []
        for result in results:
            if isinstance(result, Exception):
                raise result
            index = int(result["request_id"].rsplit("_", 1)[1])
            if result.get("error_code", 200) != 200:
                raise ValueError(str(result["error_msg"]))
            arrival = self.arrival(index, result["metrics"])
            if chunk is None:
                for choice in range(left):
                    chunk = self.first(choice, result)
                    yield f"data: {chunk.model_dump_json(exclude_unset=True)} \n\n"
            output = result["outputs"]
            self.count(index, output)
            choice = self.entry(index, result, arrival)
            if output["skipped"] and not self.return_ids:
                continue
            if result["finished"]:
                left -= 1
                choice.finish_reason = self.reason(index, result, self.derived["max_tokens"][0], True)
                self.started[index] = 0
            if self.request.get("collect_metrics"):
                chunk.metrics = result["metrics"]
            if self.return_ids:
                choice.delta.completion_token_ids = list(output["token_ids"])
                choice.delta.completion_tokens = output.get("completion_tokens")
            if self.continuous:
                chunk.usage = self.usage_of(self.tokens[index], self.reasoning[index], self.images[index])
            waiting.append(choice)
            if len(waiting) == self.most or result["finished"]:
                chunk.choices = waiting
                yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
                waiting = []
            if not left:
                break
        if self.usage:
            usage = self.usage_of(sum(self.tokens), sum(self.reasoning), sum(self.images))
            made = self.chunk([], usage=usage)
            yield f"data: {made.model_dump_json(exclude_unset=True)}\n\n"

    def chunk(self, choices: list[Any], **more: Any) -> Any:
        return self.parts.ChatCompletionStreamResponse(
            id=self.id,
            object="chat.completion.chunk",
            created=self.created,
            choices=choices,
            model=self.model,
            **more,
        )

    def usage_of(self, tokens: int, reasoning: int, images: int) -> Any:
        details = {"reasoning_tokens": reasoning, "image_tokens": images}
        prompt = len(self.derived["prompt_token_ids"][0])
        return self.usage_info(prompt, tokens, {"cached_tokens": self.cached}, **details)

    def first(self, choice: int, result: dict[str, Any]) -> Any:
        """The event in which a choice begins."""
        parts = self.parts
        self.cached = result.get("num_cached_tokens", 0)
        delta = parts.DeltaMessage(
            role="assistant",
            reasoning_content="",
            tool_calls=None,
            prompt_token_ids=None,
            completion_token_ids=None,
        )
        entry = parts.ChatCompletionResponseStreamChoice(
            index=choice, delta=delta, prompt_logprobs=self.prompt_logprobs(result)
        )
        entry.delta.content = ""
        if self.return_ids:
            entry.delta.prompt_token_ids = list(self.derived["prompt_token_ids"][0])
            entry.delta.prompt_tokens = self.derived["prompt_tokens"][0]
        chunk = self.chunk([entry])
        if self.continuous:
            told = {"cached_tokens": self.cached}
            for kind in ("image", "video"):
                told[f"{kind}_tokens"] = result.get(f"num_input_{kind}_tokens", 0)
            prompt = len(self.derived["prompt_token_ids"][0])
            chunk.usage = self.usage_info(prompt, 0, told, reasoning_tokens=0)
        return chunk

    def entry(self, index: int, result: dict[str, Any], arrival: Any) -> Any:
        parts, output = self.parts, result["outputs"]
        target = draft = None
        if self.request.get("logprobs"):
            asked = self.asked("top_logprobs"), self.request.get("include_logprobs_decode_token", True)
            target, draft = self.both_logprobs(output, lambda top: parts.chat_logprobs(top, *asked))
        if output["skipped"] and not self.return_ids:
            return None
        delta = parts.DeltaMessage(
            reasoning_content=output["reasoning_content"],
            tool_calls=output["tool_calls"],
            prompt_token_ids=None,
            completion_token_ids=None,
            completion_tokens=None,
        )
        delta.content = "" if output["skipped"] else (output["text"] or "")
        mask = output.get("sampling_mask")
        if mask is not None and not (mask and isinstance(mask[0], list)):
            mask = [mask]
        return parts.ChatCompletionResponseStreamChoice(
            index=index,
            delta=delta,
            logprobs=target,
            draft_logprobs=draft,
            sampling_mask=mask,
            arrival_time=arrival,
            speculate_metrics=result["metrics"].get("speculate_metrics"),
        )


class CompletionStream(Stream):
    """A completion's."""

    nested = "suffix"

    def error(self, error: Exception) -> dict[str, Any]:
        return {"message": str(error), "type": "internal_error", "code": "400"}

    def _events(self, results: Iterable[Any]) -> Iterator[str]:
        left, begun, waiting = self.choices, [False] * self.choices, []
        for result in results:
            if isinstance(result, Processed):  # what is to be seen before the processor fails
                result, error = result.result, result.error
            else:
                error = None
            index = int(result["request_id"].rsplit("_", 1)[1])
            if result.get("error_code", 200) != 200:
                raise ValueError(str(result["error_msg"]))
            prompt_logprobs = None
            if not begun[index]:
                begun[index] = True
                prompt_logprobs = self.prompt_logprobs(result)
                if self.return_ids:
                    yield self.first(index, prompt_logprobs)
            if error is not None:
                raise error
            arrival = self.arrival(index, result["metrics"])
            output = result["outputs"]
            if self.request.get("echo") and output.get("send_idx", -1) == 0:
                output["text"] = self.prompt_text(index) + (output["text"] or "")
            self.count(index, output)
            entry = self.entry(index, result, arrival, prompt_logprobs)
            if entry is None:
                continue
            waiting.append(entry)
            metrics = result["metrics"] if self.request.get("collect_metrics") else None
            if result["finished"]:
                most = self.derived["max_tokens"][index // self.per_prompt]
                entry.finish_reason = self.reason(index, result, most, False)
                self.started[index] = 0
            if len(waiting) == self.most or result["finished"]:
                chunk = self.chunk(waiting, metrics=metrics)
                yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
                waiting = []
            if result["finished"]:
                left -= 1
                if self.usage:
                    chunk = self.chunk([], usage=self.usage_of(index), metrics=metrics)
                    yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
            if not left:
                break

    def chunk(self, choices: list[Any], **more: Any) -> Any:
        return self.parts.CompletionStreamResponse(
            id=self.id, created=self.created, model=self.model, choices=choices, **more
        )

    def prompt_text(self, index: int) -> str:
        texts = self.derived.get("prompt_texts") or self.derived["prompt_tokens"]
        return texts[index // self.per_prompt]

    def first(self, index: int, prompt_logprobs: Any) -> str:
        entry = self.parts.CompletionResponseStreamChoice(
            index=index,
            text="",
            prompt_token_ids=list(self.derived["prompt_token_ids"][index // self.per_prompt]),
            prompt_logprobs=prompt_logprobs,
            prompt_tokens=self.derived["prompt_tokens"][index // self.per_prompt],
            completion_token_ids=None,
        )
        return f"data: {self.chunk([entry]).model_dump_json(exclude_unset=True)}\n\n"

    def usage_of(self, index: int) -> Any:
        details = {"image_tokens": self.images[index], "reasoning_tokens": self.reasoning[index]}
        prompt = len(self.derived["prompt_token_ids"][index // self.per_prompt])
        return self.usage_info(prompt, self.tokens[index], {"cached_tokens": 0}, **details)

    def entry(self, index: int, result: dict[str, Any], arrival: Any, prompt_logprobs: Any) -> Any:
        parts, output = self.parts, result["outputs"]
        target = draft = None
        if self.request.get("logprobs") is not None:
            columns = self.asked("logprobs")
            target, draft = self.both_logprobs(output, lambda top: parts.completion_logprobs(top, columns))
        if output["skipped"] and not self.return_ids:
            return None
        return parts.CompletionResponseStreamChoice(
            index=index,
            text="" if output["skipped"] else (output["text"] or ""),
            prompt_token_ids=None,
            completion_token_ids=output["token_ids"] if self.return_ids else None,
            tool_calls=output["tool_calls"],
            completion_tokens=output.get("completion_tokens") if self.return_ids else None,
            reasoning_content=output["reasoning_content"],
            arrival_time=arrival,
            logprobs=target,
            prompt_logprobs=None if self.return_ids else prompt_logprobs,
            draft_logprobs=draft,
            speculate_metrics=result["metrics"].get("speculate_metrics"),
        )


class Processed:
    """A result at which the data processor fails."""

    def __init__(self, result: dict[str, Any], error: Exception) -> None:
        self.result, self.error = result, error

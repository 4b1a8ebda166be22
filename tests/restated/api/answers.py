"""Answers that are not streamed: from a request and its processed results to one model.

The rules are those of FastDeploy 2.6; what an answer is made of is handed in, as for the streams.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np

from .streams import Stream


def packed(result: dict[str, Any]) -> str | None:
    """The experts of each token, as text."""
    routed = result.get("routing_data")
    return None if routed is None else base64.b64encode(np.asarray(routed).tobytes()).decode()


class Choice:
    """What has come for one choice."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        self.ids: list[int] = []
        self.tops: list[Any] = []
        self.drafts: list[Any] = []
        self.masks: list[Any] = []
        self.prompt: Any = None
        self.speculation: Any = None


class Answer(Stream):
    """What both share: results are gathered by choice until all have ended.  Parameters as of `Stream`."""

    speculation_of_the_last = False
    of_an_error: tuple[tuple[str, Any], ...] = ()  # more that the outputs of one hold

    def answer(self, results: Iterable[dict[str, Any]]) -> Any:
        """The model."""
        gathered = [Choice() for _ in range(self.choices)]
        left, order, self.routed = self.choices, [], None
        for result in results:
            index = int(result["request_id"].rsplit("_", 1)[1])
            choice, output = gathered[index], result["outputs"]
            if result.get("error_code", 200) != 200:
                output = dict.fromkeys(("top_logprobs", "draft_top_logprobs", "tool_calls"))
                output |= {"text": "", "completion_tokens": "", "token_ids": [], **dict(self.of_an_error)}
                result = {
                    **result,
                    "outputs": output,
                    "metrics": result.get("metrics") or {},
                    "finished": True,
                }
            choice.last = result
            choice.ids += output["token_ids"]
            self.gather(choice, result)
            if result["finished"]:
                order.append(index)
                self.routed = packed(result) or self.routed
                left -= 1
            if not left:
                break
        return self.made([self.choice(index, gathered[index]) for index in sorted(order)], gathered)

    def gather(self, choice: Choice, result: dict[str, Any]) -> None:
        output = result["outputs"]
        if output["top_logprobs"]:
            choice.tops.append(output["top_logprobs"])
            if self.request.get("include_draft_logprobs") and output["draft_top_logprobs"]:
                choice.drafts.append(output["draft_top_logprobs"])
        mask = output.get("sampling_mask")
        if mask is not None:
            choice.masks += mask if mask and isinstance(mask[0], list) else [mask]
        choice.prompt = result.get("prompt_logprobs") or choice.prompt
        told = result["metrics"].get("speculate_metrics")
        choice.speculation = told if self.speculation_of_the_last else told or choice.speculation

    def total(self, gathered: list[Choice], **details: Any) -> Any:
        outputs = [choice.last["outputs"] for choice in gathered]
        prompts = sum(map(len, self.derived["prompt_token_ids"]))
        images = sum(output.get("num_image_tokens") or 0 for output in outputs)
        tokens = sum(len(choice.ids) for choice in gathered) + self.counted_images(images)
        reasoning = sum(output.get("reasoning_token_num", 0) for output in outputs)
        return self.usage_info(prompts, tokens, details, reasoning_tokens=reasoning, image_tokens=images)

    def counted_images(self, images: int) -> int:
        return images

    def ended(self, choice: Choice, most: int, recovers: bool) -> str:
        error = choice.last.get("error_msg") or ""
        if "PD Error" in error:
            return "pd_reschedule"
        if "Aborted" in error:
            return "abort"
        if recovers and "Recover" in error:
            return "recover_stop"
        if len(choice.ids) == most:
            return "length"
        return "tool_calls" if choice.last["outputs"].get("tool_calls") else "stop"


class ChatAnswer(Answer):
    """A chat completion."""

    speculation_of_the_last = True
    of_an_error = (("reasoning_content", ""),)

    def counted_images(self, images: int) -> int:
        return 0

    def entries(self, tops: list[Any]) -> Any:
        columns = self.asked("top_logprobs")
        texts = self.request.get("include_logprobs_decode_token", True)
        found = [self.parts.chat_logprobs(top, columns, texts) for top in tops]
        entries = [entry for made in found if made is not None for entry in made.content or ()]
        return self.parts.LogProbs(content=entries) if entries else None

    def choice(self, index: int, choice: Choice) -> Any:
        parts, output, asked = self.parts, choice.last["outputs"], bool(self.request.get("logprobs"))
        ended = self.ended(choice, self.derived["max_tokens"][0], True)
        message = parts.ChatMessage(
            role="assistant",
            reasoning_content=output.get("reasoning_content"),
            tool_calls=output.get("tool_calls"),
            prompt_token_ids=self.derived["prompt_token_ids"][0] if self.return_ids else None,
            completion_token_ids=choice.ids if self.return_ids or ended == "pd_reschedule" else None,
            prompt_tokens=self.derived["prompt_tokens"][0] if self.return_ids else None,
            completion_tokens=output.get("completion_tokens") if self.return_ids else None,
        )
        message.content = output["text"]
        return parts.ChatCompletionResponseChoice(
            index=index,
            message=message,
            logprobs=self.entries(choice.tops) if asked else None,
            draft_logprobs=self.entries(choice.drafts) if asked else None,
            prompt_logprobs=self.prompt_logprobs({"prompt_logprobs": choice.prompt}),
            sampling_mask=choice.masks or None,
            finish_reason=ended,
            speculate_metrics=choice.speculation,
        )

    def made(self, choices: list[Any], gathered: list[Choice]) -> Any:
        ends = [choice.last for choice in gathered]
        return self.parts.ChatCompletionResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            routed_experts=self.routed,
            usage=self.total(
                gathered,
                cached_tokens=sum(end.get("num_cached_tokens", 0) for end in ends),
                image_tokens=sum(end.get("num_input_image_tokens", 0) for end in ends),
                video_tokens=sum(end.get("num_input_video_tokens", 0) for end in ends),
            ),
        )


class CompletionAnswer(Answer):
    """A completion."""

    def rows(self, tops: list[Any]) -> Any:
        columns = self.asked("logprobs")
        joined = [[row for top in tops for row in top[part]] for part in range(3)]
        return self.parts.completion_logprobs(joined, columns)

    def choice(self, index: int, choice: Choice) -> Any:
        output, prompt = choice.last["outputs"], index // self.per_prompt
        ended = self.ended(choice, self.derived["max_tokens"][prompt], False)
        text = output["text"]
        if self.request.get("echo"):
            text = (self.derived.get("prompt_texts") or self.derived["prompt_tokens"])[prompt] + text
        return self.parts.CompletionResponseChoice(
            index=index,
            text=text,
            prompt_token_ids=self.derived["prompt_token_ids"][prompt] if self.return_ids else None,
            completion_token_ids=choice.ids if self.return_ids or ended == "pd_reschedule" else None,
            completion_tokens=output.get("completion_tokens") if self.return_ids else None,
            prompt_tokens=self.derived["prompt_tokens"][prompt] if self.return_ids else None,
            reasoning_content=output.get("reasoning_content"),
            tool_calls=output.get("tool_calls"),
            logprobs=self.rows(choice.tops),
            draft_logprobs=self.rows(choice.drafts),
            prompt_logprobs=self.prompt_logprobs({"prompt_logprobs": choice.prompt}),
            finish_reason=ended,
            speculate_metrics=choice.speculation,
        )

    def made(self, choices: list[Any], gathered: list[Choice]) -> Any:
        usage = self.total(gathered, cached_tokens=0)
        return self.parts.CompletionResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
            routed_experts=packed(gathered[-1].last),
        )

"""The steady lane: chunks in the middle of a streamed answer, without FastDeploy's generator.

FastDeploy's generator gets the first results of an answer, the last one, errors, and all that is not plain.
Of the others the lane writes the chunks itself, by a template that is cut out of a chunk of FastDeploy's.
Before FastDeploy's generator gets its next result, it gets one *joined* result for all that it has not seen,
so that its counts and its usage are right.

::

    dispatcher --> Inbox --> Lane: what the response iterates --steady--> chunks
                     |        |
                     +--> Feed: what FastDeploy's generator waits at, in place of its queue

After each chunk of FastDeploy's the lane makes the same chunk.  If the bytes are equal, two things are known:
the template is right for this request, and the generator is suspended behind that result.  Later requests try
the same template first.  Log-probabilities are compared in neither: FastDeploy's generator does not see them.
The inbox and the feed do not refer to the lane, so that there is no cycle.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from ..events.counters import note
from ..events.guard import Guard
from .chunks._chunks import Template, Unknown, is_plain, note_unwritten
from .connections import NoResults, registering
from .feed import RESULT, Choice, Feed
from .scores import Asked, AskedOfChat, AskedOfCompletion
from .text.parsers import Complete
from .text.views import views_of
from .waits import watch

SEAM = "api chunks"

MOST_UNLIKE = 3
"""Chunks in a row that differ from the lane's, after which a stream stays FastDeploy's."""


class Spliced(AsyncGenerator[str, None]):
    """A streamed answer of FastDeploy's generator, with log-probabilities that it has not seen.

    Parameters
    ----------
    generator : asynchronous generator
        FastDeploy's.
    feed : Feed
        What the generator is to wait at.
    """

    def __init__(self, generator: Any, feed: Feed) -> None:
        self._generator, self._feed = generator, feed
        self._next: Callable[[], Any] = generator.__anext__
        self._has_begun = False

    def __aiter__(self) -> Spliced:
        return self

    async def __anext__(self) -> str:
        if not self._has_begun:
            self._has_begun = True
            registering.set(self._feed)
        return await self._spliced(await self._next())

    async def _spliced(self, chunk: str) -> str:
        """A chunk with what was withheld; where that fails, FastDeploy's generator shows the error."""
        try:
            return self._feed.spliced(chunk)
        except Exception as error:
            failed: str = await self.athrow(error)
            return failed

    def asend(self, value: None) -> Any:
        return self.__anext__()

    def athrow(self, *error: Any) -> Any:
        return self._generator.athrow(*error)

    def aclose(self) -> Any:
        return self._generator.aclose()


class Lane(Spliced):
    """A streamed answer: FastDeploy's generator, and the way around it.

    Parameters
    ----------
    generator, feed
        As `Spliced`.
    handler : object
        The generator's ``self``.
    request : ChatCompletionRequest or CompletionRequest
    templates : dict of tuple to Template
        The last one of each shape of chunks: a stream tries the one that an earlier stream has cut.
    guard : Guard
    """

    TEXT = ""
    """Key of the text in a chunk."""
    EXTRA = ""
    """A field of the request with more options."""
    ASKED: type[Asked]

    def __init__(
        self,
        generator: Any,
        feed: Feed,
        handler: Any,
        request: Any,
        templates: dict[Any, Template],
        guard: Guard,
    ) -> None:
        super().__init__(generator, feed)
        self._request, self._templates, self._guard = request, templates, guard
        client, self._shows_ids = handler.engine_client, feed.shows_ids
        self._processor = client.data_processor
        self._is_cleared: Callable[[], Any] = client.check_model_weight_status
        self._shows_usage = self._is_asked_for_usage(request)
        self._shape = self._shows_ids, self._shows_usage
        self._template: Template | None = None
        self._complete: Callable[[Any], Any] | None = None
        self._unlike = 0
        self._is_steady = False

    # ---- What the two APIs have of their own

    @staticmethod
    def _is_asked_for_usage(request: Any) -> bool:
        """Whether each chunk shows the usage so far."""
        return False

    def _options(self) -> dict[str, Any]:
        """The arguments with which FastDeploy's generator calls the data processor."""
        return {"stream": True, "include_stop_str_in_output": self._request.include_stop_str_in_output}

    def _completing(self) -> Callable[[Any], Any]:
        """What completes the outputs of a plain result."""
        views, processor = views_of(self._processor), self._processor
        plain = None if views is None else views.plain
        return plain or functools.partial(processor.process_response_dict, **self._options())

    # ---- What the response iterates

    async def __anext__(self) -> str:
        feed = self._feed
        inbox = feed.source
        while self._is_steady:
            if self._are_weights_cleared():
                self._hand_over()
                break
            if not inbox.results:
                try:
                    is_silent = await inbox.wait()
                except asyncio.CancelledError as error:
                    self._is_steady = False
                    chunk: str = await self._generator.athrow(error)
                    return chunk
                if not inbox.results:
                    if is_silent:
                        self._hand_over()
                    continue
            made = self._chunk_of(inbox.results.popleft())
            if made is not None:
                return made
        if not self._has_begun:
            self._has_begun = True
            registering.set(feed)
        while True:
            chunk = await self._next()
            if feed.drops:
                feed.drops -= 1
                continue
            if feed.in_hand is not None:
                self._look(chunk, *feed.in_hand)
            return await self._spliced(chunk)

    def athrow(self, *error: Any) -> Any:
        self._is_steady = False
        return super().athrow(*error)

    def aclose(self) -> Any:
        self._is_steady = False
        return super().aclose()

    # ---- A result in the lane

    def _are_weights_cleared(self) -> bool:
        """What FastDeploy's generator asks before each wait."""
        try:
            return bool(self._is_cleared())
        except Exception:  # its own error
            return True

    def _chunk_of(self, result: Any) -> str | None:
        """The chunk of a result; None if it has none, or if FastDeploy's generator gets it."""
        try:
            choice = self._choice_of(result)
        except Exception as error:
            self._guard.failed(error)
            choice = None
        if choice is None:
            self._hand_over(result)
            return None
        assert self._complete is not None
        try:
            self._complete(result)
        except Exception as error:  # as FastDeploy's generator, which gets it, would have had it
            trace = error.__traceback__
            self._hand_over(NoResults(error.with_traceback(trace and trace.tb_next)))
            return None
        try:
            return self._written(result, choice)
        except (Unknown, UnicodeEncodeError) as error:
            note_unwritten(error)
        except Exception as error:
            self._guard.failed(error)
        self._hand_over(Complete(result))
        return None

    def _choice_of(self, result: Any) -> Choice | None:
        """The choice of a result whose chunk the lane may write."""
        if type(result) is not dict or not self._guard.is_on:
            return None
        choice = self._feed.choices.get(result.get("request_id", ""))
        if choice is None or type(choice.start) is not float or (self._shows_usage and choice.shown is None):
            return None
        if not self._is_plain(result) or result["outputs"].get("send_idx") == 0:  # which may echo the prompt
            return None
        return choice

    _is_plain = staticmethod(is_plain)

    def _written(self, result: dict[str, Any], choice: Choice) -> str | None:
        outputs = result["outputs"]
        if outputs["tool_calls"] is not None:
            self._hand_over(Complete(result))
            return None
        chunk = None
        if not outputs["skipped"] or self._shows_ids:
            assert self._template is not None
            arrival = result["metrics"]["engine_recv_latest_token_time"] - choice.start
            chunk = self._template.text(self._values(outputs, choice, arrival))
        choice.tokens += len(outputs["token_ids"])
        choice.reasoning += outputs.get("reasoning_token_num", 0)
        if self._guard.in_a_row:
            self._guard.worked()
        return chunk

    def _keys(self) -> list[str]:
        """Keys whose values differ from chunk to chunk."""
        keys = ["index", self.TEXT, "reasoning_content", "arrival_time", "logprobs", "draft_logprobs"]
        if self._shows_ids:
            keys += "completion_token_ids", "completion_tokens"
        if self._shows_usage:
            keys += "completion_tokens", "total_tokens", "reasoning_tokens"
        return keys

    def _values(
        self, outputs: dict[str, Any], choice: Choice, arrival: Any, is_shown: bool = False
    ) -> list[Any]:
        """The values of a chunk, in the order of its keys.

        `is_shown`: whether the tokens are in the last usage that FastDeploy's generator has shown.
        """
        text = "" if outputs["skipped"] else outputs["text"] or ""
        try:
            scores = self._feed.scores(outputs)
        except Exception as error:  # it is raised again where FastDeploy's generator gets the result
            raise Unknown("log-probabilities are FastDeploy's") from error
        values = [choice.index, text, outputs["reasoning_content"], arrival, *scores]
        if self._shows_ids:
            values += outputs["token_ids"], outputs.get("completion_tokens")
        if self._shows_usage:
            prompt, tokens, reasoning = choice.shown or (0, 0, 0)
            if not is_shown:
                tokens += choice.tokens + len(outputs["token_ids"])
                reasoning += choice.reasoning + outputs.get("reasoning_token_num", 0)
            values += tokens, prompt + tokens, reasoning
        return values

    def _hand_over(self, last: Any = None) -> None:
        """Leave to FastDeploy's generator what it has not seen, and a result, or an error in its place."""
        self._is_steady, feed = False, self._feed
        if isinstance(last, NoResults):
            feed.group = last
            return
        group = [one.joined() for one in feed.choices.values() if one.tokens]
        if isinstance(last, Complete):
            feed.choices[last["request_id"]].shown = None  # of a chunk that is not compared with the lane's
        feed.joined = len(group)
        feed.group = group + ([] if last is None else [last]) or None

    # ---- A chunk of FastDeploy's

    def _look(self, chunk: str, result: dict[str, Any], choice: Choice, is_first: bool) -> None:
        """Compare a chunk of FastDeploy's with the lane's; cut a template out of it if there is none."""
        if RESULT not in chunk:
            return
        self._feed.in_hand = None
        try:
            outputs, metrics = result["outputs"], result["metrics"]
            if self._shows_usage:
                choice.shown = _usage_in(chunk)
            if self._unlike >= MOST_UNLIKE or not self._guard.is_on or type(choice.start) is not float:
                return
            is_other = outputs["tool_calls"] is not None or result.get("prompt_logprobs")
            is_seen = self._feed.asked.columns is not None and outputs.get("top_logprobs") is not None
            if is_other or is_seen or not self._is_plain(result):
                return
            arrival = metrics["engine_recv_latest_token_time"] - choice.start
            values = self._values(
                outputs, choice, metrics["first_token_time"] if is_first else arrival, is_shown=True
            )
            if self._template is None:
                known = self._templates.get(self._shape)
                self._template = None if known is None else known.headed(chunk)
            if self._template is not None and self._template.text(values) == chunk:
                self._is_steady, self._unlike = True, 0
                if self._complete is None:
                    self._complete = self._completing()
                    watch(self._feed.source)
                return
            self._unlike += self._template is not None
            self._template = Template(chunk, self._keys(), values, self._feed.style)
            self._templates[self._shape] = self._template
        except (ValueError, Unknown):
            self._template, self._unlike = None, self._unlike + 1
        except Exception as error:
            self._unlike = MOST_UNLIKE
            self._guard.failed(error)
        if self._unlike >= MOST_UNLIKE:
            note("the chunks of a stream are not as expected: FastDeploy's generator writes all of them")


def _usage_in(chunk: str) -> tuple[int, int, int]:
    """Tokens of the prompt, of the answer and of its reasoning, in a chunk."""
    usage = json.loads(chunk.removeprefix("data:"))["usage"]
    reasoning: int = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"], reasoning


class ChatLane(Lane):
    """The lane of a chat completion."""

    TEXT, EXTRA, ASKED = "content", "metadata", AskedOfChat

    @staticmethod
    def _is_asked_for_usage(request: Any) -> bool:
        options = request.stream_options
        return bool(options is not None and options.continuous_usage_stats)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "request": self._request, "audio_tokens": None, "tts": False}


class CompletionLane(Lane):
    """The lane of a completion."""

    TEXT, EXTRA, ASKED = "text", "suffix", AskedOfCompletion

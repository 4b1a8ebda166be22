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
the same template first.  The inbox and the feed do not refer to the lane, so that there is no cycle.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any

from ..events.counters import note
from ..events.guard import Guard
from ..events.log import api_log
from ..gate import replacements
from ..gate.judgements import gate
from ..gate.seams import NotPlain
from .chunks._chunks import FloatStyle, Template, Unknown, note_unwritten
from .chunks.model_fields import float_style
from .connections import Inbox, NoResults, registering
from .text.parsers import Complete
from .text.plain_answers import METHODS, check_class
from .text.views import STREAMED, processors_of, views_of

SEAM = "api lane"
LOOK_S = 1.0
"""Seconds between two looks: a stream without results from one to the next is left to FastDeploy's limits."""

NOT_COMPARED = 6
"""Chunks with log-probabilities that come before the first comparison: writing one twice costs what the lane
saves at some six, which a short answer never gets back."""

MOST_UNLIKE = 3
"""Chunks in a row that differ from the lane's, after which a stream stays FastDeploy's."""

_RESULT = {
    *("request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "output_type", "outputs", "metrics"),
    *("finished", "num_cached_tokens", "num_input_image_tokens", "num_input_video_tokens", "error_code"),
    *("error_msg", "ic_req_data", "prompt_token_ids_len", "trace_carrier"),
}
_OUTPUTS = {
    *("index", "send_idx", "token_ids", "decode_type", "logprob", "top_logprobs", "draft_top_logprobs"),
    *("logprobs", "draft_token_ids", "text", "reasoning_content", "reasoning_token_num", "sampling_mask"),
    *("completion_tokens", "skipped", "tool_calls"),
}
"""Keys of a result and of its outputs that the lane knows: one with another key is FastDeploy's.

Metrics are read by name, by FastDeploy's generators and here; others of them reach no plain chunk.
"""
_NEEDED = {"top_logprobs", "draft_top_logprobs"}


class Choice:
    """One answer of a stream, and what FastDeploy's generator has not seen of it."""

    __slots__ = ("index", "name", "reasoning", "shown", "start", "tokens")

    def __init__(self, index: int, name: str) -> None:
        self.index, self.name = index, name
        self.start: Any = None  # of its inference, in FastDeploy's clock; None: no result has come
        self.tokens = self.reasoning = 0  # unseen by FastDeploy's generator
        # Tokens of the prompt, of the answer and of its reasoning, as FastDeploy's generator counts them.
        self.shown: tuple[int, int, int] | None = None

    def joined(self) -> Complete:
        """What FastDeploy's generator has not seen, as one result from which it makes no text."""
        outputs = {
            "index": self.index, "token_ids": [0] * self.tokens, "text": "", "completion_tokens": "",
            "skipped": True, "tool_calls": None, "top_logprobs": None, "draft_top_logprobs": None,
            "reasoning_content": "", "reasoning_token_num": self.reasoning,
        }  # fmt: skip
        if self.shown is not None:
            prompt, tokens, reasoning = self.shown
            self.shown = prompt, tokens + self.tokens, reasoning + self.reasoning
        self.tokens = self.reasoning = 0
        metrics = {"engine_recv_latest_token_time": self.start}
        return Complete(request_id=self.name, finished=False, outputs=outputs, metrics=metrics)


class Feed:
    """What FastDeploy's generator waits at: one result at a time, after those that it has not seen.

    Attributes
    ----------
    name : str
        The id of the stream's request.
    choices : dict of str to Choice
        Answers that have not ended, by the ids of their results.
    group : list or None
        What the generator gets next, before the inbox's results.
    joined : int
        How many of `group` are joined results that become chunks, which the client does not get.
    drops : int
        How many of those chunks are still to come.
    in_hand : tuple or None
        The result that the generator works on, its choice, and whether it is the choice's first.
    """

    def __init__(self, name: str, choices: dict[str, Choice], guard: Guard) -> None:
        self.name, self.choices, self._guard = name, choices, guard
        self.inbox: Inbox | None = None  # once the generator has registered
        self.group: Any = None
        self.joined = self.drops = 0
        self.in_hand: tuple[dict[str, Any], Choice, bool] | None = None

    async def get(self) -> Any:
        """Return the next group of results."""
        self.in_hand, inbox, group = None, self.inbox, self.group
        assert inbox is not None
        if group is None:
            while not inbox.results:
                await inbox.wait()
            result = inbox.results.popleft()
            group = result if isinstance(result, NoResults) else [result]
        self.group = None
        self.drops, self.joined = self.joined, 0
        try:
            if type(group) is list and type(group[-1]) is dict:
                self._begin(group[-1])
        except Exception as error:
            self.choices.clear()  # nothing of this stream is steady any more
            self._guard.failed(error)
        return group

    def _begin(self, result: dict[str, Any]) -> None:
        choice = self.choices.get(result["request_id"])
        if choice is None or result.get("error_code", 200) != 200:
            return
        is_first, choice.shown = choice.start is None, None
        if is_first:
            choice.start = result["metrics"]["inference_start_time"]
        if result["finished"]:
            del self.choices[choice.name]
        self.in_hand = result, choice, is_first


class Lane(AsyncGenerator[str, None]):
    """A streamed answer: FastDeploy's generator, and the way around it.

    Parameters
    ----------
    generator : asynchronous generator
        FastDeploy's.
    handler : object
        Its ``self``.
    request : ChatCompletionRequest or CompletionRequest
    feed : Feed
        What the generator is to wait at.
    model : str
        The model's name in chunks.
    complete : callable
        Completes a result's outputs; None: FastDeploy's data processor does.
    shapes : Shapes
    guard : Guard
    """

    TEXT = ""
    """Key of the text in a chunk."""

    def __init__(
        self,
        generator: Any,
        handler: Any,
        request: Any,
        feed: Feed,
        model: str,
        complete: Callable[[Any], Any] | None,
        shapes: Shapes,
        guard: Guard,
    ) -> None:
        self._generator, self._handler, self._request = generator, handler, request
        self._shapes, self._guard, self._model = shapes, guard, model
        self._next: Callable[[], Any] = generator.__anext__
        self._is_cleared = handler.engine_client.check_model_weight_status
        self._shows_ids = bool(request.return_token_ids)
        self._complete = complete or functools.partial(
            handler.engine_client.data_processor.process_response_dict, **self._options()
        )
        self._template: Template | None = None
        self._unlike = self._scored = 0
        self._is_steady = self._has_begun = self._is_watched = False
        self._feed = feed

    # ---- What the two APIs have of their own

    _shows_usage = False

    def _options(self) -> dict[str, Any]:
        """The arguments with which FastDeploy's generator calls the data processor."""
        return {"stream": True, "include_stop_str_in_output": self._request.include_stop_str_in_output}

    def _logprobs(self, top: Any) -> Any:
        """What FastDeploy's generator makes of log-probabilities; None if none were asked for."""
        raise NotImplementedError

    # ---- What the response iterates

    def __aiter__(self) -> Lane:
        return self

    async def __anext__(self) -> str:
        feed = self._feed
        inbox: Any = feed.inbox
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
            return chunk

    def asend(self, value: None) -> Any:
        return self.__anext__()

    def athrow(self, *error: Any) -> Any:
        self._is_steady = False
        return self._generator.athrow(*error)

    def aclose(self) -> Any:
        self._is_steady = False
        return self._generator.aclose()

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

    def _is_plain(self, result: dict[str, Any]) -> bool:
        """Whether nothing is in a result but what the lane knows."""
        outputs, metrics = result.get("outputs"), result.get("metrics")
        return (
            result.get("finished") is False
            and type(outputs) is dict
            and type(metrics) is dict
            and result.keys() <= _RESULT
            and _NEEDED <= outputs.keys() <= _OUTPUTS
            and result.get("error_code", 200) == 200
            and not result.get("error_msg")
            and type(outputs.get("token_ids")) is list
            and outputs["token_ids"] != []
            and not outputs.get("decode_type")
            and outputs.get("sampling_mask") is None
            and type(outputs.get("reasoning_token_num", 0)) is int
            and type(metrics.get("engine_recv_latest_token_time")) is float
            and metrics.get("speculate_metrics") is None
        )

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

    def _shape(self) -> tuple[bool, bool]:
        return self._shows_ids, self._shows_usage

    def _head(self, chunk: str) -> list[Any]:
        """The values of `Shapes.HEAD` in a chunk of this stream."""
        begin = chunk.index('"created":') + 10
        return [self._feed.name, int(chunk[begin : chunk.index(",", begin)]), self._model]

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
        values = [choice.index, text, outputs["reasoning_content"], arrival, None, None]
        top = outputs["top_logprobs"]
        if top is not None:
            draft = outputs["draft_top_logprobs"]
            try:
                values[4] = self._logprobs(top)
                if draft is not None and self._request.include_draft_logprobs:
                    values[5] = self._logprobs(draft)
            except Exception as error:  # it is raised again where FastDeploy's generator gets the result
                raise Unknown("FastDeploy's method raises for log-probabilities") from error
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
        feed.joined = len(group) if self._shows_ids else 0
        feed.group = group + ([] if last is None else [last]) or None

    # ---- A chunk of FastDeploy's

    def _look(self, chunk: str, result: dict[str, Any], choice: Choice, is_first: bool) -> None:
        """Compare a chunk of FastDeploy's with the lane's; cut a template out of it if there is none."""
        if '"arrival_time":' not in chunk:  # the chunk with a choice's role, or with its prompt
            return
        self._feed.in_hand = None
        try:
            outputs, metrics = result["outputs"], result["metrics"]
            if self._shows_usage:
                choice.shown = _usage_in(chunk)
            if self._unlike >= MOST_UNLIKE or not self._guard.is_on or type(choice.start) is not float:
                return
            if outputs.get("top_logprobs") is not None and self._scored < NOT_COMPARED:
                self._scored += 1
                return
            is_other = outputs["tool_calls"] is not None or result.get("prompt_logprobs")
            if is_other or not self._is_plain(result):
                return
            arrival = metrics["engine_recv_latest_token_time"] - choice.start
            values = self._values(
                outputs, choice, metrics["first_token_time"] if is_first else arrival, is_shown=True
            )
            if self._template is None:
                self._template = self._shapes.tried(self._shape(), self._head(chunk))
            if self._template is not None and self._template.text(values) == chunk:
                self._is_steady, self._unlike = True, 0
                if not self._is_watched:
                    self._is_watched = True
                    _silence().watch(self._feed.inbox)
                return
            self._unlike += self._template is not None
            self._template = self._shapes.cut(self._shape(), chunk, self._head(chunk), self._keys(), values)
        except (ValueError, Unknown):
            self._template, self._unlike = None, self._unlike + 1
        except Exception as error:
            self._unlike = MOST_UNLIKE
            self._guard.failed(error)
        if self._unlike >= MOST_UNLIKE:
            note("the chunks of a stream are not as expected: FastDeploy's generator writes all of them")


class ChatLane(Lane):
    """The lane of a chat completion."""

    TEXT = "content"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        options = self._request.stream_options
        self._shows_usage = bool(options is not None and options.continuous_usage_stats)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "request": self._request, "audio_tokens": None, "tts": False}

    def _logprobs(self, top: Any) -> Any:
        request, columns = self._request, self._request.top_logprobs
        if not request.logprobs:
            return None
        if columns == -1:
            columns = self._handler.engine_client.ori_vocab_size
        wants_texts = request.include_logprobs_decode_token
        return self._handler._create_chat_logprobs(top, request.logprobs, columns, wants_texts)


class CompletionLane(Lane):
    """The lane of a completion."""

    TEXT = "text"

    def _logprobs(self, top: Any) -> Any:
        columns = self._request.logprobs
        if columns is None:
            return None
        if columns == -1:
            columns = self._handler.engine_client.ori_vocab_size
        return self._handler._create_completion_logprobs(top, columns, 0)


class Shapes:
    """The last template of each shape of chunks, which the next stream tries."""

    HEAD = ("id", "created", "model")
    """Keys whose values are a stream's."""

    def __init__(self, style: FloatStyle) -> None:
        self._style = style
        self._known: dict[Any, Template] = {}

    def tried(self, shape: Any, head: list[Any]) -> Template | None:
        """The last template of a shape, with a stream's own values; None if there is none."""
        known = self._known.get(shape)
        return None if known is None else known.given(head)

    def cut(self, shape: Any, chunk: str, head: list[Any], keys: list[str], values: list[Any]) -> Template:
        """The template of a stream, out of one of its chunks."""
        known = self._known[shape] = Template(chunk, [*self.HEAD, *keys], head + values, self._style)
        return known.given(head)


def _usage_in(chunk: str) -> tuple[int, int, int]:
    """Tokens of the prompt, of the answer and of its reasoning, in a chunk."""
    usage = json.loads(chunk.removeprefix("data:"))["usage"]
    reasoning: int = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"], reasoning


# ---- Streams without results -------------------------------------------------------------------------------


class _Silence:
    """The one timer of an event loop that ends waits of the lane, so that FastDeploy's own time runs."""

    def __init__(self) -> None:
        self._loop = weakref.ref(asyncio.get_running_loop())  # it is the key of this
        self._inboxes: weakref.WeakSet[Inbox] = weakref.WeakSet()
        self._is_due = False

    def watch(self, inbox: Any) -> None:
        """Look at an inbox now and then, as long as it is there."""
        self._inboxes.add(inbox)
        self._look_later()

    def _look_later(self) -> None:
        loop = self._loop()
        if loop is not None and not self._is_due and self._inboxes:
            self._is_due = True
            loop.call_later(LOOK_S, self.look)

    def look(self) -> None:
        """Look at all inboxes."""
        self._is_due = False
        for inbox in list(self._inboxes):
            inbox.look()
        self._look_later()


_silences: weakref.WeakKeyDictionary[Any, _Silence] = weakref.WeakKeyDictionary()


def _silence() -> _Silence:
    """The running loop's."""
    loop = asyncio.get_running_loop()
    found = _silences.get(loop)
    if found is None:
        found = _silences[loop] = _Silence()
    return found


# ---- Which streams -----------------------------------------------------------------------------------------


def _is_asked_for(handler: Any, request: Any, extra: Any) -> bool:
    """Whether a request asks for nothing that keeps more from result to result than the lane knows."""
    several = request.max_streaming_response_tokens
    if several is None:
        several = extra.get("max_streaming_response_tokens", 1) if type(extra) is dict else 1
    is_each_sent = type(several) is int and several <= 1
    return is_each_sent and not request.collect_metrics and not getattr(handler, "enable_mm_output", False)


LANES: dict[str, tuple[str, str, type[Lane], str]] = {
    "serving_chat": ("OpenAIServingChat", "chat_completion_stream_generator", ChatLane, "metadata"),
    "serving_completion": (
        "OpenAIServingCompletion",
        "completion_stream_generator",
        CompletionLane,
        "suffix",
    ),
}
"""By module: class and generator of FastDeploy's, its lane, and a field of the request with more options."""


def install(module: Any) -> Callable[[], None]:
    """Install the lane in ``serving_chat`` or ``serving_completion``; return a function that restores."""
    return replacements.install("api lane", replacement(module))


def replacement(module: Any) -> tuple[Any, str, Any]:
    """FastDeploy's class in a serving module, the name of its generator, and ours."""
    owner, name, lane, extra = LANES[module.__name__.rpartition(".")[2]]
    cls = vars(module)[owner]
    stock, style = vars(cls)[name], float_style()
    if style is None:
        raise NotPlain("pydantic prints floats in none of the ways known here")
    guard, judged, shapes = Guard(SEAM, api_log), _Judged(module), Shapes(style)
    names = tuple(inspect.signature(stock).parameters)
    make_id = getattr(importlib.import_module("fastdeploy.utils"), "make_choice_id", "{}_{}".format)

    @functools.wraps(stock)
    def stream(*arguments: Any, **options: Any) -> Any:
        generator = stock(*arguments, **options)
        try:
            if guard.is_on:
                given = {**dict(zip(names, arguments, strict=False)), **options}
                handler, request, name = given["self"], given["request"], given["request_id"]
                processor = handler.engine_client.data_processor
                if _is_asked_for(handler, request, getattr(request, extra, None)) and judged.is_known(
                    processor
                ):
                    complete = _plain_way(processor)
                    count = given.get("num_choices", request.n or 1)
                    choices = [Choice(i, make_id(name, i)) for i in range(count)]
                    feed = Feed(name, {one.name: one for one in choices}, guard)
                    model = given["model_name"]
                    return lane(generator, handler, request, feed, model, complete, shapes, guard)
        except Exception as error:
            guard.failed(error)
        return generator

    return cls, name, stream


def _plain_way(processor: Any) -> Callable[[Any], Any] | None:
    """The function that completes a plain result's outputs; None: the data processor's own."""
    views = views_of(processor)
    return None if views is None else views.plain


class _Judged:
    """Whether what the lane stands for is known: it may be loaded or wrapped after the lane is installed."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._known: tuple[tuple[Any, ...], str | None] | None = None
        self._said: set[str] = set()

    def is_known(self, processor: Any) -> bool:
        """Whether a stream of a data processor may take the lane; the log says once why not."""
        of_chat = getattr(self._module, "ChatResponseProcessor", None)
        kind = type(processor)
        now = (
            *(kind, *(getattr(kind, name, None) for name in METHODS)),
            getattr(of_chat, "process_response_chat", None),
        )
        if self._known is None or self._known[0] != now:
            self._known = now, self._why_not(processor)
        reason = self._known[1]
        if reason is None and not vars(processor).keys().isdisjoint(METHODS):
            reason = "a method was set on the data processor"
        if reason is not None and reason not in self._said:
            self._said.add(reason)
            api_log().info(f"fd_postproc: API side leaves {SEAM} to FastDeploy: {reason}")
        return reason is None

    def _why_not(self, processor: Any) -> str | None:
        kind = type(processor)
        known = processors_of(getattr(kind, STREAMED, None))
        if known is None or inspect.iscoroutinefunction(kind.process_response_dict):
            return f"the data processor {kind.__name__} is not known"
        try:
            check_class(processor, known.cls)
        except NotPlain as reason:
            return str(reason)
        return gate.judge(SEAM, self._module).reason

"""This module decides how a stream's chunks are made, and replaces FastDeploy's generators of streams.

A stream takes the steady lane (`lane`), or it is FastDeploy's with log-probabilities of ours (`feed`), or
FastDeploy's altogether.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import linecache
import operator
from collections.abc import Callable
from typing import Any

from ..events.guard import Guard
from ..events.log import api_log
from ..gate import replacements
from ..gate.judgements import gate
from ..gate.seams import NotPlain
from . import scores
from .chunks.float_style import float_style
from .feed import Choice, Feed
from .lane import SEAM, ChatLane, CompletionLane, Lane, Spliced
from .shapes import Shapes
from .text.plain_answers import METHODS, check_class
from .text.views import STREAMED, processors_of
from .waits import Asyncio

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
_SHOWN = '["skipped"] and not request.return_token_ids'
"""In a module that shows ids of results without text: since the end of March 2026.  Others have no lane."""


def install(module: Any) -> Callable[[], None]:
    """Install our streams in ``serving_chat`` or ``serving_completion``; return a function that restores."""
    return replacements.install("api chunks", *ours_in(module))


def ours_in(module: Any) -> list[tuple[Any, str, Any]]:
    """What is replaced in a serving module: holder, name, and ours."""
    owner, name, _, _ = LANES[module.__name__.rpartition(".")[2]]
    cls = vars(module)[owner]
    stock, streams = vars(cls)[name], Streams(module)

    @functools.wraps(stock)
    def stream(*arguments: Any, **options: Any) -> Any:
        generator = stock(*arguments, **options)
        try:
            if streams.guard.is_on:
                return streams.made(generator, _Given(places, arguments, options))
        except Exception as error:
            streams.guard.failed(error)
        return generator

    places = {name: place for place, name in enumerate(inspect.signature(stock).parameters)}
    is_asyncio = vars(module).get("asyncio") is asyncio
    return [(cls, name, stream), *([(module, "asyncio", Asyncio("asyncio"))] if is_asyncio else [])]


class _Given:
    """The arguments of a call, by name."""

    __slots__ = ("_arguments", "_options", "_places")

    def __init__(self, places: dict[str, int], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._places, self._arguments, self._options = places, arguments, options

    def __getitem__(self, name: str) -> Any:
        return self._options[name] if name in self._options else self._arguments[self._places[name]]


class Streams:
    """The streams of a serving module.

    Raises
    ------
    NotPlain
        If pydantic prints floats in another way than is known.
    """

    def __init__(self, module: Any) -> None:
        style = float_style()
        if style is None:
            raise NotPlain("pydantic prints floats in none of the ways known here")
        _, _, self._lane, self._extra = LANES[module.__name__.rpartition(".")[2]]
        self._shows_skipped = _SHOWN in "".join(linecache.getlines(module.__file__))
        self.guard, self._scores_guard = Guard(SEAM, api_log), Guard(scores.SEAM, api_log)
        self._style, self._shapes, self._of_prompts = style, Shapes(style), self._extra == "suffix"
        self._judged, self._scoring = Judged(module), scores.Scoring(module)
        self._make_id = getattr(importlib.import_module("fastdeploy.utils"), "make_choice_id", "{}_{}".format)
        self._said: set[str] = set()

    def made(self, generator: Any, given: Any) -> Any:
        """What the response iterates, in place of FastDeploy's generator.

        `given` are the generator's arguments by name.
        """
        handler, request, name = given["self"], given["request"], given["request_id"]
        try:
            scores_of = self._scoring.of(handler, request)
            prompt_of = self._scoring.of_prompt(handler, request)
        except NotPlain as error:
            self._say(scores.SEAM, str(error))
            return generator
        if getattr(handler, "enable_mm_output", False):  # its response processor changes results
            return generator
        processor = handler.engine_client.data_processor
        feed = Feed(name, request, scores_of, prompt_of, self._style, self.guard, self._scores_guard)
        feed.shows_skipped &= self._shows_skipped
        if self._may_be_steady(request, given):
            reason = self._judged.why_not(processor)
            if reason is None:
                count, make_id = given["num_choices"] if self._of_prompts else request.n or 1, self._make_id
                for i in range(count):
                    one = make_id(name, i)
                    feed.choices[one] = Choice(i, one)
                return self._lane(generator, feed, handler, request, self._shapes, self.guard)
            self._say(SEAM, reason)
        if (scores_of is None and prompt_of is None) or not type(processor).__module__.startswith(
            "fastdeploy."
        ):
            return generator
        return Spliced(generator, feed)

    def _may_be_steady(self, request: Any, given: Any) -> bool:
        """Whether there are results in the middle of an answer, and each is a chunk like the others."""
        several = request.max_streaming_response_tokens
        if several is None:
            extra = getattr(request, self._extra, None)
            several = extra.get("max_streaming_response_tokens", 1) if type(extra) is dict else 1
        if not self._shows_skipped or type(several) is not int or several > 1 or request.collect_metrics:
            return False
        limits = given["max_tokens_list"] if self._of_prompts else (given["max_tokens"],)
        return None in limits or max(limits) > 2

    def _say(self, seam: str, reason: str) -> None:
        """Log once why streams are left to FastDeploy."""
        if reason not in self._said:
            self._said.add(reason)
            api_log().info(f"fd_postproc: API side leaves {seam} to FastDeploy: {reason}")


_methods_of = operator.attrgetter(*METHODS)


class Judged:
    """Whether what the lane stands for is known: it may be loaded or wrapped after the lane is installed."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._known: tuple[tuple[Any, ...], str | None] | None = None

    def why_not(self, processor: Any) -> str | None:
        """Why a stream of a data processor may not take the lane; None if it may."""
        kind, of_chat = type(processor), getattr(self._module, "ChatResponseProcessor", None)
        now: tuple[Any, ...]
        try:
            now = kind, _methods_of(kind), of_chat and of_chat.process_response_chat
        except AttributeError:
            now = (kind,)
        if self._known is None or self._known[0] != now:
            self._known = now, self._why_not(processor)
        reason = self._known[1]
        if reason is None and not vars(processor).keys().isdisjoint(METHODS):
            reason = "a method was set on the data processor"
        return reason

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

"""Streams in place of FastDeploy's generators, and the decision how their chunks are made.

A stream takes the steady lane (`lane`), or it is FastDeploy's with log-probabilities of ours (`feed`), or
FastDeploy's altogether.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import linecache
from collections.abc import Callable
from typing import Any

from ..events.guard import Guard
from ..events.log import api_log
from ..gate import replacements
from ..gate.judgements import gate
from ..gate.seams import NotPlain
from . import scores
from .chunks._chunks import Template
from .chunks.float_style import float_style
from .feed import Choice, Feed
from .judged import Judged, leave
from .lane import SEAM, ChatLane, CompletionLane, Lane, Spliced
from .text.plain_answers import METHODS, check_class
from .text.views import STREAMED, processors_of
from .waits import Asyncio

LANES: dict[str, tuple[str, str, type[Lane]]] = {
    "serving_chat": ("OpenAIServingChat", "chat_completion_stream_generator", ChatLane),
    "serving_completion": ("OpenAIServingCompletion", "completion_stream_generator", CompletionLane),
}
"""By module: class and generator of FastDeploy's, and its lane."""
_SHOWN = '["skipped"] and not request.return_token_ids'
"""In a module that shows ids of results without text: since the end of March 2026.  Others have no lane."""
FUNCTIONS = (*METHODS, "process_response_chat")
"""Functions that FastDeploy's generators call for each result, and the lane in part."""


def install(module: Any) -> Callable[[], None]:
    """Install our streams in ``serving_chat`` or ``serving_completion``; return a function that restores."""
    return replacements.install("api chunks", *ours_in(module))


def ours_in(module: Any) -> list[tuple[Any, str, Any]]:
    """What is replaced in a serving module: holder, name, and ours."""
    owner, name, _ = LANES[module.__name__.rpartition(".")[2]]
    cls = vars(module)[owner]
    stock, streams = vars(cls)[name], Streams(module)

    @functools.wraps(stock)
    def stream(*arguments: Any, **options: Any) -> Any:
        generator = stock(*arguments, **options)
        try:
            if streams.guard.is_on:
                return streams.made(generator, {**dict(zip(names, arguments, strict=False)), **options})
        except Exception as error:
            streams.guard.failed(error)
        return generator

    names = tuple(inspect.signature(stock).parameters)
    is_asyncio = vars(module).get("asyncio") is asyncio
    return [(cls, name, stream), *([(module, "asyncio", Asyncio("asyncio"))] if is_asyncio else [])]


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
        _, _, self._lane = LANES[module.__name__.rpartition(".")[2]]
        self._shows_skipped = _SHOWN in "".join(linecache.getlines(module.__file__))
        self.guard, self._scores_guard = Guard(SEAM, api_log), Guard(scores.SEAM, api_log)
        self._style, self._templates = style, dict[Any, Template]()
        self._judged = Judged(module, lambda one, names: self._why_not(module, one))
        self._judged_scores = Judged(module, lambda one, names: scores.why_not(module, names))
        self._make_id = getattr(importlib.import_module("fastdeploy.utils"), "make_choice_id", "{}_{}".format)

    def made(self, generator: Any, given: dict[str, Any]) -> Any:
        """What the response iterates, in place of FastDeploy's generator.

        `given` are the generator's arguments by name.
        """
        handler, request, name = given["self"], given["request"], given["request_id"]
        asked = self._lane.ASKED(handler, request)
        has_scores, has_prompt = asked.columns is not None, asked.prompt_columns is not None
        try:
            if has_scores:
                self._judged_scores.check(handler, asked.FUNCTIONS)
            if has_prompt:
                self._judged_scores.check(handler, scores.OF_PROMPTS)
        except NotPlain as reason:
            leave(scores.SEAM, reason)
            return generator
        if getattr(handler, "enable_mm_output", False):  # its response processor changes results
            return generator
        processor = handler.engine_client.data_processor
        feed = Feed(name, request, asked, self._style, self.guard, self._scores_guard)
        feed.shows_skipped &= self._shows_skipped
        if self._may_be_steady(request, given):
            try:
                self._judged.check(processor, FUNCTIONS)
                for i in range(given.get("num_choices", request.n or 1)):
                    one = self._make_id(name, i)
                    feed.choices[one] = Choice(i, one)
                return self._lane(generator, feed, handler, request, self._templates, self.guard)
            except NotPlain as reason:
                leave(SEAM, reason)
        is_fastdeploys = type(processor).__module__.startswith("fastdeploy.")
        return Spliced(generator, feed) if is_fastdeploys and (has_scores or has_prompt) else generator

    def _may_be_steady(self, request: Any, given: dict[str, Any]) -> bool:
        """Whether there are results in the middle of an answer, and each is a chunk like the others."""
        several = request.max_streaming_response_tokens
        if several is None:
            extra = getattr(request, self._lane.EXTRA, None)
            several = extra.get("max_streaming_response_tokens", 1) if type(extra) is dict else 1
        if not self._shows_skipped or type(several) is not int or several > 1 or request.collect_metrics:
            return False
        limits = given.get("max_tokens_list") or (given["max_tokens"],)
        return None in limits or max(limits) > 2

    @staticmethod
    def _why_not(module: Any, processor: Any) -> str | None:
        """Why a stream of a data processor may not take the lane; None if it may."""
        kind = type(processor)
        known = processors_of(getattr(kind, STREAMED, None))
        if known is None or inspect.iscoroutinefunction(kind.process_response_dict):
            return f"the data processor {kind.__name__} is not known"
        try:
            check_class(processor, known.cls)
        except NotPlain as reason:
            return str(reason)
        return gate.judge(SEAM, module).reason

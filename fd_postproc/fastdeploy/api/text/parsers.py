"""Reasoning and tool parsers that work at a constant cost a chunk (`views`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...events.guard import Guard
from ...events.log import api_log
from ...gate import replacements
from ...gate.seams import NotPlain
from .answers import Answers, answers_of
from .joined_results import withdraw
from .views import STREAMED, Processors, keep

PROTOCOL = "fastdeploy.entrypoints.openai.protocol"
WHOLE = "process_response_dict_normal"


class Complete(dict):  # type: ignore[type-arg]
    """A result whose outputs are complete: the data processor leaves it as it is."""


def install(module: Any) -> Callable[[], None]:
    """Install views for a module's data processors; return a function that restores.

    NotPlain if none of them has our ``ids2tokens``.
    """
    changes = []
    for cls in replacements.classes_that_define(module, STREAMED):
        answers = answers_of(vars(cls).get("ids2tokens"))
        if answers is None:
            continue
        stock = {name: vars(cls)[name] for name in (STREAMED, WHOLE)}
        changes += [(cls, name, method) for name, method in _methods(cls, stock, answers).items()]
    if not changes:
        raise NotPlain("ids2tokens is FastDeploy's own")
    return replacements.install("api parsers", *changes)


def _drops_counts(request: Any) -> bool:
    """Whether FastDeploy's handler drops the number of reasoning tokens: a stream without usage."""
    cls = type(request)
    return (
        cls.__name__ == "ChatCompletionRequest"
        and cls.__module__ == PROTOCOL
        and getattr(request, "stream", None) is True
        and getattr(request, "stream_options", ...) is None
    )


def _methods(cls: Any, stock: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """The replacements for a class's methods, by name."""
    processors = Processors(cls, vars(cls)["ids2tokens"], answers, stock[STREAMED])
    views_of = processors.views_of
    streamed, whole = stock[STREAMED], stock[WHOLE]
    answers.prepares.append(views_of)
    guard = Guard("api parsers", api_log, when_off=withdraw)

    @functools.wraps(streamed)
    def process_response_dict_streaming(processor: Any, response_dict: Any, **kwargs: Any) -> Any:
        if type(response_dict) is Complete:
            return response_dict
        view, segments, is_asked, plain = processor, None, False, None
        try:
            if guard.is_on:
                views = views_of(processor)
                if views.uncounted is not None and _drops_counts(kwargs.get("request")):
                    views = views.uncounted
                if response_dict["finished"]:
                    view = views.end
                else:
                    view = views.chunk
                    plain = views.plain if type(response_dict["outputs"]) is dict else None
                if views.segments is not None and views.segments.may_cut(response_dict):
                    segments = views.segments
                elif guard.in_a_row:
                    guard.worked()
        except Exception as error:
            guard.failed(error)
            view, plain = processor, None
        if plain is not None:
            return plain(response_dict)
        if segments is None:
            return streamed(view, response_dict, **kwargs)

        def asked(*arguments: Any, **options: Any) -> Any:
            nonlocal is_asked
            is_asked = True
            return streamed(*arguments, **options)

        try:
            answer = segments.process(asked, views, response_dict, kwargs)
            guard.worked()
            return answer
        except Exception as error:
            if is_asked:  # the parsers have seen some of it; or it is FastDeploy's error
                raise
            guard.failed(error)
            return streamed(view, response_dict, **kwargs)

    @functools.wraps(whole)
    def process_response_dict_normal(processor: Any, response_dict: Any, **kwargs: Any) -> Any:
        view = processor
        try:
            if guard.is_on:
                views = views_of(processor)
                view = views.last if response_dict["finished"] else views.part
        except Exception as error:
            guard.failed(error)
        return whole(view, response_dict, **kwargs)

    keep(process_response_dict_streaming, processors)
    return {STREAMED: process_response_dict_streaming, WHOLE: process_response_dict_normal}

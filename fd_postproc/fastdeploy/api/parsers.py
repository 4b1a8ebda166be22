"""This module makes reasoning and tool parsers work at a constant cost a chunk.

FastDeploy hands each parser the whole answer so far at each chunk: its text twice, its ids twice.  A known
parser (`known_parsers`) only looks for its marks in them.  Here it gets an excerpt with the same marks: a
short ``str`` and a short ``list`` (`excerpt`).  FastDeploy's own method does the rest.  Its ``self`` is a
`View`: the data processor with another ``ids2tokens``, which returns the excerpt, and a tokenizer that counts
the tokens of the same text once (`token_counts`).  Any other parser gets the whole answer.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import replacements
from ..fallback import Guard
from ..logs import api_log
from . import mends
from .answer_text import AnswerText
from .chunks._chunks import note
from .chunks.model_fields import NotPlain
from .excerpt import Excerpt, Marks
from .joined_results import withdraw
from .known_parsers import REASONING, marks_of
from .loading import is_serving
from .pieces import Pieces, Tokens
from .plain_answers import way_of
from .token_counts import CountingTokenizer, UncountedTokenizer

PROTOCOL = "fastdeploy.entrypoints.openai.protocol"
STREAMED = "process_response_dict_streaming"
WHOLE = "process_response_dict_normal"

OUTPUT_FALLBACK = "output_fallback_manager"
"""Attributes of some FastDeploy versions that change the text before the parsers get it."""

_NOT_QUICK = "parsers are given the whole answer at each chunk"
_STATE = 4  # items of an answer's state: two offsets, ids, text


class Views(NamedTuple):
    """A data processor as its methods see it."""

    made_for: tuple[Any, ...]
    """The parsers and the tokenizer that it had, and what was set on it and on its reasoning parser."""
    chunk: Any  # for a result of a streamed answer
    end: Any  # for the last one of a streamed answer
    mark: Any  # for the text that waits for the rest of a character when a mark comes
    part: Any  # for a result of a whole answer that does not end it
    last: Any  # for one that does
    uncounted: Views | None = None  # the same for answers whose reasoning tokens are told to no client
    pieces: Pieces | Tokens | None = None  # None where no parser is on
    takes_any: bool = False  # whether a result of several tokens says what they say one by one
    plain: Callable[[Any], Any] | None = None
    """Completes the response of a result that does not end its answer; None: FastDeploy's method does."""


class Processors:
    """Cache of each data processor's views."""

    def __init__(self, cls: type, ids2tokens: Any, streamed: Any) -> None:
        self.cls, self.ids2tokens = cls, ids2tokens  # FastDeploy's, with our ids2tokens
        self.streamed = streamed
        self.known: dict[int, tuple[Callable[[], Any], Views]] = {}

    def views_of(self, processor: Any) -> Views:
        """The views that the methods of a processor use."""
        name = id(processor)
        reasoning = processor.reasoning_parser
        changed = None if reasoning is None else vars(reasoning).get(REASONING)
        own = vars(processor)
        set_on_it = own.get("ids2tokens"), own.get(OUTPUT_FALLBACK)
        now = reasoning, processor.tool_parser_obj, processor.tokenizer, changed, set_on_it
        known = self.known.get(name)
        if known is not None and known[0]() is processor and known[1].made_for == now:
            return known[1]
        views = Views(now, processor, processor, processor, processor, processor)
        try:
            views = self._quick_views(views)
        except Exception as error:
            reason = str(error) if isinstance(error, NotPlain) else type(error).__name__
            note(f"{_NOT_QUICK}: {reason}")
        with contextlib.suppress(TypeError):
            gone = weakref.ref(processor, lambda _: self.known.pop(name, None))
            self.known[name] = gone, views
        return views

    def _quick_views(self, views: Views) -> Views:
        processor, (reasoning, tools, tokenizer, *_) = views.last, views.made_for
        cls = type(processor)
        if getattr(processor, OUTPUT_FALLBACK, None) is not None:
            raise NotPlain("an output fallback reads it, too")
        if cls.ids2tokens is not self.ids2tokens or "ids2tokens" in vars(processor):
            raise NotPlain(f"{cls.__name__} has its own ids2tokens")
        mended = mends.are_on()
        end, whole = _ends(mended), functools.partial(self.ids2tokens, weakref.proxy(processor))
        views = views._replace(part=View(processor, tokenizer, _quick(self.ids2tokens, processor, None)))
        if reasoning is not None or tools is not None:
            views = views._replace(pieces=Tokens(self.ids2tokens))
        if mended:
            last = View(processor, tokenizer, end(whole))
            views = views._replace(end=last, last=last)
        try:
            tokenizer = CountingTokenizer(tokenizer)
            marks = marks_of(reasoning, tools, tokenizer)
        except NotPlain as reason:
            note(f"{_NOT_QUICK}: {reason}")
            return views
        quick = _quick(self.ids2tokens, processor, marks)
        pieces = views.pieces
        if mended and marks is not None:
            pieces = Pieces(marks, processor.tokenizer, self.ids2tokens)

        mark = functools.partial(quick, releases=mends.MARK)

        def counted_by(tokenizer: Any) -> Views:
            chunk, ends, marked, last = (
                View(processor, tokenizer, one) for one in (quick, end(quick), mark, end(whole))
            )
            return views._replace(
                chunk=chunk, end=ends, mark=marked, last=last, pieces=pieces, takes_any=mended
            )

        uncounted = None if reasoning is None else counted_by(UncountedTokenizer(tokenizer))
        views = counted_by(tokenizer)._replace(uncounted=uncounted)
        if reasoning is None and tools is None:
            views = views._replace(plain=self._plain_way(processor, processor.tokenizer, quick))
        return views

    def _plain_way(self, processor: Any, tokenizer: Any, quick: Any) -> Callable[[Any], Any] | None:
        try:
            return way_of(
                processor,
                self.cls,
                self.streamed,
                functools.partial(View, processor, tokenizer),
                tokenizer,
                quick,
            )
        except NotPlain as reason:
            note(f"answers without a parser are FastDeploy's: {reason}")
            return None


def _ends(mended: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes ``ids2tokens`` release all text at an answer's end, if that is to be mended."""
    if not mended:
        return lambda ids2tokens: ids2tokens
    return lambda ids2tokens: functools.partial(ids2tokens, releases=mends.END)


class View:
    """View of a data processor, for FastDeploy's methods: another tokenizer and another ``ids2tokens``."""

    __slots__ = ("_processor", "ids2tokens", "tokenizer")

    def __init__(self, processor: Any, tokenizer: Any, ids2tokens: Callable[..., Any]) -> None:
        # Weakly: the cache of views must not keep a processor alive.
        self._processor = weakref.proxy(processor)
        self.tokenizer, self.ids2tokens = tokenizer, ids2tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)


def _quick(stock: Any, owner: Any, marks: Marks | None) -> Callable[..., Any]:
    """``ids2tokens`` at a constant cost; the earlier answer in its result is an excerpt."""
    advance = stock.advance
    ids_of_marks = frozenset() if marks is None else marks.ids
    without_any: list[int] = []
    processor_of = weakref.ref(owner)

    def ids2tokens(token_id: Any, task_id: Any, releases: str = "") -> Any:
        processor: Any = processor_of()
        answers = processor.decode_status
        status = answers.get(task_id)
        before = None if status is None else (status[0], status[1], len(status[2]))
        try:
            told = of_excerpt(processor, answers, status, token_id, task_id, releases)
        except Exception as error:
            stock.go_back(answers, task_id, before)
            outcome = stock(processor, token_id, task_id, releases)  # raises what FastDeploy raises
            stock.guard.failed(error)
            return outcome
        return stock(processor, token_id, task_id, releases) if told is None else told

    def of_excerpt(
        processor: Any, answers: Any, status: Any, token_id: Any, task_id: Any, releases: str
    ) -> tuple[Any, Any, Any] | None:
        """What ``ids2tokens`` returns, of an excerpt; None where the answer's state is FastDeploy's."""
        if not stock.guard.is_on:
            return None
        if status is None or type(status[-1]) is not AnswerText or status[3].marks is not marks:
            status = _begun(processor, answers, task_id, status)
        if status is None or type(token_id) is not list:
            return None
        answer = status[3]
        delta = advance(processor.tokenizer, status, token_id, releases)
        excerpt = answer.excerpt
        if excerpt is None:
            if delta:
                answer.append(delta)
            return delta, without_any, ""
        if not ids_of_marks.isdisjoint(token_id) or not excerpt.ids:
            excerpt.add_ids(token_id)
        previous = excerpt.text
        if delta:
            excerpt.add_text(delta)
            answer.append(delta)  # last: after a failure the answer goes on from its text
        return delta, excerpt.ids, previous

    def _begun(processor: Any, answers: Any, task_id: Any, status: Any) -> Any:
        """The state of an answer, with a text that can grow; None if it has another type."""
        if status is None:
            if stock.is_left_to_fastdeploy():
                return None
            status = answers[task_id] = [0, 0, [], ""]
        if len(status) != _STATE or type(status[3]) not in (str, AnswerText):
            return None
        excerpt = None if marks is None else Excerpt(marks)
        if excerpt is not None:
            excerpt.add_ids(status[2])
            excerpt.add_text(str(status[3]))
        way = None
        if marks is None:
            way = processor.tokenizer, stock.ways_of(processor.tokenizer).new_text
        status[3] = AnswerText(str(status[3]), marks, excerpt, way)
        return status

    ids2tokens.stock = stock  # type: ignore[attr-defined]
    return ids2tokens


def install(module: Any) -> Callable[[], None]:
    """Install views for a module's data processors; return a function that restores.

    NotPlain if none of them has our ``ids2tokens``.
    """
    changes = []
    for cls in replacements.classes_that_define(module, STREAMED):
        if not hasattr(vars(cls).get("ids2tokens"), "advance"):
            continue
        stock = {name: vars(cls)[name] for name in (STREAMED, WHOLE)}
        changes += [(cls, name, method) for name, method in _methods(cls, stock).items()]
    if not changes:
        raise NotPlain("ids2tokens is FastDeploy's own")
    return replacements.install("api parsers", *changes)


def is_quick(processor: Any) -> bool:
    """Whether the parsers of a data processor get excerpts, or it has no parser."""
    views_of = getattr(getattr(type(processor), STREAMED, None), "views_of", None)
    return views_of is not None and views_of(processor).chunk is not processor


def _is_told_no_counts(request: Any) -> bool:
    """Whether FastDeploy's handler drops the number of reasoning tokens: a stream without usage."""
    cls = type(request)
    return (
        cls.__name__ == "ChatCompletionRequest"
        and cls.__module__ == PROTOCOL
        and getattr(request, "stream", None) is True
        and getattr(request, "stream_options", ...) is None
    )


def _methods(cls: Any, stock: dict[str, Any]) -> dict[str, Any]:
    """The replacements for a class's methods, by name."""
    views_of = Processors(cls, vars(cls)["ids2tokens"], stock[STREAMED]).views_of
    streamed, whole, stock_init = stock[STREAMED], stock[WHOLE], cls.__init__
    guard = Guard("api parsers", api_log, when_off=withdraw)

    @functools.wraps(stock_init)
    def __init__(processor: Any, *arguments: Any, **options: Any) -> None:
        stock_init(processor, *arguments, **options)
        with contextlib.suppress(Exception):  # a subclass sets more: at the first answer
            if is_serving():
                views_of(processor)  # before the first client waits for it

    @functools.wraps(streamed)
    def process_response_dict_streaming(processor: Any, response_dict: Any, **kwargs: Any) -> Any:
        view, pieces, is_asked, plain = processor, None, False, None
        try:
            if guard.is_on:
                views = views_of(processor)
                if views.uncounted is not None and _is_told_no_counts(kwargs.get("request")):
                    views = views.uncounted
                if response_dict["finished"]:
                    view = views.end
                else:
                    view = views.chunk
                    plain = views.plain if type(response_dict["outputs"]) is dict else None
                if views.pieces is not None and views.pieces.may_cut(response_dict):
                    pieces = views.pieces
                elif guard.in_a_row:
                    guard.worked()
        except Exception as error:
            guard.failed(error)
            view, plain = processor, None
        if plain is not None:
            return plain(response_dict)
        if pieces is None:
            return streamed(view, response_dict, **kwargs)

        def asked(*arguments: Any, **options: Any) -> Any:
            nonlocal is_asked
            is_asked = True
            return streamed(*arguments, **options)

        try:
            answer = pieces.process(asked, views, response_dict, kwargs)
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

    process_response_dict_streaming.views_of = views_of  # type: ignore[attr-defined]
    return {
        "__init__": __init__,
        STREAMED: process_response_dict_streaming,
        WHOLE: process_response_dict_normal,
    }

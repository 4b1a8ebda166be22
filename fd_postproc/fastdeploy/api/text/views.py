"""Views of a data processor, by which FastDeploy's methods give its parsers an excerpt of the answer.

FastDeploy hands each parser the whole answer so far at each chunk: its text twice, its ids twice.  A known
parser (`known_parsers`) only looks for its marks in them.  Here it gets an excerpt with the same marks: a
short ``str`` and a short ``list`` (`excerpt`).  FastDeploy's own method does the rest.  Its ``self`` is a
`View`: the data processor with another ``ids2tokens``, which returns the excerpt, and a tokenizer that counts
the tokens of the same text once (`token_counts`).  Any other parser gets the whole answer.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ....support.known import Known
from ...events.counters import note
from ...gate.seams import NotPlain
from . import mends
from .answers import Answers, answers_of
from .growing_answers import GrowingAnswers
from .known_parsers import REASONING, marks_of
from .plain_answers import way_of
from .segments import Segments, Tokens
from .token_counts import CountingTokenizer, UncountedTokenizer

STREAMED = "process_response_dict_streaming"

OUTPUT_FALLBACK = "output_fallback_manager"
"""Attributes of some FastDeploy versions that change the text before the parsers get it."""

_NOT_QUICK = "parsers are given the whole answer at each chunk"


class Views(NamedTuple):
    """A data processor as its methods see it."""

    made_for: tuple[Any, ...]
    """The parsers and the tokenizer that it had, and what was set on it and on its reasoning parser."""
    chunk: Any  # for a result of a streamed answer
    end: Any  # for the last one of a streamed answer
    mark: Any  # for the text that waits for the rest of a character when a mark comes
    part: Any  # for a result of a whole answer that does not end it
    last: Any  # for one that does
    uncounted: Views | None = None  # the same for answers whose reasoning tokens no client gets
    segments: Segments | Tokens | None = None  # None where no parser is on
    takes_any: bool = False  # whether a result of several tokens says what they say one by one
    plain: Callable[[Any], Any] | None = None
    """Completes the response of a result that does not end its answer; None: FastDeploy's method does."""


class Processors:
    """Cache of each data processor's views."""

    def __init__(self, cls: type, ids2tokens: Any, answers: Answers, streamed: Any) -> None:
        self.cls, self.ids2tokens, self.answers = cls, ids2tokens, answers  # FastDeploy's, with ours
        self.streamed = streamed
        self._known: Known[Views] = Known()

    def views_of(self, processor: Any) -> Views:
        """The views that the methods of a processor use."""
        reasoning = processor.reasoning_parser
        changed = None if reasoning is None else vars(reasoning).get(REASONING)
        own = vars(processor)
        set_on_it = own.get("ids2tokens"), own.get(OUTPUT_FALLBACK)
        now = reasoning, processor.tool_parser_obj, processor.tokenizer, changed, set_on_it
        known = self._known.of(processor)
        if known is not None and known.made_for == now:
            return known
        views = Views(now, processor, processor, processor, processor, processor)
        try:
            views = self._quick_views(views)
        except Exception as error:
            reason = str(error) if isinstance(error, NotPlain) else type(error).__name__
            note(f"{_NOT_QUICK}: {reason}")
        return self._known.keep(processor, views)

    def _quick_views(self, views: Views) -> Views:
        processor, (reasoning, tools, tokenizer, *_) = views.last, views.made_for
        cls = type(processor)
        if getattr(processor, OUTPUT_FALLBACK, None) is not None:
            raise NotPlain("an output fallback reads it, too")
        if cls.ids2tokens is not self.ids2tokens or "ids2tokens" in vars(processor):
            raise NotPlain(f"{cls.__name__} has its own ids2tokens")
        mended = mends.are_on()
        end, whole = _ends(mended), functools.partial(self.ids2tokens, weakref.proxy(processor))
        part = GrowingAnswers(self.answers, self.ids2tokens, processor, None)
        views = views._replace(part=View(processor, tokenizer, part.ids2tokens))
        if reasoning is not None or tools is not None:
            views = views._replace(segments=Tokens(self.answers))
        if mended:
            last = View(processor, tokenizer, end(whole))
            views = views._replace(end=last, last=last)
        try:
            tokenizer = CountingTokenizer(tokenizer)
            marks = marks_of(reasoning, tools, tokenizer)
        except NotPlain as reason:
            note(f"{_NOT_QUICK}: {reason}")
            return views
        growing = GrowingAnswers(self.answers, self.ids2tokens, processor, marks)
        quick = growing.ids2tokens
        segments = views.segments
        if mended and marks is not None:
            segments = Segments(marks, processor.tokenizer, self.answers)

        mark = functools.partial(quick, releases=mends.MARK)

        def counted_by(tokenizer: Any) -> Views:
            chunk, ends, marked, last = (
                View(processor, tokenizer, one) for one in (quick, end(quick), mark, end(whole))
            )
            return views._replace(
                chunk=chunk, end=ends, mark=marked, last=last, segments=segments, takes_any=mended
            )

        uncounted = None if reasoning is None else counted_by(UncountedTokenizer(tokenizer))
        views = counted_by(tokenizer)._replace(uncounted=uncounted)
        if reasoning is None and tools is None:
            views = views._replace(plain=self._plain_way(processor, processor.tokenizer, growing))
        return views

    def _plain_way(
        self, processor: Any, tokenizer: Any, growing: GrowingAnswers
    ) -> Callable[[Any], Any] | None:
        view_of = functools.partial(View, processor, tokenizer)
        try:
            return way_of(processor, self.cls, self.streamed, view_of, tokenizer, growing)
        except NotPlain as reason:
            note(f"answers without a parser are FastDeploy's: {reason}")
            return None


def _ends(mended: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A wrapper of ``ids2tokens`` that releases all text at an answer's end, if that is to be mended."""
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


_known: Known[Processors] = Known()  # by `process_response_dict_streaming`
keep, processors_of = _known.keep, _known.of


def views_of(processor: Any) -> Views | None:
    """The views that the methods of a processor use; None if they are FastDeploy's own."""
    known = processors_of(getattr(type(processor), STREAMED, None))
    return None if known is None else known.views_of(processor)


def why_not_joined(client: Any) -> str | None:
    """Why the data processor of an ``EngineClient`` cannot take joined results; None if it can."""
    processor: Any = getattr(client, "data_processor", None)
    views = views_of(processor)
    if views is None:
        return f"FastDeploy's own code makes the texts ({type(processor).__name__})"
    answers = answers_of(type(processor).ids2tokens)
    if views.part is processor or answers is None:
        return f"the data processor's ids2tokens is not known ({type(processor).__name__})"
    if answers.are_left_to_fastdeploy():
        return "FD_USE_HF_TOKENIZER=1"
    if answers.are_texts_of_engine():
        return "FD_ENABLE_RETURN_TEXT=1"
    if not views.takes_any and _speculates(client):
        return (
            "with speculative decoding FastDeploy parses a step's tokens together, and a joined result does "
            "not say which those are (FD_POSTPROC_MENDS=0, or a parser that is not known)"
        )
    return None


def _speculates(client: Any) -> bool:
    """Whether a step may have several tokens of a request; yes if that is not known."""
    config = getattr(getattr(client, "fd_config", None), "speculative_config", None)
    return config is None or getattr(config, "method", "unknown") is not None

"""Results of several tokens in segments, each parsed as FastDeploy parses a result of one token.

FastDeploy's parsers were written for one token a result.  With several, as multi-token prediction has them,
they show marks, and lose content and arguments.  So FastDeploy's method is called for each segment of a
result, and what it says is joined into the one result again: its log-probabilities, metrics and ids are not
touched.

Not every token needs a segment of its own.  One does that

* is a mark, or may be the beginning or the end of one in plain text;
* is blank, as long as nothing but blanks has come since a mark;
* comes after the first tool call has begun;
* is the last one of an answer.

All of that is known from the answer's ids and excerpt, so there is no state besides FastDeploy's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from . import mends
from .answer_text import AnswerText
from .answers import STATE, Answers
from .excerpt import Marks
from .joined_results import are_expected

_PLAIN, _BLANK, _ALONE, _MAY_CALL = range(4)


class Segments:
    """Segments of the results of a data processor, with its parsers' marks and our answers."""

    def __init__(self, marks: Marks, tokenizer: Any, answers: Answers) -> None:
        self.marks, self.tokenizer, self.answers = marks, tokenizer, answers
        self.kinds = {
            one: _MAY_CALL if self._text(one) in (marks.call or ()) else _ALONE for one in marks.ids
        }

    def may_cut(self, response_dict: dict[str, Any]) -> bool:
        """Whether a result ends its answer, has several tokens, or a mark."""
        ids = response_dict["outputs"]["token_ids"]
        if type(ids) is not list:
            return False
        return response_dict["finished"] or len(ids) > 1 or (len(ids) == 1 and ids[0] in self.marks.ids)

    def process(
        self, streamed: Callable[..., Any], views: Any, response_dict: Any, options: dict[str, Any]
    ) -> Any:
        """The response that FastDeploy's method makes of a result's segments; `views` are its processor."""
        ids, finished = response_dict["outputs"]["token_ids"], response_dict["finished"]
        view = views.end if finished else views.chunk
        answers, name = views.chunk.decode_status, response_dict["request_id"]
        status = answers.get(name)
        is_theirs = self.answers.are_left_to_fastdeploy() if status is None else len(status) != STATE
        if is_theirs:  # FD_USE_HF_TOKENIZER
            return streamed(view, response_dict, **options)
        in_call = self._is_in_call(status)
        segments = self.cut(ids, status, in_call, finished) or [[]]
        said = _sayer(streamed, response_dict, options)
        parts = []
        for number, segment in enumerate(segments, 1):
            is_last, status = number == len(segments), answers.get(name)
            if segment and self._releases(segment[0], status):
                parts.append(said(views.mark, []))
            elif finished and is_last and status is not None:
                rest = self.answers.split(self.tokenizer, status)
                if rest:
                    parts.append(said(views.chunk, []))
                    status[2].extend(rest)
            if finished and is_last:
                # At an end FastDeploy shows all text, also where a parser shows none: so this comes before.
                shows_all, eos = options.get("include_stop_str_in_output"), views.chunk.eos_token_ids
                given = segment if shows_all or not segment or segment[-1] not in eos else []
                if self.answers.hold_text(self.tokenizer, answers.get(name) or [0, 0, []], given):
                    parts.append(said(view, given))
                    segment = [] if given else segment
            if len(segments) == 1 and not parts:
                return streamed(view, response_dict, **options)
            parts.append(said(view if is_last else views.chunk, segment, finished and is_last))
        if len(segments) > 1 and (in_call or not self.marks.ids.isdisjoint(ids)):
            mends.count(mends.SEGMENTS)
        return _whole(response_dict, options, parts)

    def cut(self, ids: list[int], status: Any, in_call: bool, finished: bool) -> list[list[int]]:
        """The segments of a result.

        `status` is what FastDeploy keeps of the answer, `in_call` whether a tool call has begun before.
        """
        after_mark: bool | None = None
        segments: list[list[int]] = []
        joins = False  # whether a token may come to the last segment
        for number, token in enumerate(ids):
            kind = self._kind_of(token)
            if kind == _BLANK and after_mark is None:
                after_mark = self._is_after_mark(status)
            alone = in_call or kind >= _ALONE or (kind == _BLANK and after_mark)
            if joins and not alone and not (finished and number == len(ids) - 1):
                segments[-1].append(token)
            else:
                segments.append([token])
            joins = not alone
            if kind != _BLANK:
                after_mark = kind >= _ALONE
            in_call = in_call or (kind == _MAY_CALL and self.marks.call is not None)
        return segments

    def _kind_of(self, token: int) -> int:
        kind = self.kinds.get(token)
        if kind is None:
            text = self._text(token)
            kind = _MAY_CALL if "<" in text or ">" in text else _PLAIN if text.strip() else _BLANK
            self.kinds[token] = kind
        return kind

    def _text(self, token: int) -> str:
        try:
            text: str = self.tokenizer.decode([token], skip_special_tokens=False)
        except Exception:  # an id that is none: FastDeploy's method raises it
            return "<"
        return text

    def _is_in_call(self, status: Any) -> bool:
        if status is None or self.marks.call is None:
            return False
        text = status[3]
        if type(text) is AnswerText and text.excerpt is not None:
            text = text.excerpt.text
        return self.marks.call[0] in str(text)

    def _is_after_mark(self, status: Any) -> bool:
        """Whether a mark has come, and nothing but blanks since."""
        for token in reversed(status[2] if status else ()):
            kind = self._kind_of(token)
            if kind != _BLANK:
                return kind >= _ALONE
        return False

    def _releases(self, token: int, status: Any) -> bool:
        """Whether a token is a mark, and text before it waits for the rest of a character."""
        return (
            token in self.marks.ids and status is not None and self.answers.hold_text(self.tokenizer, status)
        )


class Tokens:
    """Joined results of a data processor whose parsers take one token a result, each token by itself.

    So it is where the mends are off, or a parser is not known.  A step's own tokens stay together: with
    speculation no results are joined there.
    """

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    def may_cut(self, response_dict: dict[str, Any]) -> bool:
        """Whether a result may be one that was joined."""
        ids = response_dict["outputs"]["token_ids"]
        return (
            type(ids) is list
            and len(ids) > 1
            and are_expected()
            and not self.answers.are_left_to_fastdeploy()
        )

    def process(
        self, streamed: Callable[..., Any], views: Any, response_dict: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """The response that FastDeploy's method makes of a result's tokens one by one."""
        *others, last = ([token] for token in response_dict["outputs"]["token_ids"])
        finished = response_dict["finished"]
        said = _sayer(streamed, response_dict, options)
        parts = [said(views.chunk, segment) for segment in others]
        parts.append(said(views.end if finished else views.chunk, last, finished))
        return _whole(response_dict, options, parts)


def _sayer(
    streamed: Callable[..., Any], response_dict: dict[str, Any], options: dict[str, Any]
) -> Callable[..., dict[str, Any]]:
    """A function that gives the outputs which FastDeploy's method makes of a segment of a result."""

    def said(view: Any, segment: list[int], is_last: bool = False) -> dict[str, Any]:
        outputs = {**response_dict["outputs"], "token_ids": segment}
        outputs.pop("reasoning_token_num", None)
        part = {**response_dict, "finished": is_last, "outputs": outputs}
        answer: dict[str, Any] = streamed(view, part, **options)["outputs"]
        return answer

    return said


def _whole(response_dict: dict[str, Any], options: dict[str, Any], parts: list[dict[str, Any]]) -> Any:
    """The response of the segments that FastDeploy's method has made outputs of."""
    shows_ids = getattr(options.get("request"), "return_token_ids", False)
    outputs = response_dict["outputs"]
    outputs.update(_joined(parts, shows_ids), token_ids=outputs["token_ids"])
    return response_dict


def _joined(parts: list[dict[str, Any]], shows_ids: bool) -> dict[str, Any]:
    """One result's outputs from those of its segments.

    `shows_ids`: whether the client gets the reasoning of a skipped result, too, as FastDeploy has it.
    """
    shown = [part for part in parts if not part.get("skipped")]
    calls = [call for part in shown for call in part.get("tool_calls") or ()]
    whole = {
        **parts[-1],
        "text": "".join(part["text"] or "" for part in shown),
        "completion_tokens": "".join(part["completion_tokens"] for part in parts),
        "reasoning_content": "".join(
            part.get("reasoning_content") or "" for part in (parts if shows_ids else shown)
        ),
        "skipped": not shown,
        "tool_calls": _merged(calls) or None,
    }
    counts = [part["reasoning_token_num"] for part in parts if "reasoning_token_num" in part]
    return whole | ({"reasoning_token_num": sum(counts)} if counts else {})


def _merged(calls: list[Any]) -> list[Any]:
    """Deltas of tool calls, those of one call as one: clients look at the first of a chunk."""
    merged: list[Any] = []
    for call in calls:
        last = merged[-1] if merged else None
        more = getattr(getattr(call, "function", None), "arguments", None)
        if last is None or more is None or call.id is not None or last.index != call.index:
            merged.append(call)
        else:
            # A copy: a parser may look again at what it has given out.
            last = merged[-1] = copy.copy(last)
            last.function = copy.copy(last.function)
            last.function.arguments = (last.function.arguments or "") + more
    return merged

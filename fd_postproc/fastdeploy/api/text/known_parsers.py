"""This module finds the parsers that search an answer's earlier text for their marks only.

A parser is known if FastDeploy's own package defines it, if the gate knows its code, and if it answers the
same with excerpts in a trial with random answers.
"""

from __future__ import annotations

import random
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from ... import called, gate
from ...notes import NotPlain
from ...quiet import SILENT, Quiet
from .excerpt import SHAPE, Excerpt, Marks

REASONING = "extract_reasoning_content_streaming"
TOOLS = "extract_tool_calls_streaming"

RAISED = "raises"
ANSWERS = 60  # of a trial, for each state that a prompt leaves


def marks_of(reasoning: Any, tools: Callable[[Any], Any] | None, tokenizer: Any) -> Marks | None:
    """The marks of a data processor's parsers; None if it has no parser.

    Parameters
    ----------
    reasoning : ReasoningParser or None
    tools : type of ToolParser or None
    tokenizer : CountingTokenizer
        The tokenizer that a tool parser is made with.

    Raises
    ------
    NotPlain
        If one of the parsers is not known, with the reason.
    """
    tool_parser = None if tools is None else tools(tokenizer)
    parsers = {REASONING: reasoning, TOOLS: tool_parser}
    parsers = {method: parser for method, parser in parsers.items() if parser is not None}
    if not parsers:
        return None
    texts, ids = set(), set()
    for method, parser in parsers.items():
        _check_code(parser, method)
        for name, value in vars(parser).items():
            if type(value) is str and value:
                if not SHAPE.fullmatch(value):
                    raise NotPlain(f"{type(parser).__name__} has a mark of another kind: {value!r}")
                texts.add(value)
            elif type(value) is int and name.endswith("_token_id"):
                ids.add(value)
    call = None
    if tool_parser is not None:
        call = tool_parser.tool_call_start_token, tool_parser.tool_call_end_token
    marks = Marks(tuple(sorted(texts)), frozenset(ids), call)
    _try(marks, reasoning, tools, tokenizer)
    return marks


def _check_code(parser: Any, method: str) -> None:
    """Raise NotPlain if a streaming method, or one that it calls, is not FastDeploy's own known code."""
    cls = type(parser)
    waiting, reached = [method], {}
    while waiting:
        name = waiting.pop()
        function = getattr(cls, name, None)
        if name in reached or not callable(function) or isinstance(function, type):
            if name == method:
                raise NotPlain(f"{cls.__name__} has no {method}")
            continue
        layers = called.layers_of(function)
        if len(layers) > 1 or layers[0] is not function or type(function) is not types.FunctionType:
            by, file, line = called.place_of(function)
            raise NotPlain(f"{cls.__name__}.{name} is wrapped by {by} (line {line} of {file})")
        if name in vars(parser) or not function.__module__.startswith("fastdeploy."):
            raise NotPlain(f"{cls.__name__} is none of FastDeploy's own parsers")
        reached[name] = function
        waiting += [one for one in function.__code__.co_names if one not in reached and hasattr(cls, one)]
    functions = ((function.__qualname__, function) for function in reached.values())
    reason = gate.compared(functions, gate.record().get("api parsers", {})).reason
    if reason:
        raise NotPlain(reason)


# ---- the trial ---------------------------------------------------------------------------------------------


class Request(dict):  # type: ignore[type-arg]
    """A request with what a parser may read of it."""

    request_id = "trial"


def _try(marks: Marks, reasoning: Any, tools: Any, tokenizer: Any) -> None:
    """Raise NotPlain if a parser answers excerpts in a different way."""
    draw = random.Random(36)
    thinks = None if reasoning is None else _quiet_class(reasoning)
    calls = None if tools is None else _quiet_class(tools(tokenizer))
    answering: set[int] = set()  # parsers that did not only raise
    states = [*getattr(reasoning, "token_status_mapping", {"": ""}).values()]
    for state in states:
        for _ in range(ANSWERS):
            deltas = list(random_deltas(draw, marks))
            ways: list[list[Any]] = []
            for history in (Whole, Excerpts):
                parsers: list[tuple[Any, str, Any]] = []
                if thinks is not None:
                    parsers.append((_quiet(reasoning, thinks), REASONING, state))
                if calls is not None:
                    parsers.append((_quiet(tools(tokenizer), calls), TOOLS, Request()))
                ways.append(answers(parsers, history(marks), deltas))
            for delta, expected, actual in zip(deltas, *ways, strict=True):
                answering |= {at for at, one in enumerate(expected) if one is None or one[0] is not RAISED}
                if expected != actual:
                    raise NotPlain(f"{delta} is parsed otherwise: {expected} is expected, not {actual}")
    if len(answering) < sum(one is not None for one in (thinks, calls)):
        raise NotPlain("a parser raises whatever it is asked")


class Whole:
    """Arguments of FastDeploy's parsers: the whole earlier answer."""

    def __init__(self, marks: Marks) -> None:
        self.text, self.ids = "", []  # type: str, list[int]

    def add_ids(self, ids: list[int]) -> None:
        self.ids.extend(ids)

    def add_text(self, text: str) -> None:
        self.text += text


class Excerpts(Excerpt):
    """Arguments with an excerpt, shortened at each delta."""

    def add_text(self, delta: str) -> None:
        self._next = 0
        super().add_text(delta)


def answers(parsers: Any, history: Any, deltas: list[tuple[str, list[int]]]) -> list[Any]:
    """The parsers' answers to each delta, as plain values."""
    messages = []
    for delta, ids in deltas:
        history.add_ids(ids)
        arguments = (history.text, history.text + delta, delta, history.ids, history.ids + ids, ids)
        messages.append([_answer(getattr(parser, name), arguments, last) for parser, name, last in parsers])
        history.add_text(delta)
    return messages


def _answer(method: Any, arguments: Any, last: Any) -> Any:
    most = method.__code__.co_argcount - 1  # 2.4's reasoning parsers are told no state
    try:
        message = method(*(*arguments, last)[:most])
    except Exception as error:
        return RAISED, f"{type(error).__name__}: {error}"
    return None if message is None else re.sub(r"tool-[0-9a-f]+", "tool-", repr(message.model_dump()))


def _quiet(parser: Any, quiet_class: type) -> Any:
    """A copy of a parser that logs nothing."""
    twin: Any = object.__new__(quiet_class)
    vars(twin).update(vars(parser))
    return twin


def _quiet_class(parser: Any) -> type:
    """The class of such copies."""
    spaces: dict[int, dict[str, Any]] = {}
    body: dict[str, Any] = {}
    for cls in reversed(type(parser).__mro__[:-1]):
        for name, function in vars(cls).items():
            if isinstance(function, types.FunctionType) and function.__closure__ is None:
                names = function.__globals__
                if id(names) not in spaces:
                    spaces[id(names)] = {key: _silent(key, value) for key, value in names.items()}
                body[name] = types.FunctionType(
                    function.__code__, spaces[id(names)], name, function.__defaults__
                )
    return type(type(parser).__name__, (type(parser),), body)


def _silent(name: str, value: Any) -> Any:
    if name.endswith("logger"):
        return SILENT
    return Quiet() if getattr(value, "__module__", "") == "fastdeploy.logger.request_logger" else value


PIECES = (
    *("a", " the", "\n", "\n\n", " ", "", "日本", "x\n", "\r\n", "< ", "</", ">", "{", "}", "}}", '"'),
    *('{"name": "', '"name": "f', 'get_weather"', '", "arguments": ', '"arguments": {', '{"a": "b', '"}'),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}', "[1, ", "null", "\\n"),
)
"""Pieces of random answers, besides marks."""


def random_deltas(draw: random.Random, marks: Marks) -> Iterator[tuple[str, list[int]]]:
    """Deltas of a random answer: marks as text or ids, cut, missing and doubled."""
    texts = [*marks.texts, *(marks.call or ())]
    ids = [*marks.ids, *marks.ids, 7, 8]
    marked = draw.random() * 0.4
    calls = marks.call is not None and draw.random() < 0.5
    rest = ""
    for _ in range(draw.randint(1, 24)):
        token_ids, text = [], rest
        for _ in range(draw.choice((0, 1, 1, 1, 1, 2, 3))):
            if draw.random() < marked:
                text += draw.choice(texts)
                token_ids.append(draw.choice(ids))
            else:
                text += draw.choice(PIECES if calls else PIECES[:16])
                token_ids.append(draw.randrange(1000, 2000))
        cut = len(text) if draw.random() < 0.7 else draw.randint(0, len(text))
        yield text[:cut], token_ids
        rest = text[cut:]

"""Finds the parsers that search an answer's earlier text for their marks only.

A parser is known if FastDeploy's own package defines it, and the gate knows its code.  `tools.accept` has
tried that code with excerpts, on random answers, before it was recorded.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ...gate import called
from ...gate.judgements import compared, gate
from ...gate.seams import NotPlain
from .excerpt import SHAPE, Marks

REASONING = "extract_reasoning_content_streaming"
TOOLS = "extract_tool_calls_streaming"


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
    parsers = {REASONING: reasoning, TOOLS: None if tools is None else tools(tokenizer)}
    parsers = {method: parser for method, parser in parsers.items() if parser is not None}
    for method, parser in parsers.items():
        _check_code(parser, method)
    return marks_in(parsers) if parsers else None


def marks_in(parsers: dict[str, Any]) -> Marks:
    """The marks of parsers, by their streaming methods; NotPlain where one has another form."""
    texts, ids = set(), set()
    for parser in parsers.values():
        for name, value in vars(parser).items():
            if type(value) is str and value:
                if not SHAPE.fullmatch(value):
                    raise NotPlain(f"{type(parser).__name__} has a mark of another kind: {value!r}")
                texts.add(value)
            elif type(value) is int and name.endswith("_token_id"):
                ids.add(value)
    tools = parsers.get(TOOLS)
    call = None if tools is None else (tools.tool_call_start_token, tools.tool_call_end_token)
    return Marks(tuple(sorted(texts)), frozenset(ids), call)


def _check_code(parser: Any, method: str) -> None:
    """Raise NotPlain if a streaming method, or one that it calls, is not FastDeploy's own known code.

    The record has all methods that a known method calls on its object, each by its class.
    """
    cls, known, functions = type(parser), gate.record.get("api parsers", {}), []
    if not callable(getattr(cls, method, None)):
        raise NotPlain(f"{cls.__name__} has no {method}")
    owner = getattr(getattr(cls, method), "__qualname__", "").rpartition(".")[0]
    recorded = (one.rpartition(".") for one in known)
    for name in dict.fromkeys((method, *(name for of, _, name in recorded if of == owner))):
        function = getattr(cls, name, None)
        if function is None:  # another version's
            continue
        layers = called.layers_of(function)
        if len(layers) > 1 or layers[0] is not function or type(function) is not types.FunctionType:
            by, file, line = called.place_of(function)
            raise NotPlain(f"{cls.__name__}.{name} is wrapped by {by} (line {line} of {file})")
        if name in vars(parser) or not function.__module__.startswith("fastdeploy."):
            raise NotPlain(f"{cls.__name__} is none of FastDeploy's own parsers")
        functions.append((function.__qualname__, function))
    reason = compared(functions, known).reason
    if reason:
        raise NotPlain(reason)

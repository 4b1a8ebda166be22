"""What FastDeploy's serving code names, and ours in its place.

FastDeploy's generators stay as they are.  What they call - the classes of an answer's parts, and the methods
that turn a result's log-probabilities into some of them - is replaced by name in the module that they look
it up in.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ._chunks import (
    ChatBuilder,
    ChatModels,
    CompletionBuilder,
    CompletionModels,
    FloatStyle,
    Texts,
    Unknown,
    note,
)
from .plans import NotPlain, float_style, models_of
from .texts import chat_spelling, completion_spelling, silence
from .waits import Asyncio, wait_for

PROTOCOL = "fastdeploy.entrypoints.openai.protocol"
CHAT = "fastdeploy.entrypoints.openai.serving_chat"
COMPLETION = "fastdeploy.entrypoints.openai.serving_completion"

MODELS = (
    *("LogProbEntry", "LogProbs", "CompletionLogprobs"),
    *("PromptTokenUsageInfo", "CompletionTokenUsageInfo", "UsageInfo"),
    *("DeltaMessage", "ChatCompletionResponseStreamChoice", "ChatCompletionStreamResponse"),
    *("ChatMessage", "ChatCompletionResponseChoice", "ChatCompletionResponse"),
    *("CompletionResponseStreamChoice", "CompletionStreamResponse"),
    *("CompletionResponseChoice", "CompletionResponse"),
)
"""Classes of an answer's parts, the inner ones first."""

_BUILT_BY_FASTDEPLOY = ("LogProbEntry", "CompletionLogprobs")  # in its own methods, where ours gave up


@dataclass
class Blocks:
    """Ours for one module of FastDeploy's.

    Attributes
    ----------
    names : dict of str to object
        What stands for a class, by its name in the module.
    methods : dict of (str, str) to function
        What stands for a method, by class and name.
    left : dict of str to str
        What is left to FastDeploy, and why.
    """

    names: dict[str, Any] = field(default_factory=dict)
    methods: dict[tuple[str, str], Callable[..., Any]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def blocks_of(module: Any) -> Blocks:
    """Ours for ``serving_chat`` or ``serving_completion``.

    Raises
    ------
    NotPlain
        If there is none, with the reason.
    """
    protocol = importlib.import_module(PROTOCOL)
    style = float_style()
    if style is None:
        raise NotPlain("pydantic prints floats in none of the ways known here")
    made = Blocks()
    classes = {name: vars(protocol)[name] for name in MODELS if name in vars(protocol)}
    stood_in = dict.fromkeys(classes.values())
    for name, cls in classes.items():
        if vars(module).get(name) is not cls or name in _BUILT_BY_FASTDEPLOY:
            continue
        try:
            made.names[name] = models_of(cls, stood_in, style)
        except NotPlain as reason:
            made.left[name] = str(reason)
    if vars(module).get("asyncio") is asyncio:
        made.names["asyncio"] = Asyncio(wait_for=wait_for)
    for (owner, name), make in _METHODS.items():
        cls = vars(module).get(owner)
        stock = vars(cls).get(name) if cls is not None else None
        if stock is None:
            continue
        if not isinstance(stock, types.FunctionType) or _parameters(stock) != _PARAMETERS[name]:
            made.left[name] = f"{owner}.{name} takes other arguments"
            continue
        made.methods[owner, name] = make(stock, protocol, style)
    if not made.names and not made.methods:
        raise NotPlain(f"{module.__name__} names none of the parts known here")
    return made


def install(module: Any, blocks: Blocks) -> Callable[[], None]:
    """Put ours into a module; a function that takes them out again."""
    before = {name: vars(module)[name] for name in blocks.names}
    methods = {key: vars(vars(module)[key[0]])[key[1]] for key in blocks.methods}
    vars(module).update(blocks.names)
    for (owner, name), function in blocks.methods.items():
        setattr(vars(module)[owner], name, function)

    def restore() -> None:
        vars(module).update(before)
        for (owner, name), function in methods.items():
            setattr(vars(module)[owner], name, function)

    return restore


def _parameters(function: types.FunctionType) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


class _PerProcessor:
    """One builder for each data processor: usually there is a single one."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make
        self.last: Callable[[], Any] = lambda: None
        self.builder: Any = None

    def of(self, processor: Any) -> Any:
        if self.last() is not processor:
            self.builder = self.make(processor)
            self.last = weakref.ref(processor)
        return self.builder


def _chat_logprobs(stock: Any, protocol: Any, style: FloatStyle) -> Callable[..., Any]:
    models = ChatModels(protocol.LogProbEntry, protocol.LogProbs, style)
    silent = Texts(silence)
    builders = _PerProcessor(lambda processor: ChatBuilder(models, Texts(chat_spelling(processor)), silent))

    @functools.wraps(stock)
    def _create_chat_logprobs(
        handler: Any,
        output_top_logprobs: Any,
        request_logprobs: Any = None,
        request_top_logprobs: Any = None,
        request_decode_flag: Any = True,
    ) -> Any:
        try:
            builder = builders.of(handler.engine_client.data_processor)
            return builder.build(
                output_top_logprobs, request_logprobs, request_top_logprobs, request_decode_flag
            )
        except Unknown as reason:
            note(str(reason))
        except Exception:
            note("the tokenizer refuses a token id")
        return stock(
            handler, output_top_logprobs, request_logprobs, request_top_logprobs, request_decode_flag
        )

    return _create_chat_logprobs


def _completion_logprobs(stock: Any, protocol: Any, style: FloatStyle) -> Callable[..., Any]:
    models = CompletionModels(protocol.CompletionLogprobs, style)
    builders = _PerProcessor(
        lambda processor: CompletionBuilder(models, Texts(completion_spelling(processor)))
    )

    @functools.wraps(stock)
    def _create_completion_logprobs(
        handler: Any, output_top_logprobs: Any, request_logprobs: Any = None, prompt_text_offset: Any = None
    ) -> Any:
        try:
            builder = builders.of(handler.engine_client.data_processor)
            return builder.build(output_top_logprobs, request_logprobs)
        except Unknown as reason:
            note(str(reason))
        except Exception:
            note("the tokenizer refuses a token id")
        return stock(handler, output_top_logprobs, request_logprobs, prompt_text_offset)

    return _create_completion_logprobs


_METHODS = {
    ("OpenAIServingChat", "_create_chat_logprobs"): _chat_logprobs,
    ("OpenAIServingCompletion", "_create_completion_logprobs"): _completion_logprobs,
}
_PARAMETERS = {
    "_create_chat_logprobs": (
        *("self", "output_top_logprobs", "request_logprobs", "request_top_logprobs"),
        "request_decode_flag",
    ),
    "_create_completion_logprobs": (
        *("self", "output_top_logprobs", "request_logprobs", "prompt_text_offset"),
    ),
}

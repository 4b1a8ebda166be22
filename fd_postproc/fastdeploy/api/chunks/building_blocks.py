"""Replacements for the models and logprob builders that the serving modules look up by name.

FastDeploy's generators stay as they are.  What they call - the classes of an answer's parts, and the methods
that turn a result's log-probabilities into some of them - is replaced by name in the module that they look
it up in.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ... import gate, seams
from ._chunks import (
    ChatBuilder,
    ChatModels,
    CompletionBuilder,
    CompletionModels,
    FloatStyle,
    PromptLogprobs,
    Texts,
    Unknown,
    give_arrays,
    note,
    prompt_logprobs,
)
from .model_fields import NotPlain, check_plain, float_style, models_of
from .token_spelling import chat_spelling, completion_spelling, prompt_spelling, silence
from .wait_for import IS_OF_USE, Asyncio

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
"""Classes of an answer's parts, innermost first."""

_BUILT_BY_FASTDEPLOY = ("LogProbEntry", "CompletionLogprobs")  # in its own methods, where ours gave up


@dataclass
class Blocks:
    """Replacements for one module of FastDeploy's.

    Attributes
    ----------
    names : dict of str to object
        What stands for a class, by its name in the module.
    methods : dict of (str, str) to function
        What stands for a method, by class and name.
    left : dict of str to str
        What is left to FastDeploy, and why.
    arrays : bool
        Whether its code accepts NumPy's arrays.
    """

    names: dict[str, Any] = field(default_factory=dict)
    methods: dict[tuple[str, str], Callable[..., Any]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    arrays: bool = False


def blocks_of(module: Any) -> Blocks:
    """The replacements for ``serving_chat`` or ``serving_completion``.

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
        if vars(module).get(name) is not cls:
            continue
        if name in _BUILT_BY_FASTDEPLOY:
            check_plain(cls)
            continue
        made.names[name] = models_of(cls, stood_in, style)
    if IS_OF_USE and vars(module).get("asyncio") is asyncio:
        made.names["asyncio"] = Asyncio("asyncio")
    new = {one.function: one.text for one in gate.judge("api chunks", module).unknown}
    for (owner, name), make in _METHODS.items():
        cls = vars(module).get(owner)
        stock = vars(cls).get(name) if cls is not None else None
        if stock is None:
            continue
        if not isinstance(stock, types.FunctionType) or _parameters(stock) != _PARAMETERS[name]:
            made.left[name] = f"{owner}.{name} takes other arguments"
            continue
        if name == _BUILD_PROMPT and "hasattr" not in stock.__code__.co_names:
            continue  # it takes tensors only: FastDeploy 2.5, where no message is unpacked here
        if name == _BUILD_PROMPT and repr(vars(module).get("NONES")) != "repeat(None)":
            made.left[name] = "NONES is something else"
            continue
        ours = make(stock, protocol, style)
        if why := " and ".join(new[one] for one in _HELPERS[owner, name] if one in new):
            made.left[name] = why
            continue
        made.methods[owner, name] = ours
    if not made.names and not made.methods:
        raise NotPlain(f"{module.__name__} names none of the parts known here")
    made.arrays = _accepts_arrays(module)
    _look_at_prompts(module, made)
    return made


_CLAMP = "clamp_prompt_logprobs"
_BUILD_PROMPT = "_build_prompt_logprobs"
_SHOWS_PROMPTS = {
    CHAT: ("ChatCompletionResponseStreamChoice", "ChatCompletionResponseChoice"),
    COMPLETION: ("CompletionResponseStreamChoice", "CompletionResponseChoice"),
}
"""By module: the models that get a prompt's log-probabilities."""


def _look_at_prompts(module: Any, made: Blocks) -> None:
    """Have a prompt's log-probabilities stay packed where all that sees them is replaced."""
    stock = vars(module).get(_CLAMP)
    known = gate.judge("api chunks", module)
    changed = any(_CLAMP in one.function for one in known.unknown)
    shown = all(name in made.names for name in _SHOWS_PROMPTS[module.__name__])
    if not isinstance(stock, types.FunctionType) or changed or not shown:
        for place in [place for place in made.methods if place[1] == _BUILD_PROMPT]:
            del made.methods[place]
    elif any(name == _BUILD_PROMPT for _, name in made.methods):
        made.names[_CLAMP] = _clamp(stock)


def _clamp(stock: Any) -> Callable[..., Any]:
    @functools.wraps(stock)
    def clamp_prompt_logprobs(prompt_logprobs: Any) -> Any:
        if type(prompt_logprobs) is not PromptLogprobs:
            return stock(prompt_logprobs)
        prompt_logprobs.clamp(stock)
        return prompt_logprobs

    return clamp_prompt_logprobs


_MAKES_BASE64 = {"routing_data", "base64", "b64encode", "tobytes", "decode", "ndarray"}
_ENCODES = {
    CHAT: ("OpenAIServingChat", "chat_completion_full_generator"),
    COMPLETION: ("OpenAIServingCompletion", "request_output_to_completion_response"),
}
"""By module: the class and the method that makes base64 of routed experts."""


def _accepts_arrays(module: Any) -> bool:
    """Whether a module's code accepts that routed experts are NumPy's array."""
    owner, name = _ENCODES[module.__name__]
    encodes = vars(vars(module).get(owner, object)).get(name)
    words = _words_in(encodes.__code__) if isinstance(encodes, types.FunctionType) else set()
    return words >= _MAKES_BASE64 or "routing_data" not in words


def _words_in(code: types.CodeType) -> set[str]:
    """Names and texts in a function's code."""
    return {*code.co_names, *(one for one in code.co_consts if type(one) is str)}


_in_use: dict[str, Blocks] = {}  # by module


@contextlib.contextmanager
def in_use(module: Any, blocks: Blocks) -> Iterator[None]:
    """Have values of messages come as a module's replacements allow it."""
    _in_use[module.__name__] = blocks
    try:
        _settle_arrays()
        yield
    finally:
        _in_use.pop(module.__name__, None)
        _settle_arrays()


def _settle_arrays() -> None:
    give_arrays(bool(_in_use) and all(one.arrays for one in _in_use.values()))


def install(module: Any, blocks: Blocks) -> Callable[[], None]:
    """Install the replacements in a module; return a function that restores FastDeploy's own."""
    ours_in = contextlib.ExitStack()
    ours_in.enter_context(in_use(module, blocks))
    ours_in.callback(
        seams.install(
            "api chunks",
            *((module, name, ours) for name, ours in blocks.names.items()),
            *((vars(module)[owner], name, function) for (owner, name), function in blocks.methods.items()),
        )
    )
    return ours_in.close


def _parameters(function: types.FunctionType) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


class _PerProcessor:
    """Cache of one builder for each data processor; usually there is a single one."""

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
            top = output_top_logprobs
            own = functools.partial(stock, handler, top, request_logprobs, prompt_text_offset)
            return builder.build(output_top_logprobs, request_logprobs, own)
        except Unknown as reason:
            note(str(reason))
        except Exception:
            note("the tokenizer refuses a token id")
        return stock(handler, output_top_logprobs, request_logprobs, prompt_text_offset)

    return _create_completion_logprobs


def _prompt_logprobs(stock: Any, protocol: Any, style: FloatStyle) -> Callable[..., Any]:
    builders = _PerProcessor(lambda processor: Texts(prompt_spelling(processor)))

    @functools.wraps(stock)
    def _build_prompt_logprobs(
        handler: Any,
        prompt_logprobs_tensors: Any,
        num_prompt_logprobs: Any,
        include_logprobs_decode_token: Any,
    ) -> Any:
        tensors, wanted = prompt_logprobs_tensors, include_logprobs_decode_token
        own = functools.partial(stock, handler, tensors, num_prompt_logprobs, wanted)
        if type(tensors) in (list, tuple) and type([*tensors, None][0]) is list:
            return own()  # another way of transport has unpacked them
        try:
            texts = builders.of(handler.engine_client.data_processor) if wanted else None
            return prompt_logprobs(tensors, num_prompt_logprobs, texts, own)
        except Unknown as reason:
            note(str(reason))
        except Exception:
            note("the tokenizer refuses a token id")
        return own()

    return _build_prompt_logprobs


_METHODS = {
    ("OpenAIServingChat", "_create_chat_logprobs"): _chat_logprobs,
    ("OpenAIServingCompletion", "_create_completion_logprobs"): _completion_logprobs,
    ("OpenAIServingChat", _BUILD_PROMPT): _prompt_logprobs,
    ("OpenAIServingCompletion", _BUILD_PROMPT): _prompt_logprobs,
}
_HELPERS = {
    (owner, name): (f"{owner}.{name}", *(f"{owner}.{helper}" for helper in helpers))
    for (owner, name), helpers in {
        ("OpenAIServingChat", "_create_chat_logprobs"): ("_build_logprobs_response",),
        ("OpenAIServingCompletion", "_create_completion_logprobs"): ("_build_logprobs_response",),
        ("OpenAIServingChat", _BUILD_PROMPT): ("_make_logprob_dict",),
        ("OpenAIServingCompletion", _BUILD_PROMPT): ("_make_logprob_dict",),
    }.items()
}
"""FastDeploy's functions that each of our methods stands for."""
_PARAMETERS = {
    _BUILD_PROMPT: (
        *("self", "prompt_logprobs_tensors", "num_prompt_logprobs", "include_logprobs_decode_token"),
    ),
    "_create_chat_logprobs": (
        *("self", "output_top_logprobs", "request_logprobs", "request_top_logprobs"),
        "request_decode_flag",
    ),
    "_create_completion_logprobs": (
        *("self", "output_top_logprobs", "request_logprobs", "prompt_text_offset"),
    ),
}

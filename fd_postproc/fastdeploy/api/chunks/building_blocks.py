"""This module replaces the models and logprob builders that the serving modules look up by name.

FastDeploy's generators stay as they are.  They call the classes of an answer's parts, and the methods that
turn a result's log-probabilities into such parts.  Those names are ours in the generators' modules.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ... import called, gate, replacements
from ...fallback import Guard
from ...logs import api_log
from ...notes import NotPlain, note
from ...seams import SEAMS
from ._chunks import (
    PromptLogprobs,
    Texts,
    Unknown,
    chat_logprobs,
    completion_logprobs,
    give_arrays,
    prompt_logprobs,
)
from .model_fields import check_plain, float_style, models_of
from .token_spelling import chat_spelling, completion_spelling, prompt_spelling

PROTOCOL = "fastdeploy.entrypoints.openai.protocol"
CHAT = "fastdeploy.entrypoints.openai.serving_chat"
COMPLETION = "fastdeploy.entrypoints.openai.serving_completion"

MODELS = tuple(name for name in SEAMS["api chunks"].places if name[0].isupper() and "." not in name)
"""Classes of an answer's parts, innermost first."""

_BUILT_BY_FASTDEPLOY = ("LogProbEntry", "CompletionLogprobs")  # in its own methods, where ours gave up


@dataclass
class Blocks:
    """Replacements for one module of FastDeploy's.

    Attributes
    ----------
    names : dict of str to object
        Our object for each name in the module.
    methods : dict of (str, str) to function
        Our function for each class and method.
    left : dict of str to str
        The methods that stay FastDeploy's, and why.
    arrays : bool
        Whether the module's code accepts NumPy's arrays.
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
    blocks = Blocks()
    classes = {name: vars(protocol)[name] for name in MODELS if name in vars(protocol)}
    stood_in = dict.fromkeys(classes.values())
    for name, cls in classes.items():
        if vars(module).get(name) is not cls:
            continue
        if name in _BUILT_BY_FASTDEPLOY:
            check_plain(cls)
            continue
        blocks.names[name] = models_of(cls, stood_in, style)
    new = {one.function: one.text for one in reversed(gate.judge("api chunks", module).unknown)}
    for (owner, name), (make, helper) in _METHODS.items():
        stock = vars(vars(module).get(owner, object)).get(name)
        reasons = [new[one] for one in (f"{owner}.{name}", f"{owner}.{helper}") if one in new]
        if stock is None or (reasons and not called.is_code_of(stock, module)):
            blocks.left |= {name: " and ".join(reasons)} if reasons else {}
            continue
        if name == _BUILD_PROMPT and "hasattr" not in stock.__code__.co_names:
            continue  # it takes tensors only: FastDeploy 2.5, where no message is unpacked here
        if name == _BUILD_PROMPT and repr(vars(module).get("NONES")) != "repeat(None)":
            blocks.left[name] = "NONES is something else"
            continue
        if reasons:
            blocks.left[name] = " and ".join(reasons)
        else:
            blocks.methods[owner, name] = make(stock, protocol, blocks.names)
    if not blocks.names and not blocks.methods:
        raise NotPlain(f"{module.__name__} names none of the parts known here")
    blocks.arrays = _accepts_arrays(module)
    _look_at_prompts(module, blocks, any(_CLAMP in name for name in new))
    return blocks


_CLAMP = "clamp_prompt_logprobs"
_BUILD_PROMPT = "_build_prompt_logprobs"
_SHOWS_PROMPTS = {
    CHAT: ("ChatCompletionResponseStreamChoice", "ChatCompletionResponseChoice"),
    COMPLETION: ("CompletionResponseStreamChoice", "CompletionResponseChoice"),
}
"""By module: the models that get a prompt's log-probabilities."""


def _look_at_prompts(module: Any, blocks: Blocks, is_clamp_new: bool) -> None:
    """Keep a prompt's log-probabilities packed only if all that sees them is replaced."""
    stock = vars(module).get(_CLAMP)
    is_shown = all(name in blocks.names for name in _SHOWS_PROMPTS[module.__name__])
    builders = [place for place in blocks.methods if place[1] == _BUILD_PROMPT]
    is_wrapped = stock is not None and not called.is_code_of(stock, module)
    if is_wrapped:
        blocks.left[_CLAMP] = f"{_CLAMP} is wrapped by {called.place_of(stock)[0]}"
    if stock is None or is_wrapped or is_clamp_new or not is_shown:
        for place in builders:
            del blocks.methods[place]
    elif builders:
        blocks.names[_CLAMP] = _clamp(stock)


def _clamp(stock: Any) -> Callable[..., Any]:
    guard = Guard("api chunks", api_log)

    @functools.wraps(stock)
    def clamp_prompt_logprobs(prompt_logprobs: Any) -> Any:
        if type(prompt_logprobs) is not PromptLogprobs:
            return stock(prompt_logprobs)
        try:
            prompt_logprobs.clamp(stock)
            return prompt_logprobs
        except Exception as error:
            guard.failed(error)
            return stock(list(prompt_logprobs))

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
    words: set[str] = set()
    if isinstance(encodes, types.FunctionType):
        code = encodes.__code__
        words = {*code.co_names, *(one for one in code.co_consts if type(one) is str)}
    return words >= _MAKES_BASE64 or "routing_data" not in words


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
        replacements.install(
            "api chunks",
            *((module, name, ours) for name, ours in blocks.names.items()),
            *((vars(module)[owner], name, function) for (owner, name), function in blocks.methods.items()),
        )
    )
    return ours_in.close


class _TextsOf:
    """Cache of the texts of a data processor's tokens; usually there is a single processor.

    Parameters
    ----------
    spelling : callable
        From a data processor to what `Texts` is made with.
    """

    def __init__(self, spelling: Callable[[Any], Callable[[int], tuple[str, str]]]) -> None:
        self._spelling = spelling
        self._processor: Callable[[], Any] = lambda: None
        self._texts: Any = None

    def __call__(self, handler: Any) -> Any:
        """The texts of a handler's processor."""
        processor = handler.engine_client.data_processor
        if self._processor() is not processor:
            self._texts = Texts(self._spelling(processor))
            self._processor = weakref.ref(processor)
        return self._texts


def _or_fastdeploys(guard: Guard, ours: Callable[[], Any], own: Callable[[], Any]) -> Any:
    """What our function returns, or FastDeploy's own where ours gives up."""
    failure: Exception | None = None
    if guard.is_on:
        try:
            made = ours()
            guard.worked()
            return made
        except Unknown as reason:
            note(str(reason))
        except Exception as error:
            note("the tokenizer refuses a token id")
            failure = error
    made = own()  # raises what FastDeploy raises
    if failure is not None:
        guard.failed(failure)
    return made


def _chat_logprobs(stock: Any, protocol: Any, names: dict[str, Any]) -> Callable[..., Any]:
    entry, models, texts_of = protocol.LogProbEntry, names["LogProbs"], _TextsOf(chat_spelling)
    guard = Guard("api chunks", api_log)

    @functools.wraps(stock)
    def _create_chat_logprobs(
        handler: Any,
        output_top_logprobs: Any,
        request_logprobs: Any = None,
        request_top_logprobs: Any = None,
        request_decode_flag: Any = True,
    ) -> Any:
        top, columns, wanted = output_top_logprobs, request_top_logprobs, request_decode_flag
        if not request_logprobs:
            return None
        return _or_fastdeploys(
            guard,
            lambda: chat_logprobs(top, columns, texts_of(handler) if wanted else None, entry, models),
            functools.partial(stock, handler, top, request_logprobs, columns, wanted),
        )

    return _create_chat_logprobs


def _completion_logprobs(stock: Any, protocol: Any, names: dict[str, Any]) -> Callable[..., Any]:
    cls, texts_of = protocol.CompletionLogprobs, _TextsOf(completion_spelling)
    guard = Guard("api chunks", api_log)

    @functools.wraps(stock)
    def _create_completion_logprobs(
        handler: Any, output_top_logprobs: Any, request_logprobs: Any = None, prompt_text_offset: Any = None
    ) -> Any:
        own = functools.partial(stock, handler, output_top_logprobs, request_logprobs, prompt_text_offset)
        return _or_fastdeploys(
            guard,
            lambda: completion_logprobs(output_top_logprobs, request_logprobs, texts_of(handler), cls, own),
            own,
        )

    return _create_completion_logprobs


def _prompt_logprobs(stock: Any, protocol: Any, names: dict[str, Any]) -> Callable[..., Any]:
    texts_of, guard = _TextsOf(prompt_spelling), Guard("api chunks", api_log)

    @functools.wraps(stock)
    def _build_prompt_logprobs(
        handler: Any,
        prompt_logprobs_tensors: Any,
        num_prompt_logprobs: Any,
        include_logprobs_decode_token: Any,
    ) -> Any:
        tensors, columns, wanted = prompt_logprobs_tensors, num_prompt_logprobs, include_logprobs_decode_token
        own = functools.partial(stock, handler, tensors, columns, wanted)
        if type(tensors) in (list, tuple) and type([*tensors, None][0]) is list:
            return own()  # another way of transport has unpacked them
        return _or_fastdeploys(
            guard,
            lambda: prompt_logprobs(tensors, columns, texts_of(handler) if wanted else None, own),
            own,
        )

    return _build_prompt_logprobs


_METHODS = {
    ("OpenAIServingChat", "_create_chat_logprobs"): (_chat_logprobs, "_build_logprobs_response"),
    ("OpenAIServingCompletion", "_create_completion_logprobs"): (
        _completion_logprobs,
        "_build_logprobs_response",
    ),
    ("OpenAIServingChat", _BUILD_PROMPT): (_prompt_logprobs, "_make_logprob_dict"),
    ("OpenAIServingCompletion", _BUILD_PROMPT): (_prompt_logprobs, "_make_logprob_dict"),
}
"""By class and method of FastDeploy's: what makes ours, and the other method that ours does inline."""

"""This module replaces the models and logprob builders that the serving modules look up by name.

FastDeploy's generators stay as they are.  They call the classes of an answer's parts, and the methods that
turn a result's log-probabilities into such parts.  Those names are ours in the generators' modules.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ... import called, gate, replacements
from ...fallback import Guard
from ...logs import api_log
from ...notes import NotPlain, note
from ...seams import SEAMS
from ._chunks import (
    Unknown,
    chat_logprobs,
    completion_logprobs,
    give_arrays,
)
from .model_fields import check_plain, float_style, models_of
from .token_spelling import CHAT_TEXTS, COMPLETION_TEXTS

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
        if reasons:
            blocks.left[name] = " and ".join(reasons)
        else:
            blocks.methods[owner, name] = make(stock, protocol, blocks.names)
    if not blocks.names and not blocks.methods:
        raise NotPlain(f"{module.__name__} names none of the parts known here")
    blocks.arrays = _accepts_arrays(module)
    return blocks


_MAKES_BASE64 = {"routing_data", "base64", "b64encode", "tobytes", "decode", "ndarray"}
_ENCODES = {
    CHAT: ("OpenAIServingChat", "chat_completion_full_generator"),
    COMPLETION: ("OpenAIServingCompletion", "request_output_to_completion_response"),
}
"""By module: the class and the method that makes base64 of routed experts."""


def _accepts_arrays(module: Any) -> bool:
    """Whether a module's code accepts that routed experts are NumPy's array."""
    owner, name = _ENCODES[module.__name__]
    encodes = inspect.unwrap(vars(vars(module).get(owner, object)).get(name, object))
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
    entry, models, texts_of = protocol.LogProbEntry, names["LogProbs"], CHAT_TEXTS
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
    cls, texts_of = protocol.CompletionLogprobs, COMPLETION_TEXTS
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


_METHODS = {
    ("OpenAIServingChat", "_create_chat_logprobs"): (_chat_logprobs, "_build_logprobs_response"),
    ("OpenAIServingCompletion", "_create_completion_logprobs"): (
        _completion_logprobs,
        "_build_logprobs_response",
    ),
}
"""By class and method of FastDeploy's: what makes ours, and the other method that ours does inline."""

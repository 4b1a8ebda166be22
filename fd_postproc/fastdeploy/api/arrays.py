"""This module has values of messages come as NumPy's arrays where FastDeploy's code takes them."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

from .chunks._chunks import give_arrays

PROTOCOL = "fastdeploy.entrypoints.openai.protocol"
CHAT = "fastdeploy.entrypoints.openai.serving_chat"
COMPLETION = "fastdeploy.entrypoints.openai.serving_completion"

_MAKES_BASE64 = {"routing_data", "base64", "b64encode", "tobytes", "decode", "ndarray"}
_ENCODES = {
    CHAT: ("OpenAIServingChat", "chat_completion_full_generator"),
    COMPLETION: ("OpenAIServingCompletion", "request_output_to_completion_response"),
}
"""By module: the class and the method that makes base64 of routed experts."""


def accepts_arrays(module: Any) -> bool:
    """Whether a module's code accepts that routed experts are NumPy's array."""
    owner, name = _ENCODES[module.__name__]
    encodes = inspect.unwrap(vars(vars(module).get(owner, object)).get(name, object))
    words: set[str] = set()
    if isinstance(encodes, types.FunctionType):
        code = encodes.__code__
        words = {*code.co_names, *(one for one in code.co_consts if type(one) is str)}
    return words >= _MAKES_BASE64 or "routing_data" not in words


_in_use: dict[str, bool] = {}  # by module


@contextlib.contextmanager
def in_use(module: Any) -> Iterator[None]:
    """Have values of messages come as a module's code allows it."""
    _in_use[module.__name__] = accepts_arrays(module)
    try:
        _settle()
        yield
    finally:
        _in_use.pop(module.__name__, None)
        _settle()


def _settle() -> None:
    give_arrays(bool(_in_use) and all(_in_use.values()))

"""Answers that are not streamed: from the model to the body, without a dictionary for each candidate.

FastDeploy's application calls ``JSONResponse(content=answer.model_dump())``.  Of a stand-in the dump is a
dictionary that is filled when somebody looks into it; our response class writes the JSON instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from ._chunks import dump_answers_by
from .building_blocks import MODELS
from .plans import NotPlain

API_SERVER = "fastdeploy.entrypoints.openai.api_server"

ANSWERS = tuple(name for name in MODELS if name in ("ChatCompletionResponse", "CompletionResponse"))
_CANNED = {"é\u2028": [1.5e-07, 1e16, -0.0, None, True, 12], '"\\/': "\x00\x1f\x7f\n😀", "": {}}


class Dump(dict):  # type: ignore[type-arg]
    """What ``model_dump()`` of an answer gives, made when it is first looked at.

    Parameters
    ----------
    answer : Model
        The stand-in.
    """

    def __init__(self, answer: Any) -> None:
        super().__init__({"": None})  # json takes an empty one for one without entries
        self.answer = answer

    def fill(self) -> Dump:
        """Make it; from then on it is a dictionary like any other."""
        answer, self.answer = self.answer, None
        if answer is not None:
            super().clear()
            super().update(answer.plain_dump())
        return self


def _filled(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def call(self, *arguments, **named):  # type: ignore[no-untyped-def]
        return method(self.fill(), *arguments, **named)

    call.__name__ = name
    return call


for _name in (
    *("__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__len__", "__eq__", "__ne__"),
    *("__repr__", "__or__", "__ror__", "__ior__", "__reversed__", "clear", "copy", "get", "items", "keys"),
    *("pop", "popitem", "setdefault", "update", "values"),
):
    setattr(Dump, _name, _filled(_name))
setattr(Dump, "__reduce_ex__", lambda self, protocol: (dict, (dict(self.fill()),)))  # noqa: B010


def install(module: Any) -> Callable[[], None]:
    """Give the application our response class; a function that undoes it.

    Parameters
    ----------
    module : module
        ``fastdeploy.entrypoints.openai.api_server``.

    Raises
    ------
    NotPlain
        If its own response class writes JSON in another way than it is known to.
    """
    stock = module.JSONResponse
    expected = json.dumps(_CANNED, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if stock(content=_CANNED).body != expected:
        raise NotPlain("its response class writes JSON in another way")

    class Response(stock):  # type: ignore[misc,valid-type]
        """FastDeploy's response class, for an answer that can write itself."""

        def render(self, content: Any) -> bytes:
            if type(content) is Dump and content.answer is not None:
                text: str | None = content.answer.response_json()
                if text is not None:
                    return text.encode()
                content.fill()
            body: bytes = super().render(content)
            return body

    space = vars(module)

    def dump(answer: Any) -> Any:
        # Only the application's own call, which hands it to the response class and to nobody else.
        if sys._getframe(1).f_globals is space and space.get("JSONResponse") is Response:
            return Dump(answer)
        return answer.plain_dump()

    Response.__name__, Response.__qualname__ = stock.__name__, stock.__qualname__
    module.JSONResponse = Response
    dump_answers_by(ANSWERS, dump)

    def restore() -> None:
        module.JSONResponse = stock
        dump_answers_by((), None)

    return restore

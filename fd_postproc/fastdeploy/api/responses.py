"""Responses that are not streamed: from the model to the body without nested dictionaries.

FastDeploy's application calls ``JSONResponse(content=answer.model_dump())``.  Of a stand-in the dump is a
dictionary that is filled at the first access; our response class writes the JSON instead.  Of an answer with
long lists or arrays it is written in pieces, and the event loop has a turn after each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from .. import seams
from .chunks._chunks import Unknown, dump_answers_by
from .chunks.building_blocks import MODELS
from .chunks.model_fields import NotPlain

ANSWERS = tuple(name for name in MODELS if name in ("ChatCompletionResponse", "CompletionResponse"))
_CANNED = {"é\u2028": [1.5e-07, 1e16, -0.0, None, True, 12], '"\\/': "\x00\x1f\x7f\n😀", "": {}}


class Dump(dict):  # type: ignore[type-arg]
    """The result of an answer's ``model_dump()``, filled at the first access.

    Parameters
    ----------
    answer : Model
        The stand-in.
    """

    def __init__(self, answer: Any) -> None:
        super().__init__({"": None})  # json takes an empty one for one without entries
        self.answer = answer

    def fill(self) -> Dump:
        """Fill the dictionary, which is an ordinary one from then on."""
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
    """Install our response class in the application; return a function that restores.

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

        _pieces: Any = None

        def __init__(self, content: Any = None, *arguments: Any, **named: Any) -> None:
            self._content = content
            if type(content) is Dump and content.answer is not None:
                self._pieces = content.answer.response_pieces()
            self._whole = getattr(self._pieces, "whole", None)
            if self._whole is not None:
                self._pieces = None
            super().__init__(content, *arguments, **named)

        @property
        def body(self) -> Any:
            """The whole body, which is written at once for a caller that asks for it."""
            if self._pieces is not None and hasattr(self, "raw_headers"):
                self._pieces = None
                self._body = self.render(self._content)
            return self._body

        @body.setter
        def body(self, body: Any) -> None:
            self._body = body

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if self._pieces is None or scope["type"] != "http":
                await super().__call__(scope, receive, send)
                return
            try:
                for _ in self._pieces.settle():
                    await asyncio.sleep(0)
            except (Unknown, UnicodeEncodeError):  # what only the model can write, or refuses
                self._with_length(len(self.body))
                await super().__call__(scope, receive, send)
                return
            pieces, self._pieces = self._pieces, None
            self._with_length(pieces.size)
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b""})
            if self.background is not None:
                await self.background()

        def _with_length(self, length: int) -> None:
            name = b"content-length"
            self.raw_headers: list[tuple[bytes, bytes]] = [
                (key, str(length).encode() if key == name else value) for key, value in self.raw_headers
            ]

        def render(self, content: Any) -> bytes:
            if self._pieces is not None:
                return b""
            if self._whole is not None:
                written: bytes = self._whole
                return written
            if type(content) is Dump and content.answer is not None:
                text: str | None = content.answer.response_json()
                if text is not None:
                    return text.encode()
                content.fill()
            body: bytes = super().render(content)
            return body

    space = vars(module)

    def dump(answer: Any) -> Any:
        # Only for the application's own call, which hands it to the response class alone.
        if sys._getframe(1).f_globals is space and space.get("JSONResponse") is Response:
            return Dump(answer)
        return answer.plain_dump()

    Response.__name__, Response.__qualname__ = stock.__name__, stock.__qualname__
    replacement = seams.Replacement("api responses", (module, "JSONResponse", Response)).install()
    dump_answers_by(ANSWERS, dump)

    def restore() -> None:
        replacement.restore()
        dump_answers_by((), None)

    return restore

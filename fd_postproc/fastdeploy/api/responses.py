"""This module writes responses that are not streamed: from the model to the body without dictionaries.

FastDeploy's application calls ``JSONResponse(content=answer.model_dump())``.  Our dump is a dictionary that
is filled at the first access (`chunks.whole_answers`); our response class writes the JSON without it.  It
writes long lists and texts in pieces, and the event loop has a turn after each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from ..events.guard import Guard
from ..events.log import api_log
from ..gate import replacements
from ..gate.seams import NotPlain
from .chunks._chunks import Unknown, note_unwritten
from .chunks.whole_answers import Dump, dump_late

_LENGTH = b"content-length"
_CANNED = {"é\u2028": [1.5e-07, 1e16, -0.0, None, True, 12], '"\\/': "\x00\x1f\x7f\n😀", "": {}}


def install(module: Any) -> Callable[[], None]:
    """Install our response class in ``openai.api_server``; return a function that restores."""
    stock = module.JSONResponse
    expected = json.dumps(_CANNED, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if stock(content=_CANNED).body != expected:
        raise NotPlain("its response class writes JSON in another way")
    guard = Guard("api responses", api_log)

    class Response(stock):  # type: ignore[misc,valid-type]
        """FastDeploy's response class, for an answer that can write itself."""

        _pieces: Any = None

        def __init__(self, content: Any = None, *arguments: Any, **named: Any) -> None:
            self._content = content
            try:
                if guard.is_on and type(content) is Dump and content.answer is not None:
                    self._pieces = content.answer.response_pieces()
            except Exception as error:
                guard.failed(error)
            super().__init__(content, *arguments, **named)
            if self._pieces is not None and self._pieces.whole is not None:
                self._pieces = None
            if self._pieces is not None:  # its length is not known yet: better none than a wrong one
                self.raw_headers[:] = [one for one in self.raw_headers if one[0] != _LENGTH]

        @property
        def body(self) -> Any:
            """The whole body, which is written at once for a caller that asks for it."""
            if self._pieces is not None and hasattr(self, "raw_headers"):
                try:
                    self._body = b"".join(self._pieces)
                    self._pieces = None
                except Exception as reason:
                    self._write_by_model(reason)
                self._with_length(len(self._body))
            return self._body

        @body.setter
        def body(self, body: Any) -> None:
            self._body = body
            if self._pieces is not None and hasattr(self, "raw_headers"):  # another one in its place
                self._pieces = None
                self._with_length(len(body))

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if self._pieces is None or scope["type"] != "http":
                await super().__call__(scope, receive, send)
                return
            try:
                for _ in self._pieces.settle():
                    await asyncio.sleep(0)
            except Exception as reason:
                self._write_by_model(reason)
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
            """Set the header in the list that starlette's ``headers`` shares."""
            others = [one for one in self.raw_headers if one[0] != _LENGTH]
            self.raw_headers[:] = [(_LENGTH, str(length).encode()), *others]

        def _write_by_model(self, reason: Exception) -> None:
            """Write what only the model can write, or refuses; or after a failure of ours."""
            if isinstance(reason, (Unknown, UnicodeEncodeError)):
                note_unwritten(reason)
            else:
                guard.failed(reason)
            self._pieces = None
            self._body = self.render(self._content)

        def render(self, content: Any) -> bytes:
            if self._pieces is None:
                body: bytes = super().render(content.fill() if type(content) is Dump else content)
                return body
            return self._pieces.whole or b""

    Response.__name__, Response.__qualname__ = stock.__name__, stock.__qualname__
    replacement = replacements.Replacement("api responses", (module, "JSONResponse", Response)).install()
    dump_late(True)

    def restore() -> None:
        replacement.restore()
        dump_late(False)

    return restore

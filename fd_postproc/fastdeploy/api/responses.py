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

from .. import replacements
from .chunks._chunks import Unknown, note_unwritten
from .chunks.model_fields import NotPlain
from .chunks.whole_answers import Dump, dump_late

_CANNED = {"é\u2028": [1.5e-07, 1e16, -0.0, None, True, 12], '"\\/': "\x00\x1f\x7f\n😀", "": {}}


def install(module: Any) -> Callable[[], None]:
    """Install our response class in ``openai.api_server``; return a function that restores."""
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
            super().__init__(content, *arguments, **named)
            if self._pieces is not None and self._pieces.whole is not None:
                self._pieces = None

        @property
        def body(self) -> Any:
            """The whole body, which is written at once for a caller that asks for it."""
            if self._pieces is not None and hasattr(self, "raw_headers"):
                try:
                    self._body = b"".join(self._pieces)
                    self._pieces = None
                except (Unknown, UnicodeEncodeError) as reason:
                    self._write_by_model(reason)
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
            except (Unknown, UnicodeEncodeError) as reason:
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
            name = b"content-length"
            self.raw_headers: list[tuple[bytes, bytes]] = [
                (key, str(length).encode() if key == name else value) for key, value in self.raw_headers
            ]

        def _write_by_model(self, reason: Exception) -> None:
            """Write what only the model can write, or refuses."""
            note_unwritten(reason)
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

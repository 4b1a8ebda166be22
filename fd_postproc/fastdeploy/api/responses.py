"""Writes responses that are not streamed: what `answers` has withheld goes into their JSON.

FastDeploy's route calls ``JSONResponse(content=answer.model_dump())`` within its ``connection_manager()``.
Ours notes that a task is such a route's, and our response class asks what its answer lacks.  Long lists are
written in pieces, and the event loop has a turn after each.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from ..events.guard import Guard
from ..events.log import api_log
from ..gate import replacements
from ..gate.seams import NotPlain

PIECE = 1 << 16  # bytes after which a piece that is sent ends

_LENGTH = b"content-length"
_CANNED = {"é\u2028": [1.5e-07, 1e16, -0.0, None, True, 12], '"\\/': "\x00\x1f\x7f\n😀", "": {}}
_MARK = f"fd_postproc {secrets.token_hex(16)} "  # no client knows it
_MARKS = re.compile(f'"{_MARK}([0-9]+)"'.encode())


class Place:
    """Where the answer of a route's task waits for its response."""

    answer: Any = None  # an `answers.Answer`


answering: ContextVar[Place | None] = ContextVar("fd_postproc_answering", default=None)
"""In a task of FastDeploy's routes: the place of its answer; elsewhere None."""


def install(module: Any) -> Callable[[], None]:
    """Install our response class in ``openai.api_server``; return a function that restores."""
    stock, manager = module.JSONResponse, module.connection_manager
    expected = json.dumps(_CANNED, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if stock(content=_CANNED).body != expected:
        raise NotPlain("its response class writes JSON in another way")
    guard = Guard("api responses", api_log)

    @functools.wraps(manager)
    @contextlib.asynccontextmanager
    async def connection_manager(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async with manager(*arguments, **options) as entered:
            place = Place()
            answering.set(place if guard.is_on else None)
            try:
                yield entered
            finally:
                answering.set(None)
            if place.answer is not None:  # what is withheld is lost
                guard.failed(TypeError("FastDeploy's route has made no response of an answer"))

    class Response(stock):  # type: ignore[misc,valid-type]
        """FastDeploy's response class, for an answer of which something is withheld."""

        _frame: list[bytes] | None = None  # JSON, and between two of it the number of a part
        _parts: list[Iterable[bytes]]

        def __init__(self, content: Any = None, *arguments: Any, **named: Any) -> None:
            place = answering.get()
            self._parts = []
            if place is not None and place.answer is not None and type(content) is dict:
                answer, place.answer = place.answer, None
                self._parts = answer.marked(content, _MARK)
                guard.worked()
            super().__init__(content, *arguments, **named)
            if self._parts:
                self._frame = _MARKS.split(self._body)
                self.raw_headers[:] = [one for one in self.raw_headers if one[0] != _LENGTH]

        @property
        def body(self) -> Any:
            """The whole body, which is written at once for a caller that asks for it."""
            if self._frame is not None:
                self.body = b"".join(self._pieces(self._frame))
            return self._body

        @body.setter
        def body(self, body: Any) -> None:
            self._body = body
            if self._frame is not None:
                self._frame = None
                self._set_length(len(body))

        def _pieces(self, frame: list[bytes]) -> Iterator[bytes]:
            yield frame[0]
            for number, behind in zip(frame[1::2], frame[2::2], strict=True):
                yield from self._parts[int(number)]
                yield behind

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if self._frame is None or scope["type"] != "http":
                await super().__call__(scope, receive, send)
                return
            pieces = [b""]
            for piece in self._pieces(self._frame):
                if len(pieces[-1]) + len(piece) <= PIECE:
                    pieces[-1] += piece
                else:
                    pieces.append(piece)
                await asyncio.sleep(0)
            self._set_length(sum(map(len, pieces)))
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
            pieces.reverse()
            while pieces:  # what is sent is not needed any more
                await send({"type": "http.response.body", "body": pieces.pop(), "more_body": True})
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b""})
            if self.background is not None:
                await self.background()

        def _set_length(self, length: int) -> None:
            """Set the header in the list that starlette's ``headers`` shares."""
            self.raw_headers.insert(0, (_LENGTH, str(length).encode()))

    Response.__name__, Response.__qualname__ = stock.__name__, stock.__qualname__
    return replacements.install(
        "api responses",
        (module, "JSONResponse", Response),
        (module, "connection_manager", connection_manager),
    )

"""The accumulated text of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class AnswerText:
    """Accumulated text of an answer, as UTF-8; appending a delta has a constant cost.

    It stands in FastDeploy's ``decode_status`` for the string, and reads as it.  If there are parsers, it has
    their marks, and the excerpt that they are given instead; if there are none, it may have `way`: a
    tokenizer and what decodes its tokens.
    """

    __slots__ = ("_bytes", "excerpt", "marks", "way")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str, marks: Any = None, excerpt: Any = None, way: Any = None) -> None:
        self._bytes, self.marks, self.excerpt = bytearray(), marks, excerpt
        self.way: tuple[Any, Any] | None = way
        self.append(text)

    def append(self, text: str) -> None:
        """Append a text; lone surrogates are kept."""
        self._bytes += text.encode("utf-8", "surrogatepass")

    def whole(self) -> str:
        """The text."""
        return self._bytes.decode("utf-8", "surrogatepass")

    def __str__(self) -> str:
        return self.whole()

    def __repr__(self) -> str:
        return repr(self.whole())

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())  # for "".join()

    def __eq__(self, other: object) -> bool:
        return self.whole() == (other.whole() if isinstance(other, AnswerText) else other)

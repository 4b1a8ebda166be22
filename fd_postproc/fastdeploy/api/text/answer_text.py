"""This module holds the accumulated text of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..chunks._chunks import GrowingText


class AnswerText:
    """Accumulated text of an answer; appending a delta has a constant cost.

    It stands in FastDeploy's ``decode_status`` for the string, and reads as it.  If there are parsers, it has
    their marks, and the excerpt that they are given instead; if there are none, it may have `way`: a
    tokenizer and what decodes its tokens.
    """

    __slots__ = ("append", "excerpt", "marks", "way", "whole")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str, marks: Any = None, excerpt: Any = None, way: Any = None) -> None:
        grown = GrowingText()
        self.append, self.whole, self.marks, self.excerpt = grown.append, grown.whole, marks, excerpt
        self.way: tuple[Any, Any] | None = way
        self.append(text)

    def __str__(self) -> str:
        return self.whole()

    def __repr__(self) -> str:
        return repr(self.whole())

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())  # for "".join()

    def __eq__(self, other: object) -> bool:
        return self.whole() == (other.whole() if isinstance(other, AnswerText) else other)

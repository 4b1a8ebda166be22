"""Excerpts: short texts with the same marks as an answer's earlier text.

The excerpt of ``<think>aaa bbb</think>ccc`` is ``<think>x</think>x``.  The end stays as it is, since it may
be the beginning of a mark.  So does the last tool call, which a tool parser reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SHAPE = re.compile(r"<[^<>]+>")
"""Pattern of marks; two marks of this shape cannot overlap."""

_LEAST = 512  # characters that are not worth shortening
_SOMETHING = "x"


class Marks(NamedTuple):
    """The marks that the parsers of a data processor look for."""

    texts: tuple[str, ...]
    ids: frozenset[int]
    call: tuple[str, str] | None = None  # those around a tool call; None without a tool parser


class Excerpt:
    """Excerpt of a growing answer.

    Its ids are the answer's first, and each mark's once, in the order in which they came.
    """

    __slots__ = ("_any_mark", "_next", "_open", "ids", "marks", "text")

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.text, self.ids = "", []  # type: str, list[int]
        self._any_mark = re.compile("|".join(map(re.escape, marks.texts)))
        self._open = max(map(len, marks.texts)) - 1  # characters of a mark that is not complete
        self._next = _LEAST

    def add_ids(self, ids: Iterable[int]) -> None:
        """Add the ids of a delta."""
        for token in ids:
            if (token in self.marks.ids and token not in self.ids) or not self.ids:
                self.ids.append(token)

    def add_text(self, delta: str) -> None:
        """Add the text of a delta."""
        self.text += delta
        if len(self.text) > self._next:
            self.text = self._shortened()
            self._next = max(_LEAST, 2 * len(self.text))

    def _shortened(self) -> str:
        text = self.text
        first, last = self._last_call()
        parts: list[str] = []
        at = 0
        for match in self._any_mark.finditer(text):
            parts += self._between(at, match.start(), first, last)
            parts.append(match.group())
            at = match.end()
        end = max(at, len(text) - self._open)
        return "".join([*parts, *self._between(at, end, first, last), text[end:]])

    def _last_call(self) -> tuple[int, int]:
        """Where the last tool call begins and ends."""
        if self.marks.call is None:
            return 0, 0
        begin, end = self.marks.call
        first = self.text.rfind(begin)
        if first < 0:
            return 0, 0
        last = self.text.find(end, first)
        return first, len(self.text) if last < 0 else last

    def _between(self, begin: int, end: int, first: int, last: int) -> Iterator[str]:
        """The replacement for the text between two marks."""
        part = self.text[begin:end]
        if first <= begin < last or len(part) < 2:
            yield part
        else:
            yield _SOMETHING if part.strip("\n") else "\n"

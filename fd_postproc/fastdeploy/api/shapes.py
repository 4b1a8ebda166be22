"""This module keeps the templates of chunks: the next stream tries the one that an earlier stream has cut."""

from __future__ import annotations

import json
from typing import Any

from .chunks._chunks import FloatStyle, Template

RESULT = '"arrival_time":'
"""What the chunk of a result has, and no other one: no chunk with a choice's role, or with its prompt."""


class Shapes:
    """The last template of each shape of chunks."""

    HEAD = ("id", "created", "model")
    """Keys whose values are a stream's."""

    def __init__(self, style: FloatStyle) -> None:
        self._style = style
        self._known: dict[Any, Template] = {}

    def tried(self, shape: Any, head: list[Any]) -> Template | None:
        """The last template of a shape, with a stream's own values; None if there is none."""
        known = self._known.get(shape)
        return None if known is None else known.given(head)

    def cut(self, shape: Any, chunk: str, head: list[Any], keys: list[str], values: list[Any]) -> Template:
        """The template of a stream, out of one of its chunks."""
        known = self._known[shape] = Template(chunk, [*self.HEAD, *keys], head + values, self._style)
        return known.given(head)


def created_in(chunk: str) -> int:
    """When a chunk's answer was begun, as it says."""
    begin = chunk.index('"created":') + 10
    return int(chunk[begin : chunk.index(",", begin)])


def usage_in(chunk: str) -> tuple[int, int, int]:
    """Tokens of the prompt, of the answer and of its reasoning, in a chunk."""
    usage = json.loads(chunk.removeprefix("data:"))["usage"]
    reasoning: int = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"], reasoning

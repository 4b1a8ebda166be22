"""Keeps the templates of chunks: the next stream tries the one that an earlier stream has cut."""

from __future__ import annotations

import json
from typing import Any

from .chunks._chunks import FloatStyle, Template

RESULT = '"arrival_time":'
"""What the chunk of a result has, and no other one: no chunk with a choice's role, or with its prompt."""


class Shapes:
    """The last template of each shape of chunks."""

    def __init__(self, style: FloatStyle) -> None:
        self._style = style
        self._known: dict[Any, Template] = {}

    def tried(self, shape: Any, chunk: str) -> Template | None:
        """The last template of a shape, with the head of a stream's own chunk; None if there is none."""
        known = self._known.get(shape)
        return None if known is None else known.headed(chunk)

    def cut(self, shape: Any, chunk: str, keys: list[str], values: list[Any]) -> Template:
        """The template of a stream, out of one of its chunks."""
        cut = self._known[shape] = Template(chunk, keys, values, self._style)
        return cut


def usage_in(chunk: str) -> tuple[int, int, int]:
    """Tokens of the prompt, of the answer and of its reasoning, in a chunk."""
    usage = json.loads(chunk.removeprefix("data:"))["usage"]
    reasoning: int = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"], reasoning

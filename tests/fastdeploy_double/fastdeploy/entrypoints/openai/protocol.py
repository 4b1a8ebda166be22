"""Types that results may carry; the token processor makes none of them."""

from dataclasses import dataclass
from typing import Any


@dataclass
class ToolCall:
    id: str | None = None
    type: str = "function"
    function: Any = None
    index: int | None = None


@dataclass
class DeltaMessage:
    role: str | None = None
    content: str | None = None


AnyResponseFormat = Any

"""Records of what FastDeploy's functions log."""

from __future__ import annotations

import re
from typing import Any


class Notes:
    """Logger, or logging function, that records its calls without seconds and tracebacks.

    Attributes
    ----------
    lines : list
        Names of methods (empty: the function itself), arguments and named arguments.
    """

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: self._note(name, arguments, named)

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self._note("", arguments, named)

    def isEnabledFor(self, level: int) -> bool:
        return False

    def _note(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        told = {key: _told(one) for key, one in named.items()}
        self.lines.append((name, [_told(one) for one in arguments], told))


def _told(one: Any) -> Any:
    if isinstance(one, str):
        return re.sub(r"\d+\.\d+(e-?\d+)?", "#", one.partition("\n")[0].partition(", Traceback")[0])
    return {**vars(one)} if hasattr(one, "__dict__") else one

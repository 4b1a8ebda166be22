"""FastDeploy's functions tried beside ours: in names of their own, with a note of what they tell."""

from __future__ import annotations

import re
import types
from typing import Any


def apart(function: Any, **names: Any) -> Any:
    """A function of FastDeploy's that finds other things under some of its module's names.

    Parameters
    ----------
    function : function
    **names
        What it finds.  All else is as in its module now.
    """
    made: Any = types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def names_of(code: types.CodeType) -> set[str]:
    """Attributes and globals that a function looks at, and those inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(names_of, inner))


class Notes:
    """A logger, or a function that logs, which notes what it is told, but for seconds and tracebacks.

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

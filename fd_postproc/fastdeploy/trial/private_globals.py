"""Copies of FastDeploy's functions with private globals, and records of what they log."""

from __future__ import annotations

import re
import types
from typing import Any


def copied(function: types.FunctionType, names: dict[str, Any], cells: Any = None) -> Any:
    """Copy a function with private globals.

    Parameters
    ----------
    function : function
    names : dict
        The globals of the copy.
    cells : tuple of cell, optional
        What it closes over.  Default: what the original does.
    """
    made = types.FunctionType(
        function.__code__,
        names,
        function.__name__,
        function.__defaults__,
        function.__closure__ if cells is None else cells,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__, made.__doc__ = function.__qualname__, function.__doc__
    made.__dict__.update(function.__dict__)
    return made


def with_globals(function: Any, **names: Any) -> Any:
    """Copy a function of FastDeploy's with replacements for some names of its module.

    Parameters
    ----------
    function : function
    **names
        What it finds.  All else is as in its module now.
    """
    return copied(function, {**function.__globals__, **names})


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

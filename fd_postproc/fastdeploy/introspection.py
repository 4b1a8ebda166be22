"""Reads the names in FastDeploy's code, and copies its functions with other globals."""

from __future__ import annotations

import sys
import types
from typing import Any

STORAGE = "FD_PD_TRANSFER_VIA_STORAGE"
"""Switch of some versions: prefill instances write the cache into a storage themselves."""


def is_library(module: str) -> bool:
    """Whether a module of this name belongs to the standard library."""
    return module.partition(".")[0] in sys.stdlib_module_names


def names_in(cls: type) -> set[str]:
    """All names in a class's methods, except for library code and overridden methods."""
    names: set[str] = set()
    known: set[str] = set()
    for one in cls.__mro__:
        if is_library(one.__module__):
            continue
        for name, value in vars(one).items():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            if name not in known and isinstance(function, types.FunctionType):
                names |= names_of(function.__code__) | _texts_of(function.__code__)
                if "__class__" in function.__code__.co_freevars:  # super(): the overridden one runs, too
                    continue
            known.add(name)
    return names


def names_of(code: types.CodeType) -> set[str]:
    """The attributes and globals that a function and its inner functions use."""
    return set(code.co_names).union(*map(names_of, _inner(code)))


def _texts_of(code: types.CodeType) -> set[str]:
    """Their texts, such as that of ``getattr(config, "name", default)``."""
    texts = {one for one in code.co_consts if isinstance(one, str)}
    return texts.union(*map(_texts_of, _inner(code)))


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [one for one in code.co_consts if isinstance(one, types.CodeType)]


def copied(function: types.FunctionType, names: dict[str, Any], cells: Any = None) -> Any:
    """Copy a function with globals of its own, and with the same cells unless others are given."""
    copy = types.FunctionType(
        function.__code__,
        names,
        function.__name__,
        function.__defaults__,
        function.__closure__ if cells is None else cells,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__doc__ = function.__qualname__, function.__doc__
    copy.__dict__.update(function.__dict__)
    return copy


def with_globals(function: Any, **names: Any) -> Any:
    """Copy a function of FastDeploy's with replacements for some names of its module.

    Raises
    ------
    TypeError
        If it is none: its module's names would be somebody else's.
    """
    if type(function) is not types.FunctionType:
        raise TypeError(f"{function!r} is no plain function")
    return copied(function, {**function.__globals__, **names})

"""Reads the names in FastDeploy's code; they tell versions apart, never the version number."""

from __future__ import annotations

import sys
import types

STORAGE = "FD_PD_TRANSFER_VIA_STORAGE"
"""Switch of some versions: prefill instances write the cache into a storage themselves."""


def is_library(module: str) -> bool:
    """Whether a module of this name belongs to the standard library."""
    return module.partition(".")[0] in sys.stdlib_module_names


def names_in(cls: type) -> set[str]:
    """All names in a class's methods, except for library code and overridden methods."""
    names: set[str] = set()
    seen: set[str] = set()
    for one in cls.__mro__:
        if is_library(one.__module__):
            continue
        for name, value in vars(one).items():
            function = getattr(value, "fget", getattr(value, "__func__", value))
            if name not in seen and isinstance(function, types.FunctionType):
                _add_names(function.__code__, names)
                if "__class__" in function.__code__.co_freevars:  # super(): the overridden one runs, too
                    continue
            seen.add(name)
    return names


def _add_names(code: types.CodeType, names: set[str]) -> None:
    names.update(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_names(constant, names)
        elif isinstance(constant, str):  # getattr(config, "name", default)
            names.add(constant)

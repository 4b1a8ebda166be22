"""Copies FastDeploy's functions with other globals."""

from __future__ import annotations

import types
from typing import Any

STORAGE = "FD_PD_TRANSFER_VIA_STORAGE"
"""Switch of some versions: prefill instances write the cache into a storage themselves."""


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

"""Reads what runs when a function of FastDeploy's is called: itself, a wrapper of another program's, or ours.

Whether an object is a function is asked of its exact type: proxies, as wrapt's, pass for what they wrap.  So
do their classes in wrapt without its C extension: their names are read past metaclasses and properties.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

_OURS = "fd_postproc."
_DATA_OF_C = (types.MemberDescriptorType, types.GetSetDescriptorType)
_OF_C = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
_MOST_LAYERS = 32
_raw_module, _raw_qualname = (vars(type)[name].__get__ for name in ("__module__", "__qualname__"))


def parts_of(value: Any) -> Iterator[Any]:
    """The callables of a class's or module's attribute: a property has up to three, data have none."""
    if type(value) is property:
        yield from (one for one in (value.fget, value.fset, value.fdel) if one is not None)
    elif callable(value) or (hasattr(type(value), "__get__") and type(value) not in _DATA_OF_C):
        yield value


def layers_of(value: Any, calls_outer: bool = False) -> list[Any]:
    """The objects that run when a callable is called, outermost first; ours are passed over.

    Parameters
    ----------
    value : callable
    calls_outer : bool
        Whether a wrapper around an object of ours still runs: then only what is below ours is
        given.
    """
    found: list[Any] = []
    while value is not None and len(found) < _MOST_LAYERS:
        if is_ours(value):
            if calls_outer:
                found.clear()
        elif type(value) not in (staticmethod, classmethod):
            found.append(value)
        value = _below(value)
    return found


def is_ours(value: Any) -> bool:
    """Whether an object is one of this package's, which stands for FastDeploy's."""
    if type(value) is types.FunctionType:
        return _text(value.__globals__.get("__name__")).startswith(_OURS)
    return _module_of(type(value)).startswith(_OURS)


def _text(value: Any) -> str:
    return value if type(value) is str else ""


def _asked(value: Any, name: str) -> Any:
    """An attribute of another program's object; None where it raises, too."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _module_of(kind: type) -> str:
    """The name of a class's module; empty where it is no text but, as there, a property."""
    try:
        return _text(_raw_module(kind))
    except AttributeError:
        return ""


def _below(value: Any) -> Any:
    """What a callable stands for or wraps, if it says so."""
    kind = type(value)
    if kind is types.FunctionType:
        return value.__dict__.get("__wrapped__")
    if kind in (staticmethod, classmethod, types.MethodType):
        return value.__func__
    if kind in _OF_C or issubclass(kind, type):
        return None
    if kind is functools.partial:
        return value.func
    return _asked(value, "original" if is_ours(value) else "__wrapped__")


def is_code_of(function: Any, owner: Any) -> bool:
    """Whether an object is a plain function with the globals of FastDeploy's module, or of its class's.

    `owner` is the class or module that has it.
    """
    if type(function) in _OF_C:
        return True
    if type(function) is not types.FunctionType:
        return False
    names = function.__globals__
    module = _text(names.get("__name__"))
    if getattr(sys.modules.get(module), "__dict__", None) is not names:
        return False
    if "__wrapped__" not in function.__dict__ and _text(function.__module__).startswith("fastdeploy."):
        return True
    return module.startswith("fastdeploy.") or module == getattr(owner, "__module__", None)


def bound_function(method: Any) -> Any:
    """The function of a plain bound method; None for anything else, as a wrapper that is set on an object."""
    return method.__func__ if type(method) is types.MethodType else None


def place_of(wrapper: Any) -> tuple[str, str, int]:
    """Name, file and line of a wrapper; an empty file where it has none."""
    kind = type(wrapper)
    call = _asked(kind, "__call__")
    module = _module_of(kind)
    if not module and type(call) is types.FunctionType:
        module = _text(call.__globals__.get("__name__"))
    name = f"{module}.{_raw_qualname(kind)}"
    if kind is types.FunctionType:
        code = wrapper.__code__
        return code.co_name, code.co_filename, code.co_firstlineno
    if kind in (functools.partial, types.MethodType):
        function = wrapper.func if kind is functools.partial else wrapper.__func__
        said, file, line = place_of(function)
        return f"a {kind.__name__} of {said}", file, line
    own = _asked(wrapper, "_self_wrapper")  # wrapt's: the function that it calls first
    for function in (own, call):
        if type(function) is types.FunctionType:
            said, file, line = place_of(function)
            return (f"{said} by {name}" if function is own else name), file, line
    return name, "", 0


def foreign_layer(op: Any) -> Any:
    """Python code of another program around an op of FastDeploy's; None if there is none.

    Ops are functions in C, functions that Paddle has generated for them, or FastDeploy's own around both.
    """
    for layer in layers_of(op):
        kind = type(layer)
        if kind is not types.FunctionType:
            is_python = type(_asked(kind, "__call__")) is types.FunctionType
            wraps = _asked(layer, "__wrapped__") is not None
            if is_python or wraps or kind in (functools.partial, types.MethodType):
                return layer
            continue
        is_said = "__wrapped__" not in layer.__dict__ and _is_of_ops(_text(layer.__module__))
        if not is_said and not _is_of_ops(_text(layer.__globals__.get("__name__"))):
            return layer
    return None


def _is_of_ops(module: str) -> bool:
    return module.partition(".")[0] in ("fastdeploy", "paddle", "fastdeploy_ops")

"""Private copy of FastDeploy's token-processor module, in which both classes are tried.

The engine's threads use the real module while the trial runs, so nothing in it may be patched.  Instead the
functions of its classes are copied with namespaces of their own, in which everything that acts on the
outside is replaced: metrics, loggers, tracing, sockets, threads, the clock, the environment switches.  What
is plain data stays: constants, enumerations, request and result classes.

::

    box = Sandbox(module)
    box.switches["ENABLE_V1_KVCACHE_SCHEDULER"] = 0
    box.module.TokenProcessor    # a copy; box.module.main_process_metrics, .time, ... are private
"""

from __future__ import annotations

import copy
import enum
import logging
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from fd_postproc.fastdeploy.introspection import copied
from fd_postproc.fastdeploy.quiet import SILENT, Quiet

from .private_metrics import PrivateMetrics

_FASTDEPLOY = "fastdeploy"
_DATA_MODULES = tuple(f"fastdeploy.{name}" for name in ("engine", "worker.output", "entrypoints", "config"))
_RESULTS = (
    *("Request", "RequestOutput", "CompletionOutput", "RequestMetrics", "SpeculateMetrics", "LogprobsLists"),
    *("PoolingOutput", "PoolingRequestOutput"),
)
_MOST_SLEEPS = 50


def is_library(module: str) -> bool:
    """Whether a module of this name belongs to the standard library."""
    return module.partition(".")[0] in sys.stdlib_module_names


class Sandbox:
    """The copy, and handles to the replaced objects in it.

    Parameters
    ----------
    module : module or namespace
        With the names of ``fastdeploy.output.token_processor``.

    Attributes
    ----------
    module : module
        The copy.
    clock : Clock
        Its ``time``.
    switches : dict
        Environment switches (``fastdeploy.envs``) that have another value inside.
    metrics : PrivateMetrics
        Its ``main_process_metrics``.
    traced : list
        Arguments of each call of ``trace_print``.
    """

    def __init__(self, module: Any) -> None:
        self.clock = Clock()
        self.switches: dict[str, Any] = {}
        self.metrics = PrivateMetrics(getattr(module, "main_process_metrics", None))
        self.traced: list[tuple[Any, ...]] = []
        self._original = module
        self._copies: dict[int, Any] = {}
        self._held: list[Any] = []  # keeps the originals alive, and with them their ids
        self._lineage = [cls for cls in module.TokenProcessor.__mro__ if not is_library(cls.__module__)]
        self._spaces: dict[int, types.ModuleType] = {}
        for space in (vars(module), *map(_globals_of, self._lineage)):
            if space is not None and id(space) not in self._spaces:
                name = str(space.get("__name__", "sandbox"))
                self._spaces[id(space)] = self._remember(space, types.ModuleType(name))
        self.module = self._spaces[id(vars(module))]
        self._remember(module, self.module)
        self._fill(module)

    def reset(self) -> None:
        """Reset to the initial state, except for references that a class holds."""
        self.clock.now, self.clock.sleeps = time.time(), 0
        self.switches.clear()
        self.metrics.reset()
        self.traced.clear()

    def _fill(self, module: Any) -> None:
        spaces = [(space, self._spaces[id(space)]) for space in list(self._held) if id(space) in self._spaces]
        for space, private in spaces:  # a class may refer to the module that it is in
            original = sys.modules.get(private.__name__)
            if original is not None and vars(original) is space:
                self._remember(original, private)
        for space, private in spaces:
            for name, value in list(space.items()):
                private.__dict__[name] = self._private(name, value)

    def _remember(self, original: Any, private: Any) -> Any:
        self._held.append(original)
        self._copies[id(original)] = private
        return private

    # ---- what stands for a name --------------------------------------------------------------------

    def _private(self, name: str, value: Any) -> Any:
        if id(value) in self._copies:
            return self._copies[id(value)]
        if name == "main_process_metrics":
            return self._remember(value, self.metrics)
        if name == "trace_print":
            return self._trace
        if name == "__builtins__" or name in _RESULTS:
            return value
        for kind, make in self._rules():
            if kind(value):
                return make(value)
        return value

    def _rules(self) -> list[tuple[Callable[[Any], bool], Callable[[Any], Any]]]:
        """Replacement rules; the first match decides, other values are unchanged."""
        return [
            (lambda value: isinstance(value, types.ModuleType), self._for_module),
            (_is_logger, lambda value: SILENT),
            (lambda value: isinstance(value, type), self._for_class),
            (lambda value: isinstance(value, types.FunctionType), self._for_function),
            (lambda value: isinstance(value, (dict, list, set)), copy.copy),
            (lambda value: isinstance(value, enum.Enum), lambda value: value),
            (_is_fastdeploys, lambda value: Quiet()),
        ]

    def _for_module(self, module: types.ModuleType) -> Any:
        name = module.__name__
        overlay: Any = module
        if module is time:
            overlay = self.clock
        elif name == "threading":
            overlay = Overlay(module, Thread=Quiet(), Timer=Quiet())
        elif name == "weakref":
            overlay = Overlay(module, finalize=Quiet())
        elif name == "paddle":
            overlay = Overlay(module, device=Quiet(), set_device=Quiet())
        elif name == "fastdeploy.envs":
            overlay = Overlay(module, self.switches)
        elif name.split(".")[0] == _FASTDEPLOY:
            overlay = QuietModule(module)
        return self._remember(module, overlay)

    def _for_class(self, cls: type) -> Any:
        if cls in self._lineage:
            return self._copied_class(cls)
        if _is_plain_data(cls):
            return cls
        if id(_globals_of(cls)) in self._spaces:
            return self._copied_class(cls)
        if cls.__module__.split(".")[0] in (_FASTDEPLOY, "concurrent"):
            return Quiet()
        return cls

    def _for_function(self, function: types.FunctionType) -> Any:
        if id(function.__globals__) in self._spaces:
            return self._copied_function(function, None)
        return Quiet() if function.__module__.split(".")[0] == _FASTDEPLOY else function

    def _trace(self, *arguments: Any) -> None:
        self.traced.append(arguments)

    # ---- copies ------------------------------------------------------------------------------------

    def _copied_class(self, cls: type) -> type:
        made: type
        if id(cls) in self._copies:
            made = self._copies[id(cls)]
            return made
        bases = tuple(self._copied_class(base) if base in self._lineage else base for base in cls.__bases__)
        own_class = types.CellType()  # what a bare super() finds
        body = {
            name: self._attribute(value, own_class)
            for name, value in vars(cls).items()
            if not isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType))
        }
        body.pop("__dict__", None)
        made = self._remember(cls, type(cls)(cls.__name__, bases, body))
        own_class.cell_contents = made
        return made

    def _attribute(self, value: Any, own_class: types.CellType) -> Any:
        if isinstance(value, types.FunctionType):
            return self._copied_function(value, own_class)
        if isinstance(value, (staticmethod, classmethod)):
            return type(value)(self._attribute(value.__func__, own_class))
        if isinstance(value, property):
            get, put, delete = (
                self._attribute(part, own_class) for part in (value.fget, value.fset, value.fdel)
            )
            return property(get, put, delete, value.__doc__)
        if value is self._original:
            return self.module
        return self._private("", value)

    def _copied_function(self, function: types.FunctionType, own_class: types.CellType | None) -> Any:
        space = self._spaces.get(id(function.__globals__))
        if space is None:
            return function
        cells = function.__closure__
        if cells is not None:
            named = zip(function.__code__.co_freevars, cells, strict=True)
            cells = tuple(self._cell(name, cell, own_class) for name, cell in named)
        return copied(function, space.__dict__, cells)

    def _cell(self, name: str, cell: types.CellType, own_class: types.CellType | None) -> types.CellType:
        if name == "__class__" and own_class is not None:
            return own_class
        try:
            held = cell.cell_contents
        except ValueError:
            return cell
        if isinstance(held, types.FunctionType):  # a decorated method
            return types.CellType(self._copied_function(held, own_class))
        return cell


# ---- replacements ------------------------------------------------------------------------------------


class Clock:
    """The module ``time`` with a clock that moves only in ``sleep``."""

    def __init__(self) -> None:
        self.now = time.time()
        self.sleeps = 0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move the clock forward, at once."""
        self.sleeps += 1
        if self.sleeps > _MOST_SLEEPS:
            raise RuntimeError(f"slept {_MOST_SLEEPS} times: waiting for something that never comes")
        self.now += seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class QuietModule(Quiet):
    """The same for a module, whose switches (``tracing_enabled``) are off."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        quiet = super().__getattr__(name)
        return False if isinstance(getattr(self._module, name, None), bool) else quiet


class Overlay:
    """Module with some replaced values; `values` is read at each access."""

    def __init__(self, module: Any, values: dict[str, Any] | None = None, **more: Any) -> None:
        self._module = module
        self._values = more if values is None else values

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__["_values"]
        return values[name] if name in values else getattr(self.__dict__["_module"], name)


# ---- what a value is ---------------------------------------------------------------------------------


def _is_plain_data(cls: type) -> bool:
    if issubclass(cls, (enum.Enum, tuple, BaseException)) or hasattr(cls, "__dataclass_fields__"):
        return True
    return cls.__module__.startswith(_DATA_MODULES)


def _is_logger(value: Any) -> bool:
    if isinstance(value, (type, types.ModuleType)):
        return False
    return isinstance(value, logging.Logger) or (
        _is_fastdeploys(value) and all(callable(getattr(value, name, None)) for name in ("debug", "info"))
    )


def _is_fastdeploys(value: Any) -> bool:
    module = getattr(type(value), "__module__", "")
    return isinstance(module, str) and module.partition(".")[0] == _FASTDEPLOY


def _globals_of(cls: type) -> dict[str, Any] | None:
    """The namespace of the module that defines a class's methods."""
    for value in vars(cls).values():
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType) and function.__module__ == cls.__module__:
            return function.__globals__
    return None

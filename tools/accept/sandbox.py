"""FastDeploy's token-processor module with everything that acts on the outside replaced.

What acts are names of the module, and of the modules of its class's bases: metrics, loggers, tracing,
sockets, threads, the clock, the environment switches.  What is plain data stays: constants, enumerations,
request and result classes.  FastDeploy's class and ours run in it by turns.  In a process that goes on,
`close` restores the modules; no engine may run there meanwhile.

::

    with Sandbox(module) as box:
        box.switches["ENABLE_V1_KVCACHE_SCHEDULER"] = 0
        module.TokenProcessor    # sees box.metrics, box.clock, ...
"""

from __future__ import annotations

import copy
import enum
import logging
import sys
import time
import types
from typing import Any

from .private_metrics import PrivateMetrics
from .quiet import SILENT, Quiet

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
    """The replacements, and handles to them.

    Parameters
    ----------
    module : module or namespace
        With the names of ``fastdeploy.output.token_processor``.

    Attributes
    ----------
    module : module
        As given.
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
        if isinstance(getattr(module, "main_process_metrics", None), PrivateMetrics):
            raise RuntimeError(f"another sandbox of {module.__name__} is open: close it first")
        self.module, self.clock = module, Clock()
        self.switches: dict[str, Any] = {}
        self.metrics = PrivateMetrics(getattr(module, "main_process_metrics", None))
        self.traced: list[tuple[Any, ...]] = []
        self._restored: list[tuple[Any, str, Any]] = []
        self._made: dict[int, Any] = {}  # one replacement for all names of a value
        self._lineage = [cls for cls in module.TokenProcessor.__mro__ if not is_library(cls.__module__)]
        spaces = {id(one): one for one in (vars(module), *map(_globals_of, self._lineage)) if one is not None}
        self._spaces = spaces.keys()
        for space in spaces.values():
            for name, value in list(space.items()):
                if (ours := self._private(name, value)) is not value:
                    self._restored.append((space, name, value))
                    space[name] = ours
        for cls in self._lineage:
            for name, value in list(vars(cls).items()):
                if not name.startswith("__") and (ours := self._private("", value)) is not value:
                    self._restored.append((cls, name, value))
                    setattr(cls, name, ours)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the modules."""
        while self._restored:
            place, name, value = self._restored.pop()
            if isinstance(place, dict):
                place[name] = value
            else:
                setattr(place, name, value)

    def reset(self) -> None:
        """Reset to the initial state, except for references that a class holds."""
        self.clock.now, self.clock.sleeps = time.time(), 0
        self.switches.clear()
        self.metrics.reset()
        self.traced.clear()

    def _trace(self, *arguments: Any) -> None:
        self.traced.append(arguments)

    # ---- what stands for a name --------------------------------------------------------------------

    def _private(self, name: str, value: Any) -> Any:
        if name == "main_process_metrics":
            return self.metrics
        if name == "trace_print":
            return self._trace
        if name.startswith("__") or name in _RESULTS or isinstance(value, enum.Enum):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = self._replacement(value)
        return self._made[id(value)]

    def _replacement(self, value: Any) -> Any:
        """What stands for a value; itself if it may stay."""
        if isinstance(value, types.ModuleType):
            return value if id(vars(value)) in self._spaces else self._for_module(value)
        if _is_logger(value):
            return SILENT
        if isinstance(value, type):
            acts = value.__module__.split(".")[0] in (_FASTDEPLOY, "concurrent")
            stays = value in self._lineage or _is_plain_data(value) or id(_globals_of(value)) in self._spaces
            return Quiet() if acts and not stays else value
        if isinstance(value, types.FunctionType):
            acts = value.__module__.split(".")[0] == _FASTDEPLOY
            return Quiet() if acts and id(value.__globals__) not in self._spaces else value
        if isinstance(value, (dict, list, set)):
            return copy.copy(value)
        return Quiet() if _is_fastdeploys(value) else value

    def _for_module(self, module: types.ModuleType) -> Any:
        name = module.__name__
        if module is time:
            return self.clock
        if name == "threading":
            return Overlay(module, Thread=Quiet(), Timer=Quiet())
        if name == "weakref":
            return Overlay(module, finalize=Quiet())
        if name == "paddle":
            return Overlay(module, device=Quiet(), set_device=Quiet())
        if name == "fastdeploy.envs":
            return Overlay(module, self.switches)
        return QuietModule(module) if name.split(".")[0] == _FASTDEPLOY else module


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

"""Calls a function when another module has been imported; it uses the standard library only.

FastDeploy calls plug-ins while it imports its own package, when its serving code cannot be imported yet.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def when_loaded(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call a function with a module: now if it is loaded, otherwise at the end of its import.

    Parameters
    ----------
    name : str
    action : callable
        It should raise nothing: an exception would reach the importer of the module.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        action(module)
        return
    _finder.actions.setdefault(name, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def is_serving() -> bool:
    """Whether this thread runs an event loop; the engine's process, which imports all the same, has none."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Finder(importlib.abc.MetaPathFinder):
    """Import finder that wraps the loaders of awaited modules, which then call the functions."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[ModuleType], None]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.actions:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def taken(self, name: str) -> list[Callable[[ModuleType], None]]:
        """Remove and return the functions of a module that is loaded.

        Not before: who looks for a module need not load it.
        """
        actions = self.actions.pop(name, [])
        if not self.actions and self in sys.meta_path:
            sys.meta_path.remove(self)
        return actions


class _Loader(importlib.abc.Loader):
    """Loader that runs the functions after the wrapped loader."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self.loader  # type: ignore[union-attr]
        self.loader.exec_module(module)
        for action in self.finder.taken(module.__name__):
            action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


_finder = _Finder()

"""The installation of the plug-in's objects in FastDeploy's places, until FastDeploy's own are restored."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .seams import SEAMS


class Replacement:
    """Objects of ours in FastDeploy's places, until `restore`.

    A change is the holder (a module, a class or an instance), the attribute's name, and ours.

    Raises
    ------
    ValueError
        If the seam's row in `SEAMS` does not list an attribute.
    """

    def __init__(self, seam: str, *changes: tuple[Any, str, Any]) -> None:
        self.seam = SEAMS[seam]
        for _, name, _ in changes:
            if name not in self.seam.attributes:
                raise ValueError(f"seams.py does not list {name} as replaced by {seam!r}")
        self._changes = changes
        self._stock: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> Replacement:
        """Install our objects; the replaced ones are stored for `restore`."""
        for holder, name, ours in self._changes:
            self._stock.append((holder, name, ours, self._before(holder, name)))
            setattr(holder, name, ours)
        _installed.add(self)
        return self

    def _before(self, holder: Any, name: str) -> Any:
        """FastDeploy's own object, also where an earlier replacement of the same seam stands."""
        present = vars(holder).get(name, _NONE)
        for other in _installed:
            for where, what, ours, stock in other._stock if other.seam is self.seam else ():
                if where is holder and what == name and ours is present:
                    return stock
        return present

    def restore(self) -> None:
        """Restore FastDeploy's own objects where ours still are."""
        while self._stock:
            holder, name, ours, stock = self._stock.pop()
            if vars(holder).get(name) is not ours:
                continue
            if stock is _NONE:
                delattr(holder, name)  # it was inherited
            else:
                setattr(holder, name, stock)


_NONE = object()
_installed: weakref.WeakSet[Replacement] = weakref.WeakSet()


def install(seam: str, *changes: tuple[Any, str, Any]) -> Callable[[], None]:
    """Install a `Replacement`; return the function that restores."""
    return Replacement(seam, *changes).install().restore


def everywhere(*wanted: tuple[str, Any, Any]) -> Iterator[tuple[Any, str, Any]]:
    """Changes for each module of FastDeploy's that has imported an object, by its own name.

    Each of `wanted` is the name, FastDeploy's object, and ours.
    """
    for module in [one for at, one in list(sys.modules.items()) if at.startswith("fastdeploy.")]:
        space = getattr(module, "__dict__", {})
        for name, original, ours in wanted:
            if space.get(name) is original:
                yield module, name, ours


def classes_that_define(module: Any, method: str) -> list[Any]:
    """The classes of a module that define a method, whatever their names are."""
    return [
        one
        for one in vars(module).values()
        if isinstance(one, type) and method in vars(one) and one.__module__ == module.__name__
    ]


def with_globals(function: Any, **names: Any) -> Any:
    """Copy a function of FastDeploy's with replacements for some names of its module.

    Raises
    ------
    TypeError
        If it is none: its module's names would be another program's.
    """
    if type(function) is not types.FunctionType:
        raise TypeError(f"{function!r} is no plain function")
    space, cells = {**function.__globals__, **names}, function.__closure__
    copy = types.FunctionType(function.__code__, space, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__doc__ = function.__qualname__, function.__doc__
    copy.__dict__.update(function.__dict__)
    return copy

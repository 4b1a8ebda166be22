"""This module remembers what is behind functions of ours, without an attribute that a wrapper would copy."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Behind(Generic[T]):
    """What is behind each function of ours of one kind, for as long as the function lives."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, T] = weakref.WeakKeyDictionary()

    def keep(self, function: Any, thing: T) -> None:
        """Remember what is behind a function."""
        self._known[function] = thing

    def of(self, function: Any) -> T | None:
        """What is behind a function; None if the function is not ours."""
        try:
            return self._known.get(function)
        except TypeError:  # nothing that can be referred to weakly
            return None

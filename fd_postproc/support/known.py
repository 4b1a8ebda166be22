"""Keeps what is known of objects for as long as they live, without an attribute that a wrapper would copy."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Known(Generic[T]):
    """What is known of each object of one kind: two that are equal are two."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Callable[[], Any], T]] = {}  # by identity, until the object is gone

    def keep(self, one: Any, what: T) -> T:
        """Remember what is known of an object; nothing of one that cannot be referred to weakly."""
        name = id(one)
        with contextlib.suppress(TypeError):
            self._held[name] = weakref.ref(one, lambda _: self._held.pop(name, None)), what
        return what

    def of(self, one: Any) -> T | None:
        """What is known of an object; None: nothing is."""
        held = self._held.get(id(one))
        return None if held is None else held[1]

"""Objects that take every call, and do nothing."""

from __future__ import annotations

import logging
from typing import Any


class Quiet:
    """Object with every attribute; each call does nothing and returns None."""

    def __call__(self, *arguments: Any, **named: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Silent(Quiet):
    """A logger without output."""

    level = logging.CRITICAL

    def isEnabledFor(self, level: int) -> bool:
        return False

    def getEffectiveLevel(self) -> int:
        return logging.CRITICAL


SILENT = Silent()

"""Judges what ours stands for before each answer: it may be loaded or wrapped after ours is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..events.log import api_log
from ..gate.seams import NotPlain


class Judged:
    """Whether functions that ours stands for are known.

    Parameters
    ----------
    module : module
        FastDeploy's serving module.
    why_not : callable
        From an object and the names of functions to why these are not known; None: they are.
    """

    def __init__(self, module: Any, why_not: Callable[[Any, tuple[str, ...]], str | None]) -> None:
        self._module, self._why_not = module, why_not
        self._known: dict[tuple[str, ...], tuple[list[Any], str | None]] = {}

    def check(self, one: Any, names: tuple[str, ...]) -> None:
        """Raise NotPlain if functions of these names, the object's or the module's, have to be called."""
        holders = type(one), self._module, getattr(self._module, "ChatResponseProcessor", None)
        now = [holders[0], *(getattr(holder, name, None) for holder in holders for name in names)]
        known = self._known.get(names)
        if known is None or known[0] != now:
            known = self._known[names] = now, self._why_not(one, names)
        reason = known[1]
        if reason is None and not vars(one).keys().isdisjoint(names):
            reason = f"a method was set on an object of {holders[0].__name__}"
        if reason is not None:
            raise NotPlain(reason)


_left: set[tuple[str, str]] = set()  # seams, and why


def leave(seam: str, reason: object) -> None:
    """Log once why a seam is left to FastDeploy."""
    if (seam, str(reason)) not in _left:
        _left.add((seam, str(reason)))
        api_log().info(f"fd_postproc: API side leaves {seam} to FastDeploy: {reason}")

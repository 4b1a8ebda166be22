"""The result of a check, and the scope of the checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._core import CHANNELS
from ..layout import GPU, Channel, Layout
from ..needed_limits import Load

SEVERITIES = ("ok", "info", "warning", "error")
"""Severities in ascending order."""


@dataclass(frozen=True)
class Finding:
    """One finding of a check.

    Attributes
    ----------
    severity : str
        One of `SEVERITIES`.
    group : str
        ``"limits"``, ``"queues"``, ``"keys"``, ``"environment"``, ``"fastdeploy"`` or ``"cuda"``.
    code : str
        Name of the kind of finding, for programs; it stays the same when texts change.
    subject, seen : str
        What it is about and what was seen, for a person.
    remedy : tuple of str
        What to do, one step a line.
    msqid : int or None
        The queue it is about.
    data : dict
        The numbers in `seen`, for programs.
    """

    severity: str
    group: str
    code: str
    subject: str
    seen: str
    remedy: tuple[str, ...] = ()
    msqid: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


def worst(findings: list[Finding]) -> str:
    """The highest severity among findings, ``"ok"`` if there are none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")


@dataclass(frozen=True)
class Scope:
    """Scope of the checks.

    Attributes
    ----------
    channels : tuple of str
        All, or the one that the service is known to use.
    ids, keys, msqids : frozenset of int
        Queues that the user named.  None named: the configured id, and every queue whose key looks like
        FastDeploy's.
    paths : tuple of str
        Further directories that a service was started in.
    layout : Layout
    load : Load
    stock : bool
        Whether FastDeploy's own ops send or receive, so that full messages must fit.
    trial : bool
        Whether to try our token processor beside the installed FastDeploy's, whose import takes seconds.
    """

    channels: tuple[Channel, ...] = CHANNELS
    ids: frozenset[int] = frozenset()
    keys: frozenset[int] = frozenset()
    msqids: frozenset[int] = frozenset()
    paths: tuple[str, ...] = ()
    layout: Layout = GPU
    load: Load = field(default_factory=Load)
    stock: bool = False
    trial: bool = True

    @property
    def named(self) -> bool:
        """Whether the user named queues."""
        return bool(self.ids or self.keys or self.msqids)


def quantity(number: int, what: str) -> str:
    """``1 queue``, ``2 queues``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"

"""The result of a check, and the scope of the checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._core import CHANNELS
from ..core.layout import GPU, Channel, Layout
from ..ops.needed_limits import Load

SEVERITIES = ("ok", "info", "warning", "error")
"""Severities in ascending order."""


@dataclass(frozen=True)
class Finding:
    """One finding of a check."""

    severity: str  # one of `SEVERITIES`
    group: str  # "limits", "queues", "keys", "environment", "fastdeploy" or "cuda"
    code: str  # name of the kind of finding, for programs; it stays the same when texts change
    subject: str  # for a person, as `seen`
    seen: str
    remedy: tuple[str, ...] = ()  # what to do, one step a line
    msqid: int | None = None  # the queue it is about
    data: dict[str, Any] = field(default_factory=dict)  # the numbers in `seen`, for programs


def worst(findings: list[Finding]) -> str:
    """The highest severity among findings, ``"ok"`` if there are none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")


@dataclass(frozen=True)
class Scope:
    """Scope of the checks.

    Where the user has named no queues: the configured id, and every queue whose key looks like FastDeploy's.
    """

    channels: tuple[Channel, ...] = CHANNELS  # all, or the one that the service is known to use
    ids: frozenset[int] = frozenset()  # queues that the user named
    keys: frozenset[int] = frozenset()
    msqids: frozenset[int] = frozenset()
    paths: tuple[str, ...] = ()  # further directories that a service was started in
    layout: Layout = GPU
    load: Load = field(default_factory=Load)
    stock: bool = False  # whether FastDeploy's own ops send or receive, so that full messages must fit
    trial: bool = True  # whether to try the installed FastDeploy, whose import takes seconds

    @property
    def named(self) -> bool:
        """Whether the user named queues."""
        return bool(self.ids or self.keys or self.msqids)

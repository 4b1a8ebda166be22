"""Checks that the installed Paddle is one that FastDeploy 2.x runs with."""

from __future__ import annotations

import importlib.metadata

from .findings import Finding

_NAMES = ("paddlepaddle", "paddlepaddle-gpu")
_LEAST = 3  # FastDeploy 2.x: Paddle 3.2 or newer, whose GPU builds are not on PyPI
_INSTALL = (
    "pip install paddlepaddle-gpu==3.3.1 -i https://www.paddlepaddle.org.cn/packages/stable/cu126/"
    "  (for FastDeploy 2.5 and 2.6; 2.4: 3.3.0)"
)


def check_paddle() -> list[Finding]:
    """Return a finding for an old Paddle, and one for two Paddles in one environment."""
    installed: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        name = (one.metadata["Name"] or "").lower().replace("_", "-")
        if name in _NAMES:
            installed.setdefault(name, one.version)
    seen = ", ".join(f"{name} {version}" for name, version in sorted(installed.items()))
    data = {"versions": sorted(installed.items())}
    found = []
    if any(_major(version) < _LEAST for version in installed.values()):
        text = f"{seen} is too old: FastDeploy 2.x needs Paddle 3, whose GPU builds are on Paddle's own index"
        found.append(Finding("warning", "fastdeploy", "paddle-old", "Paddle", text, (_INSTALL,), data=data))
    if len(installed) > 1:
        text = f"{seen} are both installed, and share one folder: the later one has overwritten the other"
        remedy = (f"pip uninstall {' '.join(_NAMES)}", _INSTALL)
        found.append(Finding("warning", "fastdeploy", "paddle-twice", "Paddle", text, remedy, data=data))
    return found


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else _LEAST  # a build of one's own, "develop" for instance

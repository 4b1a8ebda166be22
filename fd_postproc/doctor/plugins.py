"""Checks which sides of the plug-in a FastDeploy started here would use.

Only the installation and the settings are examined; FastDeploy is not imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys

from ..environment import API, DISABLE, is_on
from ..fastdeploy.engine.entry import GROUP as ENGINE_GROUP
from ..fastdeploy.engine.entry import NAME
from .findings import Finding, quantity

API_GROUP = "fastdeploy.tool_parser_plugins"  # takes any number
WORKER_GROUP = "fastdeploy.model_register_plugins"  # takes any number; the engine's takes one at most

_GROUPS = (
    ENGINE_GROUP,
    WORKER_GROUP,
    *(
        f"fastdeploy.{one}_plugins"
        for one in ("input_processor", "model_runner", "reasoning_parser", "tool_parser")
    ),
)

_DISABLED = "FD_POSTPROC_DISABLE is set: FastDeploy's own code is used"


def check_plugins() -> list[Finding]:
    """Return one finding each for the engine, the worker and the API server."""
    allowed = os.environ.get("FD_PLUGINS")
    return [_engine(allowed), _worker(allowed), _api(allowed)]


def _points(group: str) -> list[importlib.metadata.EntryPoint]:
    return sorted(importlib.metadata.entry_points(group=group), key=lambda point: point.name)


def _is_ours(point: importlib.metadata.EntryPoint) -> bool:
    return point.value.partition(".")[0] == "fd_postproc"


def _installed_names() -> set[str]:
    """Names of all of FastDeploy's plug-ins in all groups: one list allows them all."""
    return {point.name for group in _GROUPS for point in importlib.metadata.entry_points(group=group)}


def _matches(allowed: str | None) -> str:
    """The matches of each name in ``FD_PLUGINS``, which FastDeploy splits at commas only."""
    known = _installed_names()
    parts = []
    for name in (allowed or "").split(","):
        if name in known:
            parts.append(f"{name!r} is installed")
        elif _is_nearly_ours(name):
            parts.append(f"{name!r} is not the name of a plug-in, {NAME!r} is (no space, no hyphen)")
        else:
            parts.append(f"{name!r} is not the name of an installed plug-in")
    return "FastDeploy splits it at commas: " + ", ".join(parts)


def _is_nearly_ours(name: str) -> bool:
    return name != NAME and name.strip().lower().replace("-", "_") == NAME


def _better(allowed: str | None) -> str:
    """The corrected ``FD_PLUGINS``: with our name, without empty and misspelt ones."""
    names = (allowed or "").split(",")
    return ",".join(
        [name for name in names if name.strip() and name != NAME and not _is_nearly_ours(name)] + [NAME]
    )


def _engine(allowed: str | None) -> Finding:
    """Check the engine's group, which takes one plug-in; else the loader falls back silently."""
    names = None if allowed is None else allowed.split(",")
    points = _points(ENGINE_GROUP)
    chosen = [point for point in points if names is None or point.name in names]
    ours = [point for point in points if _is_ours(point)]
    active = len(chosen) == 1 and chosen[0] in ours and not is_on(DISABLE)
    data = {
        "group": ENGINE_GROUP,
        "plugins": [{"name": point.name, "value": point.value} for point in points],
        "ours": bool(ours),
        "active": active,
        "FD_PLUGINS": allowed,
    }
    listed = ", ".join(f"{point.name} ({point.value})" for point in points)
    setting = "unset" if allowed is None else repr(allowed)

    def finding(severity: str, code: str, seen: str, *remedy: str) -> Finding:
        return Finding(severity, "fastdeploy", code, "engine side", seen, remedy, data=data)

    if not points:
        return finding(
            "info", "plugin-none", "no plug-in installed: FastDeploy's own token processor is used"
        )
    if len(chosen) > 1:
        seen = (
            f"FastDeploy takes one plug-in and finds {len(chosen)}: {listed}; it silently uses its own class"
        )
        step = f"FD_PLUGINS={(ours or chosen)[0].name} (now {setting})"
        return finding("warning", "plugin-several", seen, step)
    if not chosen:
        seen = f"FD_PLUGINS={allowed!r} allows none of {quantity(len(points), 'plug-in')}: {listed}"
        seen += f"; {_matches(allowed)}"
        step = f"FD_PLUGINS={_better(allowed) if ours else points[0].name}"
        return finding("warning", "plugin-not-allowed", seen, step)
    if chosen[0] not in ours:
        return finding("info", "plugin", f"another project's: {listed} (FD_PLUGINS {setting})")
    if is_on(DISABLE):
        return finding("info", "plugin-disabled", _DISABLED, "unset FD_POSTPROC_DISABLE")
    return finding("info", "plugin", f"fd_postproc's: {chosen[0].name} (FD_PLUGINS {setting})")


def _worker(allowed: str | None) -> Finding:
    """Check whether the workers load our plug-in; others of the group do not matter."""
    points = [point for point in _points(WORKER_GROUP) if _is_ours(point)]
    loaded = bool(points) and (allowed is None or NAME in allowed.split(","))
    data = {
        "group": WORKER_GROUP,
        "plugins": [{"name": point.name, "value": point.value} for point in points],
        "ours": bool(points),
        "active": loaded and not is_on(DISABLE),
        "FD_PLUGINS": allowed,
    }

    def finding(severity: str, code: str, seen: str, *remedy: str) -> Finding:
        return Finding(severity, "fastdeploy", code, "worker side", seen, remedy, data=data)

    if not points:
        seen = "off: fd_postproc is not installed for this Python as a package, so FastDeploy cannot find it"
        step = f"{sys.executable} -m pip install WHEEL, a wheel of fd_postproc"
        return finding("warning", "worker-missing", seen, step)
    if not loaded:
        seen = f"off: FD_PLUGINS={allowed!r} does not name {NAME}; FastDeploy's own save ops send"
        seen += f"; {_matches(allowed)}"
        step = f"FD_PLUGINS={_better(allowed)}"
        return finding("warning", "worker-not-allowed", seen, step)
    if is_on(DISABLE):
        return finding("info", "worker-disabled", f"off: {_DISABLED}", "unset FD_POSTPROC_DISABLE")
    seen = "on: the workers' save ops are fd_postproc's"
    if allowed is None:
        seen += " (FD_PLUGINS is unset: some versions of FastDeploy load no plug-in then)"
        return finding("info", "worker", seen, f"to be sure: FD_PLUGINS={NAME}")
    return finding("info", "worker", f"{seen} (FD_PLUGINS {allowed!r})")


def _api(allowed: str | None) -> Finding:
    """Check whether the API server loads our plug-in; without ``FD_PLUGINS`` it loads none."""
    points = [point for point in _points(API_GROUP) if _is_ours(point)]
    loaded = bool(points) and allowed is not None and NAME in allowed.split(",")
    off = is_on(DISABLE) or not is_on(API)
    data = {
        "group": API_GROUP,
        "plugins": [{"name": point.name, "value": point.value} for point in points],
        "ours": bool(points),
        "active": loaded and not off,
        "FD_PLUGINS": allowed,
    }

    def finding(severity: str, code: str, seen: str, *remedy: str) -> Finding:
        return Finding(severity, "fastdeploy", code, "API server's side", seen, remedy, data=data)

    if not points:
        seen = "off: fd_postproc is not installed for this Python as a package, so FastDeploy cannot find it"
        return finding("info", "api-missing", seen)
    if off:
        switch = DISABLE if is_on(DISABLE) else API
        return finding("info", "api-disabled", f"off: {switch} says so; FastDeploy writes its chunks")
    if allowed is None:
        seen = "off: FD_PLUGINS is unset; FastDeploy writes its chunks"
        return finding("info", "api-not-allowed", seen, f"FD_PLUGINS={NAME}")
    if not loaded:
        seen = f"off: FD_PLUGINS={allowed!r} does not name {NAME}; FastDeploy writes its chunks"
        return finding(
            "info", "api-not-allowed", f"{seen}; {_matches(allowed)}", f"FD_PLUGINS={_better(allowed)}"
        )
    return finding("info", "api", f"on: chunks are fd_postproc's (FD_PLUGINS {allowed!r})")

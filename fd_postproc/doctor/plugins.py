"""Checks which sides of the plug-in a FastDeploy started here would use.

Only the installation and the settings are examined; FastDeploy is not imported.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import re
import shlex
import sys
from functools import partial

from ..fastdeploy.engine.entry import GROUP as ENGINE_GROUP
from ..fastdeploy.engine.entry import NAME
from ..support.environment import API, DISABLE, WORKER, is_on
from .findings import Finding

API_GROUP = "fastdeploy.tool_parser_plugins"
WORKER_GROUP = "fastdeploy.model_register_plugins"

_GROUPS = (
    ENGINE_GROUP,
    WORKER_GROUP,
    *(f"fastdeploy.{one}_plugins" for one in ("input_processor", "model_runner", "reasoning_parser")),
    API_GROUP,
)

_DISABLED = "FD_POSTPROC_DISABLE is set: FastDeploy's own code is used"


def check_plugins() -> list[Finding]:
    """Return one finding each for the engine, the worker and the API server, and one for unknown names.

    FastDeploy loads the plug-ins that ``FD_PLUGINS`` names; where it is unset, none.
    """
    allowed = os.environ.get("FD_PLUGINS")
    return [
        _engine(allowed),
        _side(allowed, WORKER_GROUP, "worker", "worker side", "FastDeploy's own save ops send", "save ops"),
        _side(allowed, API_GROUP, "api", "API server's side", "FastDeploy writes its chunks", "chunks"),
        *_unknown(allowed),
    ]


def _points(group: str) -> list[importlib.metadata.EntryPoint]:
    return sorted(importlib.metadata.entry_points(group=group), key=lambda point: point.name)


def _is_ours(point: importlib.metadata.EntryPoint) -> bool:
    return point.value.partition(".")[0] == "fd_postproc"


def _installed_names() -> set[str]:
    """Names of all of FastDeploy's plug-ins in all groups: one list allows them all."""
    return {point.name for group in _GROUPS for point in importlib.metadata.entry_points(group=group)}


def _matches(allowed: str | None) -> str:
    """The matches of each name in ``FD_PLUGINS``, which FastDeploy splits at commas only."""
    if allowed is None:
        near = next(
            (name for name in ("FD_PLUGIN", "FD_PLUG_INS", "FASTDEPLOY_PLUGINS") if name in os.environ), ""
        )
        return "FD_PLUGINS is unset, so that FastDeploy loads no plug-in" + (
            near and f"; {near} means nothing to it"
        )
    known = _installed_names()
    parts = []
    for name in allowed.split(","):
        if name in known:
            parts.append(f"{name!r} is installed")
        elif name.strip() in known:
            parts.append(f"{name!r} has a space that does not belong to the name, {name.strip()!r}")
        elif _is_nearly_ours(name):
            parts.append(f"{name!r} is not the name of a plug-in, {NAME!r} is")
        else:
            parts.append(f"{name!r} is not the name of an installed plug-in")
    return f"FD_PLUGINS={allowed!r}, which FastDeploy splits at commas: " + ", ".join(parts)


def _unknown(allowed: str | None) -> list[Finding]:
    """Names beside ours that are no plug-in's: a misspelt one switches another plug-in off in silence."""
    names = _names(allowed)
    unknown = [name for name in names if name not in _installed_names()]
    if NAME not in names or not unknown:  # else the sides say it
        return []
    seen = f"{_matches(allowed)}: FastDeploy passes over unknown names without a word"
    data: dict[str, object] = {"FD_PLUGINS": allowed, "unknown": unknown}
    known = ",".join(name.strip() for name in names if name.strip() in _installed_names())
    step = f"correct the name, or remove it: FD_PLUGINS={_better(known)}"
    return [_finding("FD_PLUGINS", data, "warning", "plugin-unknown", seen, step)]


def _is_nearly_ours(name: str) -> bool:
    near = difflib.get_close_matches(name.strip().lower().replace("-", "_"), [NAME], cutoff=0.8)
    return bool(near) and name != NAME and name not in _installed_names()


def _better(allowed: str | None) -> str:
    """The corrected ``FD_PLUGINS`` for a shell: with our name, without empty and misspelt ones."""
    names = re.split(r"[,;:\s]+", allowed or "")  # FastDeploy splits at commas only
    others = [name for name in names if name and name != NAME and not _is_nearly_ours(name)]
    return shlex.quote(",".join([*others, NAME]))


def _data(allowed: str | None, group: str, active: bool) -> dict[str, object]:
    points = _points(group)
    return {
        "group": group,
        "plugins": [{"name": point.name, "value": point.value} for point in points],
        "ours": any(_is_ours(point) for point in points),
        "active": active,
        "FD_PLUGINS": allowed,
    }


def _finding(
    subject: str, data: dict[str, object], severity: str, code: str, seen: str, *remedy: str
) -> Finding:
    return Finding(severity, "fastdeploy", code, subject, seen, remedy, data=data)


def _names(allowed: str | None) -> list[str]:
    return [] if allowed is None else allowed.split(",")


def _severity(allowed: str | None) -> str:
    """Whether a plug-in was asked for: ``FD_PLUGINS`` is set; where it names others, ours may be meant."""
    return "info" if allowed is None else "warning"


def _engine(allowed: str | None) -> Finding:
    """Check the engine's group, which takes one plug-in; else the loader falls back silently."""
    points = _points(ENGINE_GROUP)
    chosen = [point for point in points if point.name in _names(allowed)]
    ours = [point for point in points if _is_ours(point)]
    active = len(chosen) == 1 and chosen[0] in ours and not is_on(DISABLE)
    finding = partial(_finding, "engine side", _data(allowed, ENGINE_GROUP, active))
    listed = ", ".join(f"{point.name} ({point.value})" for point in points)
    if not points:
        return finding(
            "info", "plugin-none", "off: no plug-in is installed; FastDeploy's own token processor is used"
        )
    if len(chosen) > 1:
        seen = (
            f"FastDeploy takes one plug-in and finds {len(chosen)}: {listed}; it silently uses its own class"
        )
        return finding(
            "warning", "plugin-several", seen, f"FD_PLUGINS={(ours or chosen)[0].name} (now {allowed!r})"
        )
    if not chosen:
        seen = f"off: none that is installed is allowed: {listed}; {_matches(allowed)}"
        step = f"FD_PLUGINS={_better(allowed) if ours else points[0].name}"
        return finding(_severity(allowed), "plugin-not-allowed", seen, step)
    if chosen[0] not in ours:
        return finding("info", "plugin", f"another project's: {listed} (FD_PLUGINS {allowed!r})")
    if is_on(DISABLE):
        return finding("info", "plugin-disabled", f"off: {_DISABLED}", "unset FD_POSTPROC_DISABLE")
    return finding("info", "plugin", f"on: fd_postproc's {chosen[0].name} (FD_PLUGINS {allowed!r})")


def _side(allowed: str | None, group: str, code: str, subject: str, otherwise: str, what: str) -> Finding:
    """Check a group that takes any number of plug-ins, so that those of others do not matter."""
    loaded = any(_is_ours(point) for point in _points(group))
    own = {"api": API, "worker": WORKER}[code]
    switch = DISABLE if is_on(DISABLE) else None if is_on(own) else own
    active = loaded and NAME in _names(allowed) and switch is None
    finding = partial(_finding, subject, _data(allowed, group, active))
    if not loaded:
        seen = "off: fd_postproc is not installed for this Python as a package, so FastDeploy cannot find it"
        step = f"{sys.executable} -m pip install WHEEL, a wheel of fd_postproc"
        return finding("warning", f"{code}-missing", seen, step)
    if NAME not in _names(allowed):
        seen = f"off: {_matches(allowed)}; {otherwise}"
        return finding(_severity(allowed), f"{code}-not-allowed", seen, f"FD_PLUGINS={_better(allowed)}")
    if switch is not None:
        return finding("info", f"{code}-disabled", f"off: {switch} says so; {otherwise}", f"unset {switch}")
    return finding("info", code, f"on: {what} are fd_postproc's (FD_PLUGINS {allowed!r})")

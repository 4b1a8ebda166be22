"""Runs the plug-in's own comparison with the installed FastDeploy, in a child process."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..environment import DISABLE, FASTDEPLOY, FORCE, is_on
from ..fastdeploy.engine.entry import NAME
from ..fastdeploy.report import MARK
from ..fastdeploy.seams import ASIDE_COST, left_text, text_of
from ..subprocess_json import answer_of
from .environment import FASTDEPLOY_FILE, installed
from .findings import Finding

_TRIAL_WAIT_S = 300  # seconds; importing FastDeploy loads Paddle and what belongs to the GPU


def check_trial() -> list[Finding]:
    """Return one finding: the verdict, or the reason why there is none."""
    if installed().code == "fastdeploy-missing" and not FASTDEPLOY.text:
        seen = f"not tried: FastDeploy is not installed ({FASTDEPLOY}=PATH names a source tree)"
        return [_finding("info", "plugin-untried", seen)]
    tree = FASTDEPLOY.text
    if tree and installed().code == "fastdeploy-missing" and not _holds_fastdeploy(tree):
        seen = f"not tried: {FASTDEPLOY}={tree!r} holds no FastDeploy: there is no {FASTDEPLOY_FILE} in it"
        folder = (
            f"set {FASTDEPLOY} to the folder that holds fastdeploy/, as a clone of FastDeploy does",
            "or unset it",
        )
        return [_finding("warning", "plugin-untried", seen, folder)]
    try:
        told = report()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return [_finding("warning", "plugin-unknown", f"the trial failed: {error}")]
    if "error" in told:
        remedy = ("repair the installation: FastDeploy itself will not start, either",)
        return [_finding("warning", "plugin-unknown", told["error"], remedy)]
    return [_judged(told)]


def _holds_fastdeploy(tree: str) -> bool:
    """Whether a folder, or the one above ``fastdeploy``, holds FastDeploy's sources."""
    above = Path(tree).parent if Path(tree).name == "fastdeploy" else Path(tree)
    return os.path.exists(above / FASTDEPLOY_FILE)


def report() -> dict[str, Any]:
    """The child process's report.

    Raises
    ------
    subprocess.TimeoutExpired
        If it takes longer than five minutes.
    ValueError
        If it ends without an answer; the text contains its last line on standard error.
    """
    return answer_of("fd_postproc.fastdeploy.report", mark=MARK, patience=_TRIAL_WAIT_S)


def engine_side(static: Finding, tried: list[Finding]) -> Finding:
    """Predict the engine's choice, from installation and settings, then from the trial.

    Parameters
    ----------
    static : Finding
        Of `plugins`.
    tried : list of Finding
        Of `check_trial`; empty if nothing was tried.
    """
    if not static.data.get("active"):
        return static
    told = tried[0].data if tried else {}
    if "decision" not in told:
        return replace(static, seen=f"{static.seen}; whether it is used was not tried")
    data = {**static.data, "decision": told["decision"], "loaded": told["loaded"]}
    if told["decision"]["compatible"]:
        if told["loaded"].startswith("fd_postproc."):
            seen = "active: FastDeploy loads fd_postproc's token processor and uses it"
            taken = told.get("fast_paths")
            if taken:
                data["fast_paths"] = taken
                unknown = told["decision"].get("unknown", ())
                seen += f"; {text_of(taken, unknown, told.get('why_left'))}"
                if not all(taken.values()):
                    return replace(static, severity="warning", code="plugin-slow", seen=seen, data=data)
            return replace(static, severity="ok", code="plugin-active", seen=seen, data=data)
        setting = static.data["FD_PLUGINS"] or "is unset"
        seen = f"off: FastDeploy's own loader takes {told['loaded'] or 'no plug-in'} (FD_PLUGINS {setting})"
        code, remedy = "plugin-not-loaded", (f"FD_PLUGINS={NAME}",)
        return replace(static, severity="warning", code=code, seen=seen, remedy=remedy, data=data)
    seen = (
        f"stands aside, FastDeploy's own token processor is used: {told['decision']['reason']}; {ASIDE_COST}"
    )
    return replace(static, severity="warning", code="plugin-aside", seen=seen, data=data)


def api_side(static: Finding, tried: list[Finding]) -> Finding:
    """Predict an API server's choice, from installation and settings, then from the trials.

    Parameters
    ----------
    static : Finding
        Of `plugins`.
    tried : list of Finding
        Of `check_trial`; empty if nothing was tried.
    """
    told = tried[0].data.get("api") if tried else None
    if not static.data.get("active") or not told:
        return static
    left: dict[str, str] = tried[0].data.get("api_left", {})
    data = {**static.data, "verdicts": told, "left": left}
    aside = [f"{what}: {verdict['reason']}" for what, verdict in told.items() if not verdict["compatible"]]
    if not aside:
        reasons = "; ".join(f"{what}: {verdict['reason']}" for what, verdict in told.items())
        seen = f"active: chunks are written by fd_postproc ({reasons}){left_text(left.items())}"
        return replace(static, severity="ok", code="api-active", seen=seen, data=data)
    seen = f"stands aside, FastDeploy's own code writes the chunks: {'; '.join(aside)}"
    return replace(static, severity="warning", code="api-aside", seen=seen, data=data)


def _judged(told: dict[str, Any]) -> Finding:
    verdict = told["verdict"]
    has = "; ".join(verdict["features"]) or "unknown"
    names = (
        "verdict",
        "decision",
        "loaded",
        "fast_paths",
        "why_left",
        "api",
        "api_left",
        "versions",
        "shapes",
    )
    data = {name: told[name] for name in names if name in told}
    if not verdict["compatible"]:
        forced = is_on(FORCE)
        then = f"it is used all the same ({FORCE} is set)" if forced else "FastDeploy's own class is used"
        remedy = (
            "report the difference, with FastDeploy's version",
            f"{FORCE}=1 uses it all the same: what clients get may differ in this point",
        )
        seen = f"differs from this FastDeploy's, {then}: {verdict['reason']} (FastDeploy has: {has})"
        return _finding("warning", "plugin-differs", seen, remedy[:1] if forced else remedy, data)
    seen = f"{verdict['reason']}, {verdict['seconds'] * 1e3:.0f} ms (FastDeploy has: {has})"
    if is_on(DISABLE):
        return _finding("info", "plugin-disabled", f"{seen}; switched off by {DISABLE}", (), data)
    return _finding("ok", "plugin-compatible", seen, (), data)


def _finding(
    severity: str, code: str, seen: str, remedy: tuple[str, ...] = (), data: dict[str, Any] | None = None
) -> Finding:
    return Finding(severity, "fastdeploy", code, "our token processor", seen, remedy, data=data or {})

"""Compares the installed FastDeploy with the plug-in's record, in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..fastdeploy.engine.entry import NAME
from ..fastdeploy.gate.contract import SERVED
from ..fastdeploy.gate.seams import ASIDE_COST, SEAMS, text_of
from ..fastdeploy.report import MARK
from ..flight.files import temporary_folder
from ..support.child_python import python_command
from ..support.environment import DISABLE, FASTDEPLOY, KNOWN, is_on
from .environment import FASTDEPLOY_FILE, installed
from .findings import Finding

_TRIAL_WAIT_S = 300  # seconds; importing FastDeploy loads Paddle and what belongs to the GPU
_REMEDY = (
    "take a newer fd_postproc",
    f"or accept this FastDeploy yourself, with {KNOWN}: docs/operators.md says how",
    "report it, with FastDeploy's version",
)
_CHANGED = (" is wrapped by ", " is replaced by ")
_REMEDY_OF_CHANGED = (
    "start FastDeploy without what wraps or replaces its functions",
    "or leave it: FastDeploy's own functions are called, and what is around them",
)
_TOO_OLD = (f"update FastDeploy to {SERVED}; until then the other sides' parts are used as their lines say",)


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
        answer = report()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return [_finding("warning", "plugin-unknown", f"FastDeploy cannot be looked at: {error}")]
    if "error" in answer:
        remedy = ("repair the installation: FastDeploy itself will not start, either",)
        return [_finding("warning", "plugin-unknown", answer["error"], remedy)]
    return [_judged(answer)]


def _holds_fastdeploy(tree: str) -> bool:
    """Whether a folder, or the one above ``fastdeploy``, holds FastDeploy's sources."""
    above = Path(tree).parent if Path(tree).name == "fastdeploy" else Path(tree)
    return os.path.exists(above / FASTDEPLOY_FILE)


def report() -> dict[str, Any]:
    """The child process's report: one line of JSON behind a mark, because FastDeploy may print, too.

    FastDeploy makes the folders here where it is imported, or writes into those of a service.

    Raises
    ------
    subprocess.TimeoutExpired
        If it takes too long.
    ValueError
        If it ends without an answer; the text contains its last line on standard error.
    """
    with tempfile.TemporaryDirectory(dir=temporary_folder(), ignore_cleanup_errors=True) as folder:
        child = subprocess.run(
            python_command("fd_postproc.fastdeploy.report"),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRIAL_WAIT_S,
            env={**os.environ, **dict.fromkeys(("FD_LOG_DIR", "PROMETHEUS_MULTIPROC_DIR"), folder)},
            stdin=subprocess.DEVNULL,
        )
    for line in reversed(child.stdout.splitlines()):
        if line.startswith(MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return answer
    last = (child.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    status = child.returncode
    if status < 0:
        raise ValueError(f"signal {-status} ended the child process (9: dmesg, is memory short?): {last}")
    raise ValueError(f"the child process ended with status {status}: {last}")


def engine_side(static: Finding, tried: list[Finding]) -> Finding:
    """Predict the engine's choice, from installation and settings, then from FastDeploy's code.

    `static` is of `plugins`, `tried` of `check_trial`, empty if nothing was tried.
    """
    if not static.data.get("active"):
        return static
    answer = tried[0].data if tried else {}
    if "decision" not in answer:
        return replace(static, seen=f"{static.seen}; whether it is used was not tried")
    data = {**static.data, "decision": answer["decision"], "loaded": answer["loaded"]}
    if answer["decision"]["compatible"]:
        if answer["loaded"].startswith("fd_postproc."):
            seen = "active: FastDeploy loads fd_postproc's token processor and uses it"
            later = answer["decision"].get("asked_later")
            if later:
                seen = f"active, but it will wait: {later}"
                return replace(static, severity="error", code="plugin-waits", seen=seen, data=data)
            taken = answer.get("fast_paths")
            if taken:
                data["fast_paths"] = taken
                seen += f"; {text_of(taken, answer.get('why_left'))}"
                if not all(taken.values()):
                    return replace(static, severity="warning", code="plugin-slow", seen=seen, data=data)
            return replace(static, severity="ok", code="plugin-active", seen=seen, data=data)
        setting = static.data["FD_PLUGINS"] or "is unset"
        seen = f"off: FastDeploy's own loader takes {answer['loaded'] or 'no plug-in'} (FD_PLUGINS {setting})"
        code, remedy = "plugin-not-loaded", (f"FD_PLUGINS={NAME}",)
        return replace(static, severity="warning", code=code, seen=seen, remedy=remedy, data=data)
    seen = (
        f"falls back, FastDeploy's own token processor is used: {answer['decision']['reason']}; {ASIDE_COST}"
    )
    inside = [name for name in ("sending", "wake-up") if answer.get("fast_paths", {}).get(name)]
    if inside:
        seen += f"; active beside it: {', '.join(inside)}"
    return replace(static, severity="warning", code="plugin-aside", seen=seen, data=data)


def worker_side(static: Finding, tried: list[Finding]) -> Finding:
    """Predict a worker's choice as `engine_side` does an engine's."""
    answer = tried[0].data.get("worker") if tried else None
    if not static.data.get("active") or not answer:
        return static
    untried = f"; not tried: {answer['untried']}" if "untried" in answer else ""
    return replace(static, seen=static.seen + untried, data={**static.data, **answer})


def api_side(static: Finding, tried: list[Finding]) -> Finding:
    """Predict an API server's choice as `engine_side` does an engine's."""
    answer = tried[0].data.get("api") if tried else None
    if not static.data.get("active") or not answer:
        return static
    left = dict(tried[0].data.get("api_left", {}))
    data = {**static.data, "verdicts": answer, "left": left}
    aside = [f"{what}: {verdict['reason']}" for what, verdict in answer.items() if not verdict["compatible"]]
    if not aside:
        seen = f"active: chunks are written by fd_postproc ({', '.join(answer)})"
        return replace(static, severity="ok", code="api-active", seen=seen, data=data)
    seen = f"falls back, FastDeploy's own code writes the chunks: {'; '.join(aside)}"
    return replace(static, severity="warning", code="api-aside", seen=seen, remedy=_remedy(seen), data=data)


def left_parts(side: Finding) -> list[Finding]:
    """The seams of a side in use that stay FastDeploy's, a finding each."""
    return [_left(seam, why) for seam, why in side.data.get("left", {}).items()]


def _left(seam: str, why: str) -> Finding:
    seen = f"left to FastDeploy, and slower: {why}; elsewhere {SEAMS[seam].gain}"
    is_used = seam != "streams" or os.environ.get("FD_USE_GET_SAVE_OUTPUT_V1") == "1"
    return Finding("warning" if is_used else "info", "fastdeploy", "part-left", seam, seen, _remedy(why))


def _remedy(why: str) -> tuple[str, ...]:
    """The remedy: no newer fd_postproc knows a wrapper of the operator's own."""
    is_changed = any(words in why for words in _CHANGED) and " has new code " not in why
    return _REMEDY_OF_CHANGED if is_changed else _REMEDY


def _judged(answer: dict[str, Any]) -> Finding:
    decision = answer["decision"]
    data = {name: value for name, value in answer.items() if name != "from"}
    if is_on(DISABLE):
        return _finding("info", "plugin-disabled", f"switched off by {DISABLE}", (), data)
    if decision["compatible"]:
        return _finding("ok", "plugin-compatible", "this FastDeploy's code is known", (), data)
    seen = f"FastDeploy's own class is used: {decision['reason']}"
    remedy = _TOO_OLD if SERVED in decision["reason"] else _remedy(seen)
    return _finding("warning", "plugin-differs", seen, remedy, data)


def _finding(
    severity: str, code: str, seen: str, remedy: tuple[str, ...] = (), data: dict[str, Any] | None = None
) -> Finding:
    return Finding(severity, "fastdeploy", code, "our token processor", seen, remedy, data=data or {})

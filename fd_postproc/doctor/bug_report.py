"""Collects what a bug report needs: versions, reasons; no user data, no text of sources."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from typing import Any

from .._version import __version__
from .findings import Finding

SCHEMA = 1
_TOLD = re.compile(
    r"FD_(POSTPROC_\w+|PLUGINS|\w*(SAVE_OUTPUT|BATCH_DATA|INTERNAL_ADAPTER|KVCACHE_SCHEDULER)\w*)"
)
_HARMLESS = re.compile(r"-?\d{1,6}(\.\d+)?|on|off|true|false|fd_postproc", re.IGNORECASE)


def bug_report(findings: Sequence[Finding]) -> dict[str, Any]:
    """A dictionary for JSON.

    Only findings of FastDeploy, kernel limits and CUDA are reported: others name processes, users and queues.
    Settings other than numbers and switches are only said to be set.
    """
    shown = [finding for finding in findings if finding.group in ("fastdeploy", "limits", "cuda")]
    data: dict[str, Any] = {}
    for finding in shown:
        data.update(finding.data)
    kept = ("decision", "fast_paths", "why_left", "api", "api_left", "worker")
    return {
        "schema": SCHEMA,
        "versions": data.get("versions")
        or {"fd_postproc": __version__, "python": sys.version.split()[0], "fastdeploy": "not tried"},
        "system": {"machine": platform.machine(), "kernel": platform.release(), "libc": platform.libc_ver()},
        "settings": {
            name: _shown(value) for name, value in sorted(os.environ.items()) if _TOLD.fullmatch(name)
        },
        "findings": [
            {
                "severity": one.severity,
                "code": one.code,
                "subject": one.subject,
                "seen": _without_paths(one.seen),
            }
            for one in shown
        ],
        "trial": {name: data[name] for name in kept if name in data},
    }


def _shown(value: str) -> str:
    return value if _HARMLESS.fullmatch(value) else "set"


def _without_paths(text: str) -> str:
    """A text without the folders of paths."""
    return re.sub(r"(?<![\w.])/[\w.+-]+(/[\w.+-]+)+", lambda path: f".../{path[0].rpartition('/')[2]}", text)

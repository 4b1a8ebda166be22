"""Checks which HTTP parser FastDeploy's API server uses."""

from __future__ import annotations

import importlib.util

from .findings import Finding


def check_http_parser() -> list[Finding]:
    """Return one finding if uvicorn is installed and parses HTTP in Python."""
    if not _is_installed("uvicorn") or _is_installed("httptools"):
        return []
    seen = (
        "uvicorn reads and writes HTTP in Python (h11), because httptools is not installed: each chunk of a "
        "stream costs the API process more"
    )
    return [
        Finding("warning", "fastdeploy", "http-parser", "API server's HTTP", seen, ("pip install httptools",))
    ]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # one that is half loaded, or whose folder may not be read
        return False

"""The plug-in's own environment variables.  Only the standard library: FastDeploy loads this with the entry point."""

from __future__ import annotations

import os

DISABLE = "FD_POSTPROC_DISABLE"
FORCE = "FD_POSTPROC_FORCE"
KEEP_STALE = "FD_POSTPROC_KEEP_STALE"
GC = "FD_POSTPROC_GC"
PEER = "FD_POSTPROC_PEER"

_OFF = ("", "0", "off", "no", "false")


def is_on(name: str, default: bool = False) -> bool:
    """Whether a variable is on: any value but an empty one, ``0``, ``off``, ``no`` and ``false``."""
    value = os.environ.get(name)
    return default if value is None else value.strip().lower() not in _OFF

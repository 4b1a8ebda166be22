"""The plug-in's own environment variables.  Standard library only: loaded with the entry point."""

from __future__ import annotations

import math
import os

DISABLE = "FD_POSTPROC_DISABLE"
FORCE = "FD_POSTPROC_FORCE"
KEEP_STALE = "FD_POSTPROC_KEEP_STALE"
GC = "FD_POSTPROC_GC"
PEER = "FD_POSTPROC_PEER"
LOG_STATS = "FD_POSTPROC_LOG_STATS"
SIDE_STREAM = "FD_POSTPROC_CUDA_SIDE_STREAM"


def is_on(name: str) -> bool:
    """Whether a variable is set to anything but nothing or ``0``: whoever sets it means it."""
    return os.environ.get(name, "").strip() not in ("", "0")


def tends_garbage() -> bool:
    """Whether the plug-in may speak to Python's garbage collector: unless ``FD_POSTPROC_GC`` is ``off``."""
    return os.environ.get(GC, "").strip().lower() != "off"


def check_gc() -> None:
    """ValueError if ``FD_POSTPROC_GC`` has a value that means nothing."""
    value = os.environ.get(GC, "")
    if value.strip().lower() not in ("", "on", "off"):
        raise ValueError(f"{GC}={value!r} is not one of on, off: it has no effect")


def log_period() -> float:
    """Seconds between two lines of statistics in the log: ``FD_POSTPROC_LOG_STATS``; infinite if not set.

    Raises
    ------
    ValueError
        If it is no number above 0.
    """
    text = os.environ.get(LOG_STATS, "").strip()
    if not text:
        return math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ValueError(f"{LOG_STATS}={text!r} is not a number of seconds above 0")
    return seconds

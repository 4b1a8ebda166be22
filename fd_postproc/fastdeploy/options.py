"""The plug-in's own environment variables.  Standard library only: loaded with the entry point."""

from __future__ import annotations

import os

DISABLE = "FD_POSTPROC_DISABLE"
FORCE = "FD_POSTPROC_FORCE"
KEEP_STALE = "FD_POSTPROC_KEEP_STALE"
GC = "FD_POSTPROC_GC"
PEER = "FD_POSTPROC_PEER"


def is_on(name: str) -> bool:
    """Whether a variable is ``1``; every other value is off."""
    return os.environ.get(name, "").strip() == "1"


def tends_garbage() -> bool:
    """Whether the plug-in may speak to Python's garbage collector: unless ``FD_POSTPROC_GC`` is ``off``."""
    return os.environ.get(GC, "").strip().lower() != "off"


def check(name: str) -> None:
    """ValueError if a variable has a value that means nothing."""
    known = ("on", "off") if name == GC else ("0", "1")
    value = os.environ.get(name, "")
    if value.strip().lower() not in ("", *known):
        raise ValueError(f"{name}={value!r} is not one of {', '.join(known)}: it has no effect")

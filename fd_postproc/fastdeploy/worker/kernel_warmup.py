"""Loads the save kernel before the first step, in the background.

The driver compiles the kernel for a device that the package has no machine code for, which takes up to a
third of a second.  Nothing here initialises CUDA or makes a context: FastDeploy registers plug-ins before it
chooses a device, and in processes that fork.  So a thread waits until other code has done both.
"""

from __future__ import annotations

import logging
import threading
import time

WAIT_SECONDS = 900.0
"""Seconds after which a process without a context is unlikely to save anything."""
PAUSE_S = 0.5
"""Seconds between two looks: weights are loaded for longer, and the engine's process looks in vain."""

_lock = threading.Lock()
_enough: threading.Event | None = None


def begin() -> None:
    """Start the thread, unless it runs."""
    global _enough
    with _lock:
        if _enough is None:
            _enough = threading.Event()
            threading.Thread(target=_load, args=(_enough,), name="fd_postproc-warmup", daemon=True).start()


def end() -> None:
    """End the thread, if it still waits."""
    global _enough
    with _lock:
        if _enough is not None:
            _enough.set()
        _enough = None


def _load(enough: threading.Event) -> None:
    log = logging.getLogger("fd_postproc")
    try:
        devices = _devices(enough)
        if devices:
            from ...ops.device import saves

            saves.load(devices)
            log.debug("the save kernel is loaded on CUDA device %s", ", ".join(map(str, devices)))
    except Exception as error:  # the first save meets it, too, and raises
        log.debug("the save kernel was not loaded: %s", error)


def _devices(enough: threading.Event) -> list[int]:
    """Wait until this process uses a device."""
    from ...core import _save

    began = time.monotonic()
    while time.monotonic() < began + WAIT_SECONDS:
        devices: list[int] = _save.devices_in_use()
        if devices:
            return devices
        if enough.wait(PAUSE_S):
            break
    return []

"""Watchdog thread that logs messages which wait for room in their queue."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from ..queues import key_text

log = logging.getLogger("fd_postproc")

WATCH_SECONDS = 10.0
_watched_pid = 0
waiting: list[list[Any]] = []
"""Lists of objects that may wait, with ``waiting_seconds``, ``msqid``, ``channel`` and ``key``."""


def watch() -> None:
    """Start the watchdog unless it runs; a forked process needs a new one."""
    global _watched_pid
    if _watched_pid != os.getpid():
        _watched_pid = os.getpid()
        threading.Thread(target=_tell_who_waits, name="fd_postproc-watch", daemon=True).start()


def _tell_who_waits() -> None:
    while True:
        time.sleep(WATCH_SECONDS)
        for sender in [sender for senders in waiting for sender in list(senders)]:
            waited = sender.waiting_seconds
            if waited >= WATCH_SECONDS:
                log.warning(
                    "queue %d (%s, key %s) has been full for %.0f s: is the engine alive? Nothing is lost; "
                    "the save op keeps waiting",
                    sender.msqid,
                    sender.channel,
                    key_text(sender.key),
                    waited,
                )

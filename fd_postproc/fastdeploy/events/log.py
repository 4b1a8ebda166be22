"""The plug-in's words for operators: FastDeploy's log files, and standard error."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from typing import Any

from ...support.environment import settle_switches


def fastdeploy_log() -> logging.Logger:
    """FastDeploy's logger; ours where it is not available."""
    return _logger_of("llm_logger")


def api_log() -> logging.Logger:
    """The logger of FastDeploy's API server; ours where it is not available."""
    return _logger_of("api_server_logger")


def _logger_of(name: str) -> logging.Logger:
    try:
        log: logging.Logger = getattr(importlib.import_module("fastdeploy.utils"), name)
    except Exception:  # whatever a foreign import may raise
        return logging.getLogger("fd_postproc")
    return log


def warn(log: Any, text: str) -> None:
    """Report that a side falls back: in the log, and on standard error."""
    log.warning(f"fd_postproc: {text}")
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
        print(f"fd_postproc: {text}", file=sys.stderr, flush=True)


_complaints: dict[str, None] = {}  # in their order
_told: set[tuple[str, str]] = set()


def tell_variables(log: Any) -> None:
    """Report unreadable or misspelt environment variables of ours, once in each log.

    Each side calls this first: an unreadable switch has its safe meaning from then on.
    """
    _complaints.update(dict.fromkeys(settle_switches()))
    name = getattr(log, "name", "")
    for text in _complaints:
        if (name, text) not in _told:
            _told.add((name, text))
            log.error(f"fd_postproc: {text}")


class _Forward(logging.Handler):
    """Handler that forwards our logger's records; FastDeploy removes the root's handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        log = fastdeploy_log()
        if log.name != record.name:
            log.log(record.levelno, "fd_postproc: %s", record.getMessage(), exc_info=record.exc_info)


_forward = _Forward()


def forward() -> None:
    """Forward the library's warnings (a full queue, an open one) to FastDeploy's log."""
    logging.getLogger("fd_postproc").addHandler(_forward)

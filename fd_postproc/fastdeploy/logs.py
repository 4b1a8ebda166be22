"""Where an operator sees what the plug-in says: in FastDeploy's own log files."""

from __future__ import annotations

import importlib
import logging


def fastdeploy_log() -> logging.Logger:
    """FastDeploy's logger; ours where it cannot be had."""
    try:
        log = importlib.import_module("fastdeploy.utils").llm_logger
    except Exception:  # whatever a foreign import may raise
        return logging.getLogger("fd_postproc")
    return log


class _Forward(logging.Handler):
    """Hands records of the library's logger on.  FastDeploy takes the handlers of the root logger away."""

    def emit(self, record: logging.LogRecord) -> None:
        log = fastdeploy_log()
        if log.name != record.name:
            log.log(record.levelno, "fd_postproc: %s", record.getMessage(), exc_info=record.exc_info)


_forward = _Forward()


def forward() -> None:
    """Let the library's warnings (a full queue, an open one) appear in FastDeploy's log."""
    logging.getLogger("fd_postproc").addHandler(_forward)


def stop_forwarding() -> None:
    """Undo `forward`."""
    logging.getLogger("fd_postproc").removeHandler(_forward)

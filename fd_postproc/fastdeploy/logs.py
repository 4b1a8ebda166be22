"""The plug-in's output for operators: FastDeploy's log files, standard error, a gauge."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from typing import Any

from ..support.environment import settle_switches
from .gauges import export


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


def export_active(side: str, active: bool) -> None:
    """Set the gauge ``fd_postproc_active{side=...}`` of the engine, the worker or the api.

    Workers of all ranks write for the page of rank 0's engine, which starts them: from rank 1 on a worker
    names its rank, ``"worker 1"``, so that none hides another's fall-back.
    """
    rank = os.environ.get("PADDLE_TRAINER_ID", "")
    if side == "worker" and rank not in ("", "0"):
        side = f"worker {rank}"
    export("active", "side", side, active)


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


_counters: dict[str, Any] = {}


def counter(name: str, text: str, label: str) -> Any:
    """The metric ``fd_postproc_NAME_total{LABEL=...}``; None in a process without prometheus_client."""
    if name not in _counters:
        try:
            from prometheus_client import Counter

            _counters[name] = Counter(f"fd_postproc_{name}", text, [label])
        except (ImportError, OSError, ValueError):  # none, no file to share, or the name is taken
            _counters[name] = None
    return _counters[name]


def count(name: str, text: str, label: str, value: str, amount: int = 1) -> None:
    """Add to the metric ``fd_postproc_NAME_total{LABEL=VALUE}``, where there is one."""
    total = counter(name, text, label)
    if total is not None and amount:
        total.labels(value).inc(amount)

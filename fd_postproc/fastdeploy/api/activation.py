"""Installs our streams in a serving module, and logs whether they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._version import __version__
from ..events.gauges import export_active
from ..events.log import api_log, warn
from ..gate.judgements import gate
from . import scores, streams
from .chunks._chunks import give_arrays

CHAT = "fastdeploy.entrypoints.openai.serving_chat"
COMPLETION = "fastdeploy.entrypoints.openai.serving_completion"
WHAT = {"serving_chat": "chat completions", "serving_completion": "completions"}


def report(module: Any, reason: str | None) -> None:
    """Log whether ours writes the chunks of a serving module, or why FastDeploy's own does; set the gauge."""
    log, what = api_log(), WHAT[module.__name__.rpartition(".")[2]]
    export_active("api", reason is None)
    if reason is None:
        log.info(f"fd_postproc: API side active for {what} ({__version__}): writes the chunks")
    else:
        warn(log, f"API side falls back, FastDeploy's own code writes the {what}: {reason}")


def install(module: Any) -> Callable[[], None]:
    """Install our streams in a serving module; return a function that restores FastDeploy's own.

    Values of messages come as NumPy's arrays where the code that takes them is known in each such module.
    """
    restore_streams, name = streams.install(module), module.__name__
    _takes_arrays[name] = gate.judge(scores.SEAM, module).reason is None
    _settle()

    def restore() -> None:
        restore_streams()
        del _takes_arrays[name]
        _settle()

    return restore


_takes_arrays: dict[str, bool] = {}  # by module


def _settle() -> None:
    give_arrays(bool(_takes_arrays) and all(_takes_arrays.values()))

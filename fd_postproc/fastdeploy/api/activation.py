"""This module decides whether the plug-in is active in a serving module, and logs the decision."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ..._version import __version__
from ..events.gauges import export_active
from ..events.log import api_log, warn
from ..gate.judgements import gate
from ..gate.seams import NotPlain
from . import streams
from .arrays import in_use
from .lane import SEAM

WHAT = {"serving_chat": "chat completions", "serving_completion": "completions"}


def install_or_fall_back(module: Any) -> str | None:
    """Install our streams in ``serving_chat`` or ``serving_completion``; return why FastDeploy's own stay."""
    reason = decide(module)
    log, what = api_log(), WHAT[module.__name__.rpartition(".")[2]]
    export_active("api", reason is None)
    if reason is not None:
        warn(log, f"API side falls back, FastDeploy's own code writes the {what}: {reason}")
        return reason
    install(module)
    log.info(f"fd_postproc: API side active for {what} ({__version__}): writes the chunks")
    return None


def decide(module: Any) -> str | None:
    """Why a serving module's streams stay FastDeploy's; None if they are ours.  Never raises."""
    try:
        reason = gate.judge(SEAM, module).reason
        if reason is None:
            streams.Streams(module)
        return reason
    except NotPlain as error:
        return str(error)
    except Exception as error:
        return f"cannot tell: {type(error).__name__}: {error}"


def install(module: Any) -> Callable[[], None]:
    """Install our streams in a serving module; return a function that restores FastDeploy's own."""
    ours_in = contextlib.ExitStack()
    ours_in.callback(streams.install(module))
    ours_in.enter_context(in_use(module))
    return ours_in.close

"""Decision whether the plug-in is active in a serving module, with its line in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._version import __version__
from ..events.gauges import export_active
from ..events.log import api_log, warn
from ..gate.judgements import gate
from ..gate.seams import NotPlain
from . import scores, streams
from .chunks._chunks import give_arrays
from .lane import SEAM

CHAT = "fastdeploy.entrypoints.openai.serving_chat"
COMPLETION = "fastdeploy.entrypoints.openai.serving_completion"
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

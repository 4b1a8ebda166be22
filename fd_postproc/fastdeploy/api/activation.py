"""This module decides whether the plug-in is active in a serving module, and logs the decision."""

from __future__ import annotations

from typing import Any

from ..._version import __version__
from ..events.gauges import export_active
from ..events.log import api_log, warn
from ..gate.seams import NotPlain, left_text
from .chunks.building_blocks import Blocks, blocks_of, install

WHAT = {"serving_chat": "chat completions", "serving_completion": "completions"}


def install_or_fall_back(module: Any) -> str | None:
    """Install our parts in ``serving_chat`` or ``serving_completion``; return why FastDeploy's own stay."""
    blocks, reason = decide(module)
    log, what = api_log(), WHAT[module.__name__.rpartition(".")[2]]
    export_active("api", blocks is not None)
    if blocks is None:
        warn(log, f"API side falls back, FastDeploy's own code writes the {what}: {reason}")
        return reason
    install(module, blocks)
    log.info(
        f"fd_postproc: API side active for {what} ({__version__}): writes the chunks"
        f"{left_text(sorted(blocks.left.items()))}"
    )
    return None


def decide(module: Any) -> tuple[Blocks | None, str]:
    """Our parts for a serving module, or None and the reason; never raises."""
    try:
        return blocks_of(module), ""
    except NotPlain as reason:
        return None, str(reason)
    except Exception as error:
        return None, f"cannot tell: {type(error).__name__}: {error}"

"""Decides whether the plug-in is active in a serving module, and logs the decision."""

from __future__ import annotations

from typing import Any

from ..._version import __version__
from ...environment import FORCE, is_on
from ..logs import api_log, export_active, warn
from ..seams import left_text, unknown_text
from ..trial.result import TrialResult
from . import counters
from .chunks.building_blocks import install
from .trial import compare

WHAT = {
    "serving_chat": "chat completions",
    "serving_completion": "completions",
}


def settle(module: Any) -> TrialResult:
    """Decide for a serving module that was just imported, and install the fast path if it fits.

    Parameters
    ----------
    module : module
        ``serving_chat`` or ``serving_completion``.
    """
    counters.stop()
    verdict, blocks = compare(module)
    counters.begin()
    log = api_log()
    what = WHAT[module.__name__.rpartition(".")[2]]
    forced = not verdict.compatible and blocks is not None and is_on(FORCE)
    active = verdict.compatible or forced
    if active and blocks is not None:
        install(module, blocks)
    export_active("api", active)
    if not active:
        text = f"API side stands aside, FastDeploy's own code writes the {what}: {verdict.reason}"
        warn(log, text)
    elif forced:
        log.warning(
            f"fd_postproc: API side active for {what} ({__version__}) because {FORCE} is set, although it "
            f"differs from FastDeploy's own code: {verdict.reason}"
        )
    else:
        log.info(
            f"fd_postproc: API side active for {what} ({__version__}): writes the chunks; {verdict.reason} "
            f"with FastDeploy's own code ({verdict.seconds * 1e3:.0f} ms){left_text(verdict.left)}"
            f"{unknown_text(verdict.unknown)}"
        )
    return verdict

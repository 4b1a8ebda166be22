"""The entry point of FastDeploy's plug-in group for the API server.

FastDeploy calls the functions of ``fastdeploy.tool_parser_plugins`` while it imports its package, in every
process that does.  Only a process that serves goes on to import the serving code: there, and then, it is
decided whether ours is used (`activation.settle`).
"""

from __future__ import annotations

import functools
import logging
from typing import Any

GROUP = "fastdeploy.tool_parser_plugins"


def register() -> None:
    """Entry point ``fd_postproc`` of FastDeploy's group ``fastdeploy.tool_parser_plugins``.

    Never raises: an exception here would keep FastDeploy from starting.
    """
    try:
        from ...environment import API, DISABLE, is_on
        from ..logs import tell_variables

        tell_variables(logging.getLogger("fd_postproc"))  # FastDeploy's loggers are not there yet
        if is_on(DISABLE) or not is_on(API):
            return
        from ..seams import API_PARTS, SEAMS
        from .chunks.building_blocks import CHAT, COMPLETION
        from .loading import when_loaded

        for name in (CHAT, COMPLETION):
            when_loaded(name, _settle)
        for name, seam in API_PARTS.items():
            for place in seam.modules:
                when_loaded(place, functools.partial(_put_in, name))
        when_loaded(SEAMS["api in use"].modules[0], _tell_what_is_in_use)
    except Exception:
        logging.getLogger("fd_postproc").exception(
            "the API server's side is off: FastDeploy's own code stays"
        )


def _put_in(name: str, module: Any) -> None:
    """Register a part of the plug-in to run when a module has been imported."""
    try:
        from ..logs import api_log
        from ..seams import API, API_PARTS, report

        seam = API_PARTS[name]
        reason = seam.put_in(module)
        if reason is not None and not seam.is_taken:  # what is in use is told while it serves: `in_use`
            report({name: False}, API)
            api_log().info(f"fd_postproc: API side leaves {seam.own} to FastDeploy: {reason}")
    except Exception:
        logging.getLogger("fd_postproc").exception(f"the API server keeps FastDeploy's own {name}")


def _tell_what_is_in_use(module: Any) -> None:
    try:
        from .in_use import install

        install(module)
    except Exception:
        logging.getLogger("fd_postproc").exception("the gauges of the API side are not set")


def _settle(module: object) -> None:
    try:
        from .activation import settle

        settle(module)
    except Exception:
        logging.getLogger("fd_postproc").exception(
            "the API server's side is off: FastDeploy's own code stays"
        )

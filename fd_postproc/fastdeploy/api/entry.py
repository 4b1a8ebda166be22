"""What FastDeploy's entry-point group calls for the API server's side.

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

        if is_on(DISABLE) or not is_on(API):
            return
        from .building_blocks import CHAT, COMPLETION
        from .loading import when_loaded
        from .parts import PARTS

        for name in (CHAT, COMPLETION):
            when_loaded(name, _settle)
        for name, part in PARTS.items():
            when_loaded(part.module, functools.partial(_put_in, name))
    except Exception:
        logging.getLogger("fd_postproc").exception(
            "the API server's side is off: FastDeploy's own code stays"
        )


def _put_in(name: str, module: Any) -> None:
    """Have one of our parts look at a module that was just imported."""
    try:
        from ..logs import api_log, export
        from .parts import PARTS, put_in

        reason = put_in(name, module)
        export("quick_way", "way", f"api {name}", reason is None)
        if reason is not None:
            api_log().info(f"fd_postproc: API side leaves {PARTS[name].what} to FastDeploy: {reason}")
    except Exception:
        logging.getLogger("fd_postproc").exception(f"the API server keeps FastDeploy's own {name}")


def _settle(module: object) -> None:
    try:
        from .activation import settle

        settle(module)
    except Exception:
        logging.getLogger("fd_postproc").exception(
            "the API server's side is off: FastDeploy's own code stays"
        )

"""What FastDeploy's entry-point group calls for the API server's side.

FastDeploy calls the functions of ``fastdeploy.tool_parser_plugins`` while it imports its package, in every
process that does.  Only a process that serves goes on to import the serving code: there, and then, it is
decided whether ours is used (`activation.settle`).
"""

from __future__ import annotations

import logging

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
        from .connections import UTILS
        from .detokenising import PROCESSORS
        from .loading import when_loaded
        from .responses import API_SERVER

        for name in (CHAT, COMPLETION):
            when_loaded(name, _settle)
        when_loaded(UTILS, _connect)
        when_loaded(PROCESSORS, _detokenise)
        when_loaded(API_SERVER, _respond)
    except Exception:
        logging.getLogger("fd_postproc").exception(
            "the API server's side is off: FastDeploy's own code stays"
        )


def _connect(module: object) -> None:
    try:
        from . import connections, unpacking

        connections.settle(module)
        unpacking.settle(module)
    except Exception:
        logging.getLogger("fd_postproc").exception("the API server's connections stay FastDeploy's own")


def _detokenise(module: object) -> None:
    try:
        from .detokenising import settle

        settle(module)
    except Exception:
        logging.getLogger("fd_postproc").exception("texts of new tokens stay FastDeploy's own")


def _respond(module: object) -> None:
    try:
        from .responses import settle

        settle(module)
    except Exception:
        logging.getLogger("fd_postproc").exception("whole answers stay FastDeploy's own")


def _settle(module: object) -> None:
    try:
        from .activation import settle

        settle(module)
    except Exception:
        logging.getLogger("fd_postproc").exception(
            "the API server's side is off: FastDeploy's own code stays"
        )

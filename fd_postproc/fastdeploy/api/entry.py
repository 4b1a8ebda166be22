"""What FastDeploy's entry-point group calls for the API server's side.

FastDeploy calls the functions of ``fastdeploy.tool_parser_plugins`` while it imports its package, in every
process that does.  Only a process that serves goes on to import the serving code: there, and then, it is
decided whether ours is used (`activation.settle`).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
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
        from .connections import UTILS
        from .detokenising import PROCESSORS
        from .loading import when_loaded
        from .responses import API_SERVER

        for name in (CHAT, COMPLETION):
            when_loaded(name, _settle)
        when_loaded(UTILS, _put_in("connections", "the connections"))
        when_loaded(UTILS, _put_in("unpacking", "the unpacking of results"))
        when_loaded(PROCESSORS, _put_in("detokenising", "the texts of new tokens"))
        when_loaded(API_SERVER, _put_in("responses", "the JSON of whole answers"))
    except Exception:
        logging.getLogger("fd_postproc").exception(
            "the API server's side is off: FastDeploy's own code stays"
        )


def _put_in(part: str, what: str) -> Callable[[Any], None]:
    """A function that has ``install`` of one of our parts look at a module that was just imported."""

    def put_in(module: Any) -> None:
        try:
            from ..logs import api_log
            from .plans import NotPlain

            try:
                importlib.import_module(f".{part}", __package__).install(module)
            except (NotPlain, AttributeError, KeyError) as reason:
                api_log().info(f"fd_postproc: API side leaves {what} to FastDeploy: {reason}")
        except Exception:
            logging.getLogger("fd_postproc").exception(f"the API server keeps FastDeploy's own way: {what}")

    return put_in


def _settle(module: object) -> None:
    try:
        from .activation import settle

        settle(module)
    except Exception:
        logging.getLogger("fd_postproc").exception(
            "the API server's side is off: FastDeploy's own code stays"
        )

"""Watches which fast paths the API server uses while it serves, for the gauges.

What was put into a class is not in use where a subclass has another method, where results come one by
one, or where FastDeploy's object has been replaced.  So the objects that serve are asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import seams
from ..logs import api_log
from . import detokenising, parsers
from .connections import UTILS, RequestMap
from .responses import API_SERVER
from .unpacking import UnpackingMsgpack
from .watchdog import watchdog_of

LOOK_S = 5.0
"""Seconds between two checks."""


def parts_in_use(client: Any) -> dict[str, bool]:
    """The fast paths that are in use.

    Parameters
    ----------
    client : EngineClient
        FastDeploy's, of the server that serves.

    Returns
    -------
    dict of str to bool
        By the names of `seams.API_PARTS`.
    """
    utils, manager = sys.modules.get(UTILS), client.connection_manager
    in_batches = getattr(manager, "pull_client", None) is not None
    watchdog = watchdog_of(client)
    processor = type(getattr(client, "data_processor", None))
    return {
        "connections": in_batches and isinstance(manager.request_map, RequestMap),
        "unpacking": in_batches and isinstance(getattr(utils, "msgpack", None), UnpackingMsgpack),
        "watchdog": watchdog is not None and watchdog.knows_engine,
        "detokenising": _is_of(detokenising, getattr(processor, "ids2tokens", None))
        and _has_a_way(getattr(client.data_processor, "tokenizer", None)),
        "parsers": parsers.is_quick(getattr(client, "data_processor", None)),
        "responses": hasattr(_class("JSONResponse"), "is_fd_postproc"),
    }


def _is_of(module: ModuleType, function: Any) -> bool:
    """Whether a function is from one of our modules, or wraps one that is."""
    while function is not None:
        if getattr(function, "__globals__", None) is vars(module):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


@functools.lru_cache(maxsize=4)
def _has_a_way(tokenizer: Any) -> bool:
    """Whether a tokenizer has a fast path."""
    try:
        return detokenising.ways_of(tokenizer).is_quick
    except Exception:  # whatever the trial of a foreign tokenizer raises
        return False


def _program() -> Any:
    """FastDeploy's API server under its start-up name; ``python -m`` gives it another one."""
    main = sys.modules.get("__main__")
    named = getattr(getattr(main, "__spec__", None), "name", None)
    return main if named == API_SERVER else sys.modules.get(API_SERVER)


def _class(name: str) -> Any:
    """One of the response classes of FastDeploy's application."""
    return getattr(_program(), name, None)


def install(module: Any) -> Callable[[], None]:
    """Have FastDeploy's engine client report the server's start; return a function that restores.

    Parameters
    ----------
    module : module
        ``fastdeploy.entrypoints.engine_client``.
    """
    cls = module.EngineClient
    stock = cls.create_zmq_client

    @functools.wraps(stock)
    def create_zmq_client(client: Any, *arguments: Any, **options: Any) -> Any:
        made = stock(client, *arguments, **options)
        with contextlib.suppress(RuntimeError):  # no loop: it does not serve
            begin(client, asyncio.get_running_loop())
        return made

    return seams.install("api in use", (cls, "create_zmq_client", create_zmq_client))


def begin(client: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Install what needs a running program, then check periodically."""
    program = _program()
    if program is not None and program is sys.modules.get("__main__"):
        for seam in seams.API_PARTS.values():
            reason = seam.put_in(program) if seam.is_program else None
            if reason is not None:
                api_log().info(f"fd_postproc: API side leaves {seam.own} to FastDeploy: {reason}")
    told: dict[str, bool] = {}

    def look() -> None:
        try:
            for name, used in parts_in_use(client).items():
                if told.get(name) is not used:
                    told[name] = used
                    seams.report({name: used}, seams.API)
        except Exception:
            api_log().exception("fd_postproc: the look at what is in use failed")
        loop.call_later(LOOK_S, look)

    look()

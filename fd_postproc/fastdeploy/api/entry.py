"""The entry point for FastDeploy's API server, in its plug-in group ``fastdeploy.tool_parser_plugins``.

FastDeploy calls the group's functions in every process that imports its package.  Only a process that serves
imports the serving code later: then the gate decides on each part.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

GROUP = "fastdeploy.tool_parser_plugins"


def register() -> None:
    """Entry point ``fd_postproc`` of FastDeploy's group ``fastdeploy.tool_parser_plugins``.

    Never raises: an exception here would keep FastDeploy from starting.
    """
    try:
        from ...support.environment import API, DISABLE, is_on
        from ..events.log import tell_variables

        tell_variables(logging.getLogger("fd_postproc"))  # FastDeploy's loggers are not there yet
        if is_on(DISABLE) or not is_on(API):
            return
        from ..gate.loading import when_loaded
        from ..gate.seams import API as SIDE
        from ..gate.seams import SEAMS

        for name, seam in SEAMS.items():
            for place in seam.modules if seam.side == SIDE else ():
                when_loaded(place, functools.partial(_put_in, name))
    except Exception:
        logging.getLogger("fd_postproc").exception(
            "the API server's side is off: FastDeploy's own code stays"
        )


def _put_in(name: str, module: Any) -> None:
    """Register a part of the plug-in to run when a module has been imported."""
    try:
        from ..events.gauges import report
        from ..gate.judgements import gate
        from ..gate.seams import SEAMS
        from . import activation
        from .judged import leave

        reason = gate.put_in(SEAMS[name], module)
        if not SEAMS[name].has_path:
            activation.report(module, reason)
            return
        if reason is None:
            return
        is_left = not gate.used[name]
        if is_left:  # what is taken is reported when it serves: `started`
            report({name: False})
        has_own = getattr(module, "__name__", "") in SEAMS["api chunks"].modules  # its classes are its own
        if has_own or is_left:  # one class may be seen in several modules
            leave(name, reason)
    except Exception:
        logging.getLogger("fd_postproc").exception(f"the API server keeps FastDeploy's own part: {name}")


def install(module: Any) -> Callable[[], None]:
    """Have the client that connects begin the watchdog, and report the start; return what restores."""
    from ..events.guard import Guard
    from ..events.log import api_log
    from ..gate import replacements
    from ..gate.judgements import gate
    from ..gate.loading import is_serving
    from .text.joined_results import announce_or_withdraw
    from .text.views import why_not_joined
    from .watchdog import watch

    guard = Guard("api start", api_log, most=None)  # FastDeploy's own runs in any case

    cls = module.EngineClient
    stock = cls.create_zmq_client

    @functools.wraps(stock)
    def create_zmq_client(client: Any, *arguments: Any, **options: Any) -> Any:
        outcome = stock(client, *arguments, **options)
        try:
            if is_serving():
                if gate.used.get("api watchdog"):
                    watch(client)
                started()
                announce_or_withdraw(client, why_not_joined)
        except Exception as error:
            guard.failed(error)
        return outcome

    return replacements.install("api start", (cls, "create_zmq_client", create_zmq_client))


def started() -> None:
    """Install what needs the running program, which ``python -m`` names ``__main__``; set the gauges."""
    from ..events.code_watch import report_known
    from ..events.gauges import report
    from ..gate.judgements import gate
    from ..gate.seams import API, API_PARTS

    main = sys.modules.get("__main__")
    program = getattr(getattr(main, "__spec__", None), "name", None)
    for name, seam in API_PARTS.items():
        if seam.is_program and seam.module == program:
            _put_in(name, main)
    report({name: gate.used.get(name, False) for name in API_PARTS})
    report_known(API)

"""The engine's entry point; only the standard library is imported at load.

FastDeploy evaluates the group once, while it imports its engine, and swallows whatever goes wrong without a
word; so everything that goes wrong here is logged, and FastDeploy's own class returned.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
from typing import Any

from ...support.environment import DISABLE, PEER, is_on
from ..events.log import tell_variables

GROUP = "fastdeploy.token_processor_plugins"
NAME = "fd_postproc"
MODULE = "fastdeploy.output.token_processor"

_handing_over = False


def token_processor() -> type:
    """The token processor's class: ours, another plug-in's if there is one, or FastDeploy's own.

    Whether ours is used is decided when it is constructed (`activation.install_or_fall_back`): many
    processes import the engine without ever constructing it.
    """
    module = importlib.import_module(MODULE)
    log = getattr(module, "llm_logger", logging.getLogger(NAME))
    tell_variables(log)
    if is_on(DISABLE):
        os.environ.pop(PEER.name, None)
        log.info(f"fd_postproc: engine side off: {DISABLE} is set")
        return _stock(module)
    other = _other_plug_in(log)
    if other is not None:
        os.environ.pop(PEER.name, None)
        return other
    try:
        from .processor_class import make_class

        return make_class(module)
    except Exception as error:
        from ..events.gauges import export_active
        from ..events.log import warn
        from ..gate.contract import contract_gap

        os.environ.pop(PEER.name, None)
        export_active("engine", False)
        reason = contract_gap(module) or f"ours cannot be made here: {type(error).__name__}: {error}"
        warn(log, f"engine side falls back, FastDeploy's own token processor is used: {reason}")
        return _stock(module)


def _stock(module: Any) -> type:
    stock: type = module.TokenProcessor
    return stock


def competitors() -> list[importlib.metadata.EntryPoint]:
    """Other projects' plug-ins of the group that FD_PLUGINS allows."""
    allowed = os.environ.get("FD_PLUGINS")
    names = None if allowed is None else allowed.split(",")
    if names == [NAME]:  # the entry points of all packages need not be read
        return []
    return [
        point
        for point in importlib.metadata.entry_points(group=GROUP)
        if point.name != NAME and (names is None or point.name in names)
    ]


def _other_plug_in(log: Any) -> type | None:
    """The class of another plug-in, where FastDeploy's loader does not refuse two of them."""
    global _handing_over
    if _handing_over:  # it hands over to us in its turn
        return None
    _handing_over = True
    try:
        for point in competitors():
            try:
                cls: type = point.load()()
            except Exception as error:
                log.warning(
                    f"fd_postproc: the plug-in {point.name} is passed over, it does not load: {error!r}"
                )
                continue
            log.info(
                f"fd_postproc: engine side hands over to the plug-in {point.name} ({point.value}); to use "
                f"ours instead, leave {point.name} out of FD_PLUGINS"
            )
            return cls
    finally:
        _handing_over = False
    return None

"""The worker side: our save ops where FastDeploy looks its own up.

FastDeploy calls `register` at the end of the import of ``fastdeploy.model_executor.models``, in every worker
process before its first step (and in other processes that import the models, where nobody calls a save op).
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

_OPS = "fastdeploy.model_executor.ops.gpu"


def register() -> None:
    """Entry point ``fd_postproc`` of FastDeploy's group ``fastdeploy.model_register_plugins``.

    Never raises: an exception here would keep FastDeploy from starting.
    """
    try:
        _activate()
    except Exception:
        logging.getLogger("fd_postproc").exception("the worker side is off: FastDeploy's own save ops stay")


def _activate() -> None:
    from ..logs import fastdeploy_log, forward
    from ..options import DISABLE, is_on

    log = fastdeploy_log()
    if is_on(DISABLE):
        log.info("fd_postproc: worker side off: FD_POSTPROC_DISABLE is set")
        return
    if not importlib.import_module("fastdeploy.platforms").current_platform.is_cuda():
        log.info("fd_postproc: worker side off: only FastDeploy's CUDA build has the save ops that it knows")
        return
    forward()
    names = replace_save_ops()
    log.debug("fd_postproc: in place of FastDeploy's save ops: %s", ", ".join(names) or "none are there")


def replace_save_ops() -> list[str]:
    """Put our save ops into the module of FastDeploy's ops, and into all modules that have them already.

    Returns
    -------
    list of str
        Names of those that were replaced.
    """
    from .sending import SIGNATURES, SaveOp

    ops = importlib.import_module(_OPS)
    get_output_ep = getattr(ops, "get_output_ep", None)
    replaced = []
    for name in SIGNATURES:
        original = getattr(ops, name, None)  # FastDeploy says None for ops that could not be loaded
        if not callable(original) or isinstance(original, SaveOp):
            continue
        ours = SaveOp(name, original, get_output_ep)
        setattr(ops, name, ours)
        for module in _modules():
            if vars(module).get(name) is original:
                setattr(module, name, ours)
        replaced.append(name)
    return replaced


def restore_save_ops() -> None:
    """Undo `replace_save_ops`, wherever our ops went since."""
    from ..logs import stop_forwarding
    from .sending import SIGNATURES, SaveOp

    for module in _modules():
        for name in SIGNATURES:
            bound = vars(module).get(name)
            if isinstance(bound, SaveOp):
                setattr(module, name, bound.original)
    stop_forwarding()


def _modules() -> Iterator[Any]:
    """FastDeploy's modules that are loaded, or are being loaded at this moment."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fastdeploy.") and hasattr(module, "__dict__"):
            yield module

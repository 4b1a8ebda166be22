"""The worker's entry point: it installs our save ops where FastDeploy looks its own up.

FastDeploy calls `register` at the end of the import of ``fastdeploy.model_executor.models``, in every worker
process before its first step (and in other processes that import the models but call no save op).
"""

from __future__ import annotations

import importlib
import logging


def register() -> None:
    """Entry point ``fd_postproc`` of FastDeploy's group ``fastdeploy.model_register_plugins``.

    Never raises: an exception here would keep FastDeploy from starting.
    """
    try:
        _activate()
    except Exception:
        logging.getLogger("fd_postproc").exception("the worker side is off: FastDeploy's own save ops stay")


def _activate() -> None:
    from ...support.environment import CUDA, DISABLE, WORKER, is_on
    from ..build import ops_module
    from ..events.log import fastdeploy_log, forward, tell_variables
    from . import kernel_warmup

    log = fastdeploy_log()
    tell_variables(log)
    if is_on(DISABLE) or not is_on(WORKER):
        why = f"{DISABLE} is set" if is_on(DISABLE) else f"{WORKER} is off"
        log.info("fd_postproc: worker side off: %s", why)
        return
    _take_over_streams(log)
    names = replace_save_ops()
    if names:
        forward()
        log.debug("fd_postproc: in place of FastDeploy's save ops: %s", ", ".join(names))
        if ops_module().__name__.endswith(".gpu") and CUDA.text != "0":
            kernel_warmup.begin()
    else:
        log.info("fd_postproc: worker side off: this build of FastDeploy has none of the save ops known here")


def _take_over_streams(log: logging.Logger) -> None:
    """Install frames for steps over ZeroMQ, where the engine reads them there."""
    from ..gate.judgements import gate
    from ..gate.seams import SEAMS
    from .stream_builder import engine_reads_frames

    if engine_reads_frames():
        seam = SEAMS["streams"]
        try:
            reason = gate.put_in(seam, importlib.import_module(seam.module))
        except Exception as error:
            reason = str(error)
        if reason is None:
            log.debug("fd_postproc: in place of FastDeploy's builder of objects")
        else:
            log.warning("fd_postproc: steps over ZeroMQ are left to FastDeploy's objects: %s", reason)


def replace_save_ops() -> list[str]:
    """Install our save ops where FastDeploy's modules have its own; return their names."""
    from ...ops.device import saves
    from ...ops.table import SAVE_OPS
    from ..build import ops_module
    from ..events.gauges import export, export_active
    from ..events.log import fastdeploy_log
    from ..gate import replacements
    from ..gate.called import foreign_layer, place_of
    from .save_ops import SaveOp, report_kernel

    own = ops_module()
    get_output_ep = getattr(own, "get_output_ep", None)
    wanted = []
    for name in SAVE_OPS:
        original = getattr(own, name, None)  # FastDeploy says None for ops that could not be loaded
        if not callable(original) or isinstance(original, SaveOp):
            continue
        wrapper = foreign_layer(original)
        if wrapper is not None:  # it is called; the engine reads every dialect of FastDeploy's op
            by, file, line = place_of(wrapper)
            fastdeploy_log().warning(
                "fd_postproc: %s is wrapped by %s (line %d of %s): it stays, with FastDeploy's own op",
                name, by, line, file,
            )  # fmt: skip
            export_active("worker", False)
            export("known", "side", "worker", False)
            continue
        wanted.append((name, original, SaveOp(name, original, get_output_ep)))
    if wanted:
        if report_kernel not in saves.proof.listeners:
            saves.proof.listeners.append(report_kernel)
        there = [(own, name, ours) for name, _, ours in wanted]
        replacements.install("save ops", *there, *replacements.everywhere(*wanted))
    return [name for name, *_ in wanted]

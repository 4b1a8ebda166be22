"""Which quick ways are taken: beside a FastDeploy that has changed the plug-in stays right, and gets slow."""

from __future__ import annotations

from typing import Any

from ..logs import export
from ..ways import text_of
from ._results import Plan, Sums
from .contract import Examined


def ways_of_classes(fd: Any, plan: Plan) -> dict[str, bool]:
    """Those that FastDeploy's classes decide.

    Parameters
    ----------
    fd : module
        With the names of ``fastdeploy.output.token_processor``.
    plan : Plan

    Returns
    -------
    dict of str to bool
        By the names of `WAYS`.
    """
    ours = (plan.results, plan.outputs, plan.metrics)
    sums = Sums()
    metrics = getattr(fd, "main_process_metrics", None)
    if metrics is not None:
        sums.fuse(metrics.time_per_output_token, metrics.generation_tokens_total)
    return {
        "dictionaries": all("to_dict" in vars(copier.cls) for copier in ours),
        "stamps": plan.inline_stamps,
        "metrics": sums.fused,
    }


def ways_of(processor: Examined) -> dict[str, bool]:
    """All of a token processor that is about to run.

    Without a scheduler's log there is none for it.
    """
    ways = ways_of_classes(processor.fd, processor.plan)
    steady = processor.steady_mode()
    ways["stamps"] = ways["stamps"] and steady is not None
    ways["metrics"] = ways["metrics"] and steady is not None and steady.metrics is not None
    ways["delivery"] = processor.quick_delivery() is not None
    if steady is not None and (steady.decode_log or steady.log_decoding):
        ways["decode log"] = steady.decode_log is not None
    return ways


def tell(processor: Examined) -> None:
    """Log and export which are taken."""
    ways = ways_of(processor)
    log = processor.fd.llm_logger
    (log.info if all(ways.values()) else log.warning)(f"fd_postproc: {text_of(ways)}")
    for name, is_on in ways.items():
        export("quick_way", "way", name, is_on)

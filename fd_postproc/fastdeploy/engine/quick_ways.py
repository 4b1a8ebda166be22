"""Which quick ways are taken: beside a FastDeploy that has changed the plug-in stays right, and gets slow."""

from __future__ import annotations

from typing import Any

from ...environment import KEEP_POLLING, is_on
from ..logs import export
from ..ways import text_of
from ._results import Plan, Sums
from .contract import Examined
from .deliveries import collection_of
from .messages import BATCH, Packing, method_in_use
from .send_loop import SendLoop
from .wake_up import waits_in


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

    Left out is what is not there: a scheduler's log, the wake-up where the environment forbids it, messages
    where FastDeploy sends no msgpack, the sender's loop where it sends no batches.
    """
    ways = ways_of_classes(processor.fd, processor.plan)
    steady = processor.steady_mode()
    ways["stamps"] = ways["stamps"] and steady is not None
    ways["metrics"] = ways["metrics"] and steady is not None and steady.metrics is not None
    ways["delivery"] = processor.quick_delivery() is not None
    scheduler = processor.cached_generated_tokens
    if not is_on(KEEP_POLLING):  # the operator knows
        ways["wake-up"] = waits_in(scheduler, processor.plan) is not None
    method = method_in_use(processor.fd.envs)
    packing = processor.packing or Packing(processor.plan)
    if method is not None and packing.module is not None:
        ways["messages"] = method in packing.methods
    send_loop = processor.send_loop or SendLoop(processor.plan)
    if method == BATCH and send_loop.service is not None:
        ways["fetching"] = collection_of(scheduler, processor.plan) is not None
        ways["sending"] = send_loop.stock is not None
    if steady is not None and (steady.decode_log or steady.log_decoding):
        ways["decode log"] = steady.decode_log is not None
    return ways


def tell(processor: Examined) -> None:
    """Log and export which are taken."""
    ways = ways_of(processor)
    log = processor.fd.llm_logger
    (log.info if all(ways.values()) else log.warning)(f"fd_postproc: {text_of(ways)}")
    for name, taken in ways.items():
        export("quick_way", "way", name, taken)

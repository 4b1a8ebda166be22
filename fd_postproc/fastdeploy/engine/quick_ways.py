"""Which quick ways are taken: beside a FastDeploy that has changed the plug-in stays right, and gets slow."""

from __future__ import annotations

from typing import Any

from ..logs import export
from ._results import Plan, Sums
from .deliveries import delivery_to

WAYS = {
    "dictionaries": "results become dictionaries by a template, not by FastDeploy's to_dict",
    "stamps": "requests are advanced in one loop, which sets the four known time stamps",
    "metrics": "a step's samples of FastDeploy's metrics are summed up, not observed one by one",
    "delivery": "a step's results go into FastDeploy's scheduler at once, not one by one",
    "decode log": "the scheduler's log is told of a step's tokens in one call, not of each request's",
}


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
    sums = Sums(None)
    metrics = getattr(fd, "main_process_metrics", None)
    if metrics is not None:
        sums.fuse(metrics.time_per_output_token, metrics.generation_tokens_total)
    return {
        "dictionaries": all("to_dict" in vars(copier.cls) for copier in ours),
        "stamps": plan.inline_stamps,
        "metrics": sums.fused,
    }


def ways_of(processor: Any) -> dict[str, bool]:
    """All of a token processor that is about to run.

    Without a scheduler's log there is none for it.
    """
    ways = ways_of_classes(processor.fd, processor.plan)
    steady = processor.steady_mode()
    ways["stamps"] = ways["stamps"] and steady is not None
    ways["metrics"] = ways["metrics"] and steady is not None and steady.metrics is not None
    ways["delivery"] = delivery_to(processor.cached_generated_tokens, processor.plan) is not None
    if steady is not None and steady.decode_log is not None:
        ways["decode log"] = steady.sums_decode_log
    return ways


def text_of(ways: dict[str, bool]) -> str:
    """For the log and the doctor."""
    off = [name for name, is_on in ways.items() if not is_on]
    if not off:
        return f"every quick way is taken ({', '.join(ways)})"
    reasons = "; ".join(f"{name} (elsewhere {WAYS[name]})" for name in off)
    return (
        "results are right, but slower than they could be: this FastDeploy differs where a quick way begins: "
        f"{reasons}; please report it, with FastDeploy's version"
    )


def tell(processor: Any) -> None:
    """Log and export which are taken."""
    ways = ways_of(processor)
    log = processor.fd.llm_logger
    (log.info if all(ways.values()) else log.warning)(f"fd_postproc: {text_of(ways)}")
    for name, is_on in ways.items():
        export("quick_way", "way", name, is_on)

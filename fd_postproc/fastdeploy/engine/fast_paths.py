"""Detects which fast paths apply; without them the plug-in is right, but slow."""

from __future__ import annotations

import sys
from typing import Any

from ...support.environment import KEEP_POLLING, is_on
from ..events.code_watch import report_known
from ..events.gauges import report
from ..gate.judgements import gate
from ..gate.seams import ENGINE, text_of
from .delivery.sending import ENGINE as MODULE
from .delivery.sending import sends_batches
from .delivery.wake_up import waits_in
from .processor.host import Host
from .results._results import Plan, Sums


def paths_of_classes(fd: Any, plan: Plan) -> dict[str, bool]:
    """The fast paths that depend on FastDeploy's classes only, by the names of `seams.SEAMS`."""
    sums = Sums()
    metrics = getattr(fd, "main_process_metrics", None)
    if metrics is not None:
        sums.fuse(metrics)
    return {
        "dictionaries": plan.has_dictionaries,
        "stamps": plan.inline_stamps,
        "metrics": sums.fused,
    }


def paths_of(processor: Host) -> dict[str, bool]:
    """All fast paths of a token processor that is about to run.

    Left out is what is not there: a scheduler's log, the wake-up where the environment forbids it, the
    sender's loop where it sends no batches.
    """
    taken = paths_of_classes(processor.fd, processor.plan)
    steady = processor.parts.steps.steady_mode()
    taken["stamps"] = taken["stamps"] and steady is not None
    taken["metrics"] = taken["metrics"] and steady is not None and steady.metrics is not None
    scheduler, delivery = processor.cached_generated_tokens, processor.parts.pairing.delivery
    taken["delivery"] = delivery.handover_in(scheduler) is not None
    if not is_on(KEEP_POLLING):  # the operator knows
        taken["wake-up"] = waits_in(scheduler) is not None
    scheduling = processor.parts.lifecycle.scheduling
    if scheduling.applies:
        taken["scheduling"] = scheduling.is_installed
    if sends_batches(processor.fd.envs) and MODULE in sys.modules:
        # Without a service the engine is made of other parts, with another loop.
        taken["sending"] = delivery.service is not None and delivery.sending is not None
    if steady is not None and (steady.decode_log or steady.log_decoding):
        taken["decode log"] = steady.decode_log is not None
    return taken


def report_taken(processor: Host) -> None:
    """Log and export the active fast paths."""
    taken = paths_of(processor)
    log = processor.fd.llm_logger
    text = text_of(taken, gate.why_left(taken))
    (log.info if all(taken.values()) else log.warning)(f"fd_postproc: {text}")
    report(taken)
    report_known(ENGINE)

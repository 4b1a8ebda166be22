"""Detects which fast paths apply; without them the plug-in is right, but slow."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any, Protocol

from ...environment import KEEP_POLLING, is_on
from ..introspection import names_of
from ..seams import ENGINE, report, text_of
from .delivery.sending import ENGINE as MODULE
from .delivery.sending import KNOWN_NAMES, LOOP, SEND, SERVER, sends_batches
from .delivery.wake_up import waits_in
from .results._results import Plan, Sums

if TYPE_CHECKING:
    from ..contract import Module, Scheduler
    from .delivery.delivery import Delivery
    from .results.step_context import SteadyMode


class Examined(Protocol):
    """A processor that is about to run."""

    fd: Module
    plan: Plan
    cached_generated_tokens: Scheduler
    delivery: Delivery

    def steady_mode(self) -> SteadyMode | None: ...


def paths_of_classes(fd: Any, plan: Plan) -> dict[str, bool]:
    """The fast paths that depend on FastDeploy's classes only.

    Parameters
    ----------
    fd : module
        With the names of ``fastdeploy.output.token_processor``.
    plan : Plan

    Returns
    -------
    dict of str to bool
        By the names of `seams.SEAMS`.
    """
    ours = (plan.results, plan.outputs, plan.metrics)
    sums = Sums()
    metrics = getattr(fd, "main_process_metrics", None)
    if metrics is not None:
        sums.fuse(metrics)
    return {
        "dictionaries": all("to_dict" in vars(copier.cls) for copier in ours),
        "stamps": plan.inline_stamps,
        "metrics": sums.fused,
    }


def paths_of(processor: Examined) -> dict[str, bool]:
    """All fast paths of a token processor that is about to run.

    Left out is what is not there: a scheduler's log, the wake-up where the environment forbids it, the
    sender's loop where it sends no batches.
    """
    taken = paths_of_classes(processor.fd, processor.plan)
    steady = processor.steady_mode()
    taken["stamps"] = taken["stamps"] and steady is not None
    taken["metrics"] = taken["metrics"] and steady is not None and steady.metrics is not None
    scheduler, delivery = processor.cached_generated_tokens, processor.delivery
    taken["delivery"] = delivery.handover_in(scheduler) is not None
    if not is_on(KEEP_POLLING):  # the operator knows
        taken["wake-up"] = waits_in(scheduler, processor.plan) is not None
    if sends_batches(processor.fd.envs) and MODULE in sys.modules:
        # Without a service the engine is made of other parts, with another loop.
        taken["sending"] = delivery.service is not None and delivery.sending is not None
    if steady is not None and (steady.decode_log or steady.log_decoding):
        taken["decode log"] = steady.decode_log is not None
    return taken


def why_left(taken: dict[str, bool], scheduler: type) -> dict[str, str]:
    """Why paths out of the engine are left to FastDeploy: new names in its code, or a difference.

    Parameters
    ----------
    taken : dict of str to bool
        Of `paths_of`.
    scheduler : type
        FastDeploy's.
    """
    server = getattr(sys.modules.get(SERVER), "ZmqServerBase", None)
    service = getattr(sys.modules.get(MODULE), "EngineService", None)
    places = {
        "delivery": ((scheduler, "put_results"), (scheduler, "get_results")),
        "sending": ((service, LOOP), (server, SEND)),
    }
    told = {}
    for name, functions in places.items():
        if taken.get(name, True):
            continue
        found = [(method, getattr(cls, method, None)) for cls, method in functions]
        missing = [method for method, function in found if not isinstance(function, types.FunctionType)]
        new = {
            method: sorted(names_of(function.__code__) - KNOWN_NAMES)
            for method, function in found
            if isinstance(function, types.FunctionType)
        }
        looks = [f"{method} looks at {', '.join(names)}" for method, names in new.items() if names]
        gone = [f"there is no {method} where this release looks for it" for method in missing]
        told[name] = "; ".join(gone + looks) or f"{' or '.join(new)} differs in the trial"
    return told


def tell(processor: Examined) -> None:
    """Log and export the active fast paths."""
    taken = paths_of(processor)
    log = processor.fd.llm_logger
    told = text_of(taken, why=why_left(taken, type(processor.cached_generated_tokens)))
    (log.info if all(taken.values()) else log.warning)(f"fd_postproc: {told}")
    report(taken, ENGINE)

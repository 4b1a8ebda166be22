"""Decides whether our token processor is active, tells the workers, and logs the decision."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..._version import __version__
from ...environment import COMPACT, DISABLE, DRAFTS, FORCE, PEER, STREAMS, is_on
from ...flight.codes import Kind
from ...flight.recorder import Recorder
from ...layout import Channel
from ...queues import queue_id_from_env
from ..build import KeyRule, key_rule, ops_module
from ..logs import export, export_active, warn
from ..seams import ASIDE_COST, unknown_text
from ..trial.compatibility import check
from ..trial.result import TrialResult

OTHER_KEYS = "this build's ops make the keys of queues by another rule, so its workers' queue is not ours"
UNKNOWN_KEYS = (
    "it cannot be found out by which rule this build's ops make the keys of queues: get_output_ep, the op "
    "that tells, is missing or fails"
)


def decide(module: Any, make_class: Callable[[Any], type], speculative: bool = False) -> TrialResult:
    """Decide whether our class is active.

    Parameters
    ----------
    module : module
        ``fastdeploy.output.token_processor``.
    make_class : callable
        ``make_class(module)`` gives our class, a subclass of ``module.TokenProcessor``.
    speculative : bool
        Whether it decodes speculatively, of which FastDeploy sends nothing over ZeroMQ.

    Returns
    -------
    TrialResult
        `compatible` is the decision; if `forced`, the reason tells of a difference nevertheless.
        Never raises.
    """
    try:
        reason = _not_served(module)
        if reason:
            return TrialResult(False, reason)
        verdict = check(module, make_class, speculative)
        if verdict.compatible and not module.envs.FD_USE_GET_SAVE_OUTPUT_V1:
            # The ops by which stock workers send must find the queue that our receiver opens.
            rule = key_rule(getattr(ops_module(), "get_output_ep", None))
            if rule is not KeyRule.OURS:
                reason = OTHER_KEYS if rule is KeyRule.OTHER else UNKNOWN_KEYS
                verdict = replace(verdict, compatible=False, reason=reason)
    except Exception as error:
        return TrialResult(False, f"cannot tell: {type(error).__name__}: {error}")
    if not verdict.compatible and is_on(FORCE):
        return replace(verdict, compatible=True, forced=True)
    return verdict


def _not_served(module: Any) -> str | None:
    """Reason to stay inactive regardless of compatibility; None if there is none."""
    if is_on(DISABLE):
        return f"switched off by {DISABLE}"
    return None


def announce_peer(active: bool, streamed: bool = False, drafts: bool = False) -> None:
    """Announce the supported frames to the workers, which inherit this process's environment.

    FastDeploy starts its workers after it has constructed the token processor, in every version.
    """
    if active:
        words = {
            COMPACT: True,
            STREAMS: streamed,
            DRAFTS: streamed and drafts,
        }
        os.environ[PEER.name] = ",".join(word for word, meant in words.items() if meant)
    else:
        os.environ.pop(PEER.name, None)


def _record(channel: Channel, text: str, log: Any) -> None:
    """Write a flight recorder's file that says why nothing else is recorded."""
    try:
        recorder = Recorder.begin("engine", channel, queue_id_from_env(), log, size=1 << 16)
    except ValueError:  # the queue's number, which others complain of
        return
    recorder.event(Kind.STOOD_ASIDE, text=text)
    recorder.end()


def settle(processor: Any, module: Any, stock: type, make_class: Callable[[Any], type]) -> TrialResult:
    """Decide for a token processor that was just constructed; a fallback makes it FastDeploy's own.

    Parameters
    ----------
    processor : TokenProcessor
        An instance of our class.
    module : module
        ``fastdeploy.output.token_processor``.
    stock : type
        FastDeploy's class, of which ours is a subclass.
    make_class : callable
        What ours was made with: the trial makes it again, over a copy of the module.
    """
    channel = processor.channel
    speculative = bool(processor.cfg.speculative_config.method)
    verdict = decide(module, make_class, speculative)
    announce_peer(verdict.compatible, bool(module.envs.FD_USE_GET_SAVE_OUTPUT_V1), speculative)
    for name, value in verdict.traits.items():
        setattr(type(processor), name, value)
    export_active("engine", verdict.compatible)
    export("known", "side", "engine", not verdict.unknown)
    log = module.llm_logger
    if not verdict.compatible:
        processor.__class__ = stock
        text = f"engine side stands aside, FastDeploy's own token processor is used: {verdict.reason}"
        if is_on(DISABLE):  # the operator knows
            log.info(f"fd_postproc: {text}")
        else:
            warn(log, f"{text}; {ASIDE_COST}")
            _record(channel, text, log)
    elif verdict.forced:
        log.warning(
            f"fd_postproc: engine side active ({__version__}) because {FORCE} is set, although it differs "
            f"from FastDeploy's own token processor: {verdict.reason}"
        )
    else:
        log.info(
            f"fd_postproc: engine side active ({__version__}): receives the tokens and makes the results; "
            f"{verdict.reason} with FastDeploy's own class ({verdict.seconds * 1e3:.0f} ms); this FastDeploy "
            f"has: {', '.join(verdict.features)}{unknown_text(verdict.unknown)}"
        )
    return verdict

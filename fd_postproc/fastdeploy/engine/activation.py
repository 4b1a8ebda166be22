"""Decides whether our token processor is active, informs the workers, and logs the decision."""

from __future__ import annotations

import os
import secrets
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..._version import __version__
from ...core.layout import Channel
from ...errors import QueueError
from ...flight.codes import Kind
from ...flight.recorder import Recorder
from ...queues import queue_id_from_env
from ...support.environment import (
    COMPACT,
    DISABLE,
    DRAFTS,
    PEER,
    SERVICE,
    STREAMS,
    WORKER,
    is_on,
    service_number,
)
from ..build import KeyRule, key_rule, ops_module
from ..events.gauges import export, export_active, report, set_unreadable_aside
from ..events.log import warn
from ..gate.contract import contract_gap
from ..gate.judgements import gate
from ..gate.seams import ASIDE_COST
from .delivery.delivery import Delivery
from .delivery.wake_up import WakeUp

SEAM = "token processor"
OTHER_KEYS = "this build's ops make the keys of queues by another rule, so its workers' queue is not ours"
UNKNOWN_KEYS = (
    "it cannot be found out by which rule this build's ops make the keys of queues: get_output_ep, the op "
    "that tells, is missing or fails"
)


@dataclass(frozen=True)
class Decision:
    """Whether our class is used, and the reason where it is not."""

    compatible: bool
    reason: str = ""  # one sentence in plain words
    unknown: tuple[str, ...] = ()  # FastDeploy's functions with new code
    asked_later: str = ""  # why FastDeploy's ops could not be asked for the keys of their queues yet


_SOCKET = frozenset(
    {
        *("TokenProcessor.process_sampling_results_use_zmq", "TokenProcessor._process_batch_output_use_zmq"),
        *("TokenProcessor._reschedule_preempt_task_use_zmq", "TokenProcessor._process_per_token"),
        "inter_communicator.zmq_server:ZmqIpcServer.recv_pyobj",
    }
)
_QUEUE = frozenset({"TokenProcessor.process_sampling_results", "TokenProcessor._process_batch_output"})
"""FastDeploy's functions by which steps come as objects, or as messages of a queue."""


def decide(module: Any, speculative: bool = False) -> Decision:
    """Decide whether our class is active; never raises.

    FastDeploy itself sends nothing of `speculative` decoding over ZeroMQ.
    """
    try:
        reason = f"switched off by {DISABLE}" if is_on(DISABLE) else contract_gap(module)
        if reason:
            return Decision(False, reason)
        socket = bool(getattr(module.envs, "FD_USE_GET_SAVE_OUTPUT_V1", False))
        without = _SOCKET if not socket else frozenset() if speculative else _QUEUE
        verdict = gate.judge(SEAM, module, without)
        if verdict.reason:
            return Decision(False, verdict.reason, unknown=tuple(one.function for one in verdict.unknown))
        if not socket:
            # The ops by which stock workers send must find the queue that our receiver opens.
            try:
                other = other_keys()
            except QueueError as error:
                return Decision(True, asked_later=str(error))
            if other:
                return Decision(False, other)
        return Decision(True)
    except Exception as error:
        return Decision(False, f"cannot tell: {type(error).__name__}: {error}")


def other_keys() -> str:
    """Why our receiver would open another queue than FastDeploy's ops; empty if it would not.

    Raises QueueError if the kernel makes no queue at all at present.
    """
    rule = key_rule(getattr(ops_module(), "get_output_ep", None))
    return {KeyRule.OURS: "", KeyRule.OTHER: OTHER_KEYS, KeyRule.UNKNOWN: UNKNOWN_KEYS}[rule]


def announce_peer(active: bool, streamed: bool = False, drafts: bool = False, rank: int = 0) -> None:
    """Announce the supported frames to the workers, which inherit this process's environment.

    FastDeploy starts its workers after it has constructed the token processor, in every version.  Among the
    words is the service's number, a random one.  A process that inherits one keeps it.  The engine of a data
    parallel `rank` from 1 on makes none, and takes frames of any: the first rank's engine, which may be a
    process beside it, starts the workers of all ranks.
    """
    if active:
        number = service_number(os.environ.get(PEER.name, ""))
        if not number and rank == 0:
            number = secrets.randbelow((1 << 32) - 1) + 1
        words = {
            COMPACT: True,
            STREAMS: streamed,
            DRAFTS: streamed and drafts and is_on(WORKER),
            f"{SERVICE}{number:08x}": number != 0,
        }
        os.environ[PEER.name] = ",".join(word for word, meant in words.items() if meant)
    else:
        os.environ.pop(PEER.name, None)


def _record(processor: Any, channel: Channel, text: str, log: Any) -> None:
    """Write a flight recorder's file that says why nothing else is recorded; it ends with the processor."""
    try:
        recorder = Recorder.begin("engine", channel, queue_id_from_env(), log, size=1 << 16)
    except ValueError:  # the queue's number, which others complain of
        return
    recorder.event(Kind.FELL_BACK, text=text)
    weakref.finalize(processor, recorder.end)


def install_or_fall_back(processor: Any, module: Any, stock: type) -> Decision:
    """Decide for a token processor that was just constructed; a fallback makes it FastDeploy's own.

    Its class is ours, a subclass of `stock`, and `module` is ``fastdeploy.output.token_processor``.
    """
    channel = processor.channel
    speculative = bool(processor.cfg.speculative_config.method)
    decision = decide(module, speculative)
    if decision.compatible and type(processor.tokens_counter) not in (dict, Counter):
        decision = Decision(False, "its tokens_counter is of a class that is not known here")
    rank = getattr(getattr(processor.cfg, "parallel_config", None), "local_data_parallel_id", 0)
    announce_peer(decision.compatible, bool(module.envs.FD_USE_GET_SAVE_OUTPUT_V1), speculative, rank)
    export_active("engine", decision.compatible)
    export("known", "side", "engine", not decision.unknown)
    log = module.llm_logger
    if not is_on(DISABLE):
        _mend_page(log)
    if decision.compatible:
        log.info(
            f"fd_postproc: engine side active ({__version__}): receives the tokens and makes the results; "
            "this FastDeploy's code is known"
        )
        if decision.asked_later:
            processor.parts.queue.ask_for_keys = other_keys
            warn(log, f"{decision.asked_later}; the engine waits until one can be made")
        return decision
    plan = processor.plan
    processor.__class__ = stock
    text = f"engine side falls back, FastDeploy's own token processor is used: {decision.reason}"
    if is_on(DISABLE):  # the operator knows
        log.info(f"fd_postproc: {text}")
    else:
        warn(log, f"{text}; {ASIDE_COST}")
        _record(processor, channel, text, log)
        _take_way_out(processor, plan, log)
    return decision


def _mend_page(log: Any) -> None:
    """Have FastDeploy's page of metrics readable after processes that left files that are not."""
    try:
        set_unreadable_aside(lambda text: log.error(f"fd_postproc: {text}"))
    except Exception as error:
        log.error(f"fd_postproc: the files of metrics were not looked at: {type(error).__name__}: {error}")


def _take_way_out(processor: Any, plan: Any, log: Any) -> None:
    """Take over the scheduler's wait and the sender's loop, beside FastDeploy's own token processor.

    Both are restored when the processor goes.
    """
    try:
        scheduler = processor.cached_generated_tokens
        delivery, wake_up = Delivery(plan, scheduler), WakeUp(scheduler)
        weakref.finalize(processor, delivery.end)
        weakref.finalize(processor, wake_up.end)
        delivery.begin()
        wake_up.begin()
        taken = {"sending": delivery.is_installed, "wake-up": wake_up.is_installed}
        report(taken)
        inside = ", ".join(name for name, is_in in taken.items() if is_in)
        log.info(f"fd_postproc: active beside FastDeploy's own token processor: {inside or 'nothing'}")
    except Exception as error:
        log.error(f"fd_postproc: FastDeploy's own way out stays: {type(error).__name__}: {error}")

"""The quick way into FastDeploy's scheduler, where that is known to do the same."""

from __future__ import annotations

import logging
import sys
import threading
import types
from typing import Any

from ._results import Delivery, Plan

KNOWN_NAMES = frozenset(
    {
        "scheduler_logger", "debug", "info", "warning", "log_request", "RequestLogLevel", "CONTENT",
        "ScheduledResponse", "raw", "request_id", "finished", "len", "append",
        "mutex", "requests", "responses", "batch_responses_per_step", "responses_not_empty", "notify_all",
    }
)  # fmt: skip
"""What ``LocalScheduler.put_results`` has been seen to look at; one that looks at more may mean more."""


def delivery_to(scheduler: Any, plan: Plan) -> Delivery | None:
    """A quick ``put_results`` of a scheduler.

    Parameters
    ----------
    scheduler : object
        FastDeploy's, or whatever stands in its place.
    plan : Plan

    Returns
    -------
    Delivery or None
        None unless its class is known to do what `Delivery` does: by the names in its code, and by what both
        do with the same results, tried on two schedulers made up for that.
    """
    try:
        made = _delivery(scheduler, plan)
        return made if made is not None and _does_the_same(made, plan) else None
    except Exception:  # another scheduler, whatever it is
        return None


def _delivery(scheduler: Any, plan: Plan) -> Delivery | None:
    stock = getattr(type(scheduler), "put_results", None)
    if not isinstance(stock, types.FunctionType) or not _names(stock.__code__) <= KNOWN_NAMES:
        return None
    response, log = stock.__globals__["ScheduledResponse"], stock.__globals__["scheduler_logger"]
    if response.__setattr__ is not object.__setattr__:
        return None
    return Delivery(scheduler, stock, response, log, sys.modules[response.__module__].time.time, plan.results)


def _names(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


class _Bell:
    """A condition that notes whether it was notified, and under the lock."""

    def __init__(self, mutex: Any) -> None:
        self.mutex, self.rung = mutex, []  # type: ignore[var-annotated]

    def notify_all(self) -> None:
        self.rung.append(self.mutex.locked())


def _made_up(cls: type) -> Any:
    scheduler: Any = object.__new__(cls)
    scheduler.mutex = threading.Lock()
    scheduler.responses_not_empty = _Bell(scheduler.mutex)
    scheduler.requests = dict.fromkeys(("one", "two"), object())
    scheduler.responses = {"one": []}
    scheduler.batch_responses_per_step = []
    return scheduler


def _does_the_same(delivery: Delivery, plan: Plan) -> bool:
    """Whether both leave the same behind."""
    if delivery.log.isEnabledFor(logging.DEBUG):
        return False
    names = ("one", "two", "two")
    results = [plan.new_result(slot, 1, name, 3, None) for slot, name in enumerate(names)]
    cls = type(delivery.scheduler)
    theirs, ours = _made_up(cls), _made_up(cls)
    theirs.put_results(results)
    done = Delivery(ours, delivery.stock, delivery.response, delivery.log, delivery.time, plan.results).put(
        results
    )
    return done and _left_behind(theirs, delivery) == _left_behind(ours, delivery)


def _left_behind(scheduler: Any, delivery: Delivery) -> Any:
    return {
        **vars(scheduler),
        "mutex": scheduler.mutex.locked(),
        "responses_not_empty": scheduler.responses_not_empty.rung,
        "requests": list(scheduler.requests),
        "responses": [
            (name, [_shown(response, delivery) for response in waiting])
            for name, waiting in scheduler.responses.items()
        ],
        "batch_responses_per_step": [list(map(id, step)) for step in scheduler.batch_responses_per_step],
    }


def _shown(response: Any, delivery: Delivery) -> Any:
    """A wrapped result; its time, which is that of the call, as whether it is one."""
    attributes = dict(vars(response))
    recent = abs(delivery.time() - attributes.pop("schedule_time")) < 60
    return type(response), id(attributes.pop("raw")), attributes, recent

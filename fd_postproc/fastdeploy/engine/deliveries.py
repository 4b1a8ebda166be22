"""The quick ways into FastDeploy's scheduler and out of it, where they are known to do the same."""

from __future__ import annotations

import logging
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from ._results import Collection, Delivery, Plan
from .apart import Notes, apart, names_of

KNOWN_NAMES = frozenset(
    {
        "scheduler_logger", "debug", "info", "warning", "log_request", "RequestLogLevel", "CONTENT",
        "ScheduledResponse", "raw", "request_id", "finished", "len", "append",
        "mutex", "requests", "responses", "batch_responses_per_step", "responses_not_empty", "notify_all",
    }
)  # fmt: skip
"""What ``LocalScheduler.put_results`` has been seen to look at; one that looks at more may mean more."""

NAMES_OF_FETCHING = frozenset(
    {
        "scheduler_logger", "debug", "info", "warning", "log_request", "RequestLogLevel", "CONTENT",
        "responses", "batch_responses_per_step", "responses_not_empty", "wait_for", "wait_response_timeout",
        "dict", "list", "items", "append", "raw", "finished", "_recycle",
        "envs", "FD_ENABLE_INTERNAL_ADAPTER",
    }
)  # fmt: skip
"""The same of ``get_results``."""


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
        return made if made is not None and _delivers_the_same(made, plan) else None
    except Exception:  # another scheduler, whatever it is
        return None


def collection_of(scheduler: Any, plan: Plan) -> Collection | None:
    """A quick ``get_results`` of a scheduler, but for the internal adapter; None unless known, as above."""
    try:
        stock = getattr(type(scheduler), "get_results", None)
        if not isinstance(stock, types.FunctionType) or not names_of(stock.__code__) <= NAMES_OF_FETCHING:
            return None
        log = stock.__globals__["scheduler_logger"]
        if log.isEnabledFor(logging.DEBUG):
            return None
        same = _fetched(type(scheduler), stock, plan, False) == _fetched(type(scheduler), stock, plan, True)
        return Collection(stock, log, plan.results) if same else None
    except Exception:
        return None


def _delivery(scheduler: Any, plan: Plan) -> Delivery | None:
    stock = getattr(type(scheduler), "put_results", None)
    if not isinstance(stock, types.FunctionType) or not names_of(stock.__code__) <= KNOWN_NAMES:
        return None
    response, log = stock.__globals__["ScheduledResponse"], stock.__globals__["scheduler_logger"]
    if response.__setattr__ is not object.__setattr__:
        return None
    return Delivery(scheduler, stock, response, log, sys.modules[response.__module__].time.time, plan.results)


# ---- The trials --------------------------------------------------------------------------------------------


class _Bell:
    """A condition that does not wait, and notes whether it was notified, and under the lock."""

    def __init__(self, mutex: Any) -> None:
        self.mutex, self.rung = mutex, []  # type: ignore[var-annotated]

    def __enter__(self) -> Any:
        return self.mutex.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.mutex.__exit__(*error)

    def notify_all(self) -> None:
        self.rung.append(self.mutex.locked())

    def wait_for(self, predicate: Any, timeout: float) -> Any:
        self.rung.append(timeout)
        return predicate()


def _made_up(cls: type) -> Any:
    scheduler: Any = object.__new__(cls)
    scheduler.mutex = threading.Lock()
    scheduler.responses_not_empty = _Bell(scheduler.mutex)
    scheduler.requests = dict.fromkeys(("one", "two"), object())
    scheduler.responses = {"one": []}
    scheduler.batch_responses_per_step = []
    scheduler.wait_response_timeout = 12.5
    return scheduler


def _results(plan: Plan) -> Iterator[list[Any]]:
    """Results of two steps; a request ends with the second."""
    for names in (("one", "two", "two"), ("two", "one")):
        results = [plan.new_result(slot, 1, name, 3, None) for slot, name in enumerate(names)]
        if len(names) == 2:
            results[0].finished = True
        yield results


def _told_apart(function: Any) -> tuple[Any, Notes]:
    """A function of a scheduler, and what it logs."""
    notes = Notes()
    names = {name: notes for name in ("scheduler_logger", "log_request") if name in function.__globals__}
    return apart(function, **names), notes


def _delivers_the_same(delivery: Delivery, plan: Plan) -> bool:
    """Whether both leave the same behind, and tell the same."""
    if delivery.log.isEnabledFor(logging.DEBUG):
        return False
    cls = type(delivery.scheduler)
    theirs, ours = _made_up(cls), _made_up(cls)
    stock, told = _told_apart(delivery.stock)
    counted, told_by_ours = _told_apart(delivery.stock)
    quick = Delivery(ours, counted, delivery.response, delivery.log, delivery.time, plan.results)
    for results in _results(plan):
        stock(theirs, results)
        if not quick.delivered(results) or _left_behind(theirs, delivery) != _left_behind(ours, delivery):
            return False
    return _but_debug(told) == _but_debug(told_by_ours)


def _but_debug(told: Notes) -> list[Any]:
    return [line for line in told.lines if line[0] != "debug"]


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


def _fetched(cls: type, stock: Any, plan: Plan, quick: bool) -> list[Any]:
    """What comes of fetching: results, what is recycled, what is told, what is left behind."""
    stock, told = _told_apart(stock)
    adapter = types.SimpleNamespace(FD_ENABLE_INTERNAL_ADAPTER=0)
    stock.__globals__["envs"] = adapter
    scheduler = _made_up(cls)
    recycled: list[Any] = []
    seen: list[Any] = []
    scheduler._recycle = lambda *names: recycled.append((names, scheduler.mutex.locked()))
    collection = Collection(stock, told, plan.results)
    scheduler.responses = {}
    for results in (None, *_results_by_index(plan)):
        if results is not None:
            response = stock.__globals__["ScheduledResponse"]
            for result in results:
                scheduler.responses.setdefault(result.request_id, []).append(response(result))
            scheduler.batch_responses_per_step.append(results)
        got = collection.fetched(scheduler) if quick else stock(scheduler)
        seen.append([(name, list(map(_of_result, contents))) for name, contents in got.items()])
        seen.append([type(got), dict(scheduler.responses), list(scheduler.batch_responses_per_step)])
        seen.append([scheduler.responses_not_empty.rung[:], scheduler.mutex.locked(), recycled[:]])
    return [*seen, _but_debug(told), sorted(vars(scheduler))]


def _results_by_index(plan: Plan) -> Iterator[list[Any]]:
    """Results of two steps; the first also has one of FastDeploy's own."""
    steps = [list(results) for results in _results(plan)]
    steps[0].append(plan.fd.RequestOutput(request_id="one", finished=True))
    yield from steps


def _of_result(result: Any) -> Any:
    outputs = result.outputs
    return type(result), result.request_id, result.finished, None if outputs is None else outputs.index

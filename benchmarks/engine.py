"""All that the engine process does with a received step: results, scheduler's texts, the client's bytes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fd_postproc.fastdeploy.engine.results._results import Messages
from tests.restated.workload import Case as LoadCase

from . import receive, shares
from .cases import NARROW, PLAIN, WIDE, Case, Comparison, Ready, check, timed
from .processors import (
    CLASSES,
    OURS,
    RESTATED,
    comparable,
    load_case,
    loaded,
    names,
    processor_class,
    step_call,
    token_processor_module,
)
from .queued import taken
from .step import steps_of

ABOUT = (
    "a received message -> the bytes for the client: results, the scheduler's two debug texts, to_dict and "
    "msgpack, or the bytes at once; parts: where that goes, and the get op before it"
)
REFERENCE = ""
BASELINE = RESTATED

load = token_processor_module

RESULTS, TEXTS, DICTS, PACK, GET = "results", "scheduler's texts", "to_dict", "msgpack", "get op"
PARTS = (GET, RESULTS, TEXTS, DICTS, PACK)


def comparisons() -> Iterator[Comparison]:
    for case in NARROW, WIDE, PLAIN:
        yield Comparison(str(case), {name: partial(_total, name, load_case(case)) for name in names()})
    for case in NARROW, WIDE:
        yield Comparison(f"{case}, parts", _parts(case))


class Scheduler:
    """FastDeploy's, as far as it costs: the text of all results when they come and when they go."""

    def __init__(self) -> None:
        self.last: list[Any] = []

    def put_results(self, results: list[Any]) -> None:
        _ = f"results of a step: {results}"  # made whether or not it is read, as upstream
        self.last = results

    def get_results(self) -> list[list[Any]]:
        """A list for each request."""
        results = {result.request_id: [result] for result in self.last}
        _ = f"results fetched: {results}"
        return list(results.values())


def texts(results: list[Any]) -> Callable[[], Any]:
    """What the scheduler formats."""
    scheduler = Scheduler()

    def call() -> list[list[Any]]:
        scheduler.put_results(results)
        return scheduler.get_results()

    return call


def _engine(name: str, module: Any, case: LoadCase) -> tuple[Any, Callable[[], bytes]]:
    """A load, and a call that takes its message all the way."""
    work = loaded(name, module, case)
    scheduler = Scheduler()
    work.processor.cached_generated_tokens = scheduler
    step, pack = step_call(work), _packing(name, work)

    def call() -> bytes:
        step()
        return pack(scheduler.get_results())

    return work, call


def _packing(name: str, work: Any) -> Callable[[list[list[Any]]], bytes]:
    """What makes the client's bytes: FastDeploy's way, or what the plug-in puts in its place."""
    if name == OURS:
        return Messages(work.processor.plan).pack
    packb = importlib.import_module("msgpack").packb

    def pack(batch: list[list[Any]]) -> bytes:
        packed: bytes = packb([[result.to_dict() for result in one] for one in batch])
        return packed

    return pack


def _total(name: str, case: LoadCase) -> Ready:
    module = token_processor_module()
    work, call = _engine(name, module, case)
    packed = call()
    check(seen(packed) == seen(_engine(RESTATED, module, case)[1]()), "a client would see something else")
    run = timed(call)

    def young(loops: int) -> float:
        work.reset()
        call()
        return run(loops)

    return Ready(young, len(packed))


def seen(packed: bytes) -> list[Any]:
    """What a client unpacks, without the times in the metrics."""
    steps: list[list[Any]] = importlib.import_module("msgpack").unpackb(packed)
    for (one,) in steps:
        one["metrics"] = one["metrics"] and list(one["metrics"])
        one["outputs"]["send_idx"] = None  # grows from step to step
    return steps


# ---- Parts ------------------------------------------------------------------------------------------------


def _parts(case: Case) -> dict[str, Callable[[], Ready]]:
    one = load_case(case)
    contenders: dict[str, Callable[[], Ready]] = {}
    for name in CLASSES:
        parts = [part for part in PARTS[1:] if (name, part) != (OURS, DICTS)]  # which it does not make
        contenders |= {f"{name}: {part}": partial(_part, name, one, part) for part in parts}
    for removed, part in enumerate(shares.PARTS, 1):
        contenders[f"{RESTATED}: {RESULTS}, less {part}"] = partial(_less, one, removed)
    contenders[f"{RESTATED}: {GET}"] = partial(taken, case, receive._stock)
    contenders[f"{OURS}: {GET}"] = partial(taken, case, partial(receive._ours, dialect="compact", full=False))
    return contenders


def _part(name: str, case: LoadCase, part: str) -> Ready:
    work = loaded(name, token_processor_module(), case)
    results = work.sink.last
    if name != RESTATED:
        stock = loaded(RESTATED, token_processor_module(), case).sink.last
        check(comparable(results) == comparable(stock), "a client would see other results")
    if part == RESULTS:
        return Ready(steps_of(work))
    if part == TEXTS:
        return Ready(timed(texts(results)))
    if part == DICTS:
        return Ready(timed(lambda: [result.to_dict() for result in results]))
    if name == OURS:
        step_call(work)()  # results with unread lists
        return Ready(timed(partial(_packing(name, work), [[result] for result in work.sink.last])))
    dicts = [result.to_dict() for result in results]
    return Ready(timed(partial(importlib.import_module("msgpack").packb, dicts)))


def _less(case: LoadCase, removed: int) -> Ready:
    """The restated step without its first parts; what is left still makes all results."""
    module = token_processor_module()
    loaded(RESTATED, module, case)  # the first step makes metrics that stand-ins would lack
    work, restore = shares.stripped(module, processor_class(RESTATED, module), case, removed)
    work.step()
    check(len(work.sink.last) == case.batch, "results are missing")
    return Ready(steps_of(work), close=restore)

"""All that the engine process does with a received step: results, scheduler's texts, the client's bytes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fd_postproc.fastdeploy.engine.results._results import Messages
from tests.restated.workload import Case as LoadCase

from .cases import NARROW, PLAIN, WIDE, Comparison, Ready, check, timed
from .processors import (
    OURS,
    RESTATED,
    load_case,
    loaded,
    names,
    step_call,
    token_processor_module,
)

ABOUT = (
    "a received message -> the bytes for the client: results, the scheduler's two debug texts, to_dict and "
    "msgpack, or the bytes at once"
)
REFERENCE = ""
BASELINE = RESTATED

load = token_processor_module


def comparisons() -> Iterator[Comparison]:
    for case in NARROW, WIDE, PLAIN:
        yield Comparison(str(case), {name: partial(_total, name, load_case(case)) for name in names()})


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

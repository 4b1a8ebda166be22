"""Single steps of the token processor, and what Python's cyclic garbage collector adds to some of them."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any

from .cases import HEADLINE, Case, Comparison, Ready
from .processors import RESTATED, load_case, loaded, names, step_call, token_processor_module

ABOUT = (
    "single steps with the garbage collector on; frozen: gc.freeze() after warm-up; "
    "longest gc: the longest single collection"
)
REFERENCE = ""
BASELINE = RESTATED
TAIL = True  # single steps: the table shows the slowest of them

QUEUED = 3  # steps whose results are still alive, in the scheduler or on the way to the client

load = token_processor_module


def comparisons(quick: bool) -> Iterator[Comparison]:
    small = Case(batch=32, columns=1)
    for case in (small,) if quick else (small, HEADLINE[-1]):
        contenders = {
            f"{name}{', frozen' if frozen else ''}": partial(_make, name, load_case(case), frozen)
            for name in names()
            for frozen in (False, True)
        }
        yield Comparison(str(case), contenders, rounds=1)


class Pauses:
    """Listens to the collector while `stepping`: it also runs between steps, for the benchmark."""

    def __init__(self) -> None:
        self.count, self.total, self.longest, self._began = 0, 0.0, 0.0, 0.0
        self.stepping = False

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if not self.stepping:
            return
        if phase == "start":
            self._began = perf_counter()
            return
        took = perf_counter() - self._began
        self.count += 1
        self.total += took
        self.longest = max(self.longest, took)


class Queue:
    """A scheduler that keeps the results of the last few steps."""

    def __init__(self) -> None:
        self._steps: deque[list[Any]] = deque(maxlen=QUEUED)

    def put_results(self, results: list[Any]) -> None:
        self._steps.append(results)


def _make(name: str, case: Any, frozen: bool) -> Ready:
    work = loaded(name, token_processor_module(), case)
    work.processor.cached_generated_tokens = Queue()
    step = step_call(work)
    pauses = Pauses()
    gc.callbacks.append(pauses)
    work.reset()

    def run(loops: int) -> float:
        if not frozen:
            gc.unfreeze()
        pauses.stepping = True
        began = perf_counter()
        for _ in range(loops):
            step()
        took = perf_counter() - began
        pauses.stepping = False
        return took

    def facts() -> dict[str, Any]:
        return {
            "gc_longest": pauses.longest,
            "gc_total": pauses.total,
            "gc_collections": pauses.count,
        }

    return Ready(run, single=True, close=lambda: gc.callbacks.remove(pauses), facts=facts)

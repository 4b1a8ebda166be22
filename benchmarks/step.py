"""What the token processor does with a message that is in its tensors: one result for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

from tests.restated.workload import Case as LoadCase
from tests.restated.workload import Load

from .cases import NARROW, WIDE, Comparison, Ready, TimeFunction, check
from .processors import (
    OURS,
    RESTATED,
    comparable,
    load_case,
    loaded,
    names,
    step_call,
    token_processor_module,
)

ABOUT = "the token processor's step in steady decode: a received message -> results given to the scheduler"
REFERENCE = ""
BASELINE = RESTATED

load = token_processor_module


def comparisons() -> Iterator[Comparison]:
    for case in NARROW, WIDE:
        one = load_case(case)
        contenders = {name: partial(_make, name, one) for name in names()}
        contenders[f"{OURS}, all lists read"] = partial(_and_read, one)
        yield Comparison(str(case), contenders)


def _make(name: str, case: LoadCase) -> Ready:
    module = token_processor_module()
    work = loaded(name, module, case)
    if name == OURS:
        stock = loaded(RESTATED, module, case)
        check(comparable(work.sink.last) == comparable(stock.sink.last), "a client would see other results")
    return Ready(steps_of(work))


def _and_read(case: LoadCase) -> Ready:
    """Read the log-probabilities of every result: only then do ours become lists."""
    work = loaded(OURS, token_processor_module(), case)
    step = step_call(work)

    def call() -> None:
        step()
        for result in work.sink.last:
            _ = result.outputs.top_logprobs

    return Ready(steps_of(work, call))


def steps_of(work: Load, call: Callable[[], Any] | None = None) -> TimeFunction:
    """Loop count -> seconds of so many steps.

    Before, untimed, requests are made young again, and do a step: the first one of a young request is longer,
    and requests are young for one step of hundreds.
    """
    step = call or step_call(work)

    def run(loops: int) -> float:
        work.reset()
        step()
        began = perf_counter()
        for _ in range(loops):
            step()
        return perf_counter() - began

    return run

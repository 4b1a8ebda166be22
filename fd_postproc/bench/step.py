"""What the token processor does with a message that is in its tensors: one result for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

from ._objects import Objects
from .baseline.workload import Case as LoadCase
from .baseline.workload import Load
from .cases import Comparison, Ready, TimeFunction, attributes, check, objects_in, rounds_for, timed
from .processors import (
    OURS,
    RESTATED,
    cases,
    comparable,
    load_case,
    loaded,
    names,
    step_call,
    token_processor_module,
)

ABOUT = "the token processor's step in steady decode: a received message -> results given to the scheduler"
REFERENCE = "floor"
BASELINE = RESTATED

load = token_processor_module


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in cases(quick):
        yield _comparison(str(case), load_case(case), rounds_for(case))
        if not quick and case.channel == "spec_topk" and (case.batch, case.accepted) == (256, 2):
            yield _comparison(f"{case} draft", load_case(case, draft=True), rounds=3)


def _comparison(label: str, case: LoadCase, rounds: int) -> Comparison:
    contenders = {name: partial(_make, name, case) for name in names()}
    contenders[f"{OURS}, from tensors"] = partial(_from_tensors, case)
    contenders["floor"] = partial(_floor, case)
    return Comparison(label, contenders, rounds=rounds)


def _make(name: str, case: LoadCase) -> Ready:
    module = token_processor_module()
    work = loaded(name, module, case)
    if name == OURS:
        stock = loaded(RESTATED, module, case)
        check(comparable(work.sink.last) == comparable(stock.sink.last), "a client would see other results")
    return Ready(steps_of(work), objects=objects_in(work.sink.last))


def _from_tensors(case: LoadCase) -> Ready:
    """With FastDeploy's get op before it, as in FastDeploy's own tests."""
    work = loaded(OURS, token_processor_module(), case)
    return Ready(steps_of(work, work.step))


def steps_of(work: Load, call: Callable[[], Any] | None = None) -> TimeFunction:
    """Loop count -> seconds of so many steps; requests are made young again before, untimed."""
    step = call or step_call(work)

    def run(loops: int) -> float:
        work.reset()
        began = perf_counter()
        for _ in range(loops):
            step()
        return perf_counter() - began

    return run


def _floor(case: LoadCase) -> Ready:
    results = loaded(RESTATED, token_processor_module(), case).sink.last
    made = result_objects(results)
    check(comparable(made.make()) == comparable(results), "the floor makes other objects")
    return Ready(timed(made.make), objects=objects_in(results))


def result_objects(results: list[Any]) -> Objects:
    """The floor of a step's results."""
    classes: dict[type, bool] = {}
    todo = list(results[:1])
    while todo:
        one = todo.pop()
        if isinstance(one, (list, dict)):
            todo += one.values() if isinstance(one, dict) else one[:1]
        elif type(one).__module__ != "builtins" and type(one) not in classes:
            classes[type(one)] = hasattr(one, "__dict__")
            todo += one if isinstance(one, tuple) else attributes(one).values()
    return Objects(results, classes)

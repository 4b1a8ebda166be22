"""What the token processor does with a message that is in its tensors: one result for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import Any

from fd_postproc._core import FlightRing, step_from_tensors
from tests.restated.workload import Case as LoadCase
from tests.restated.workload import Load

from .built import Objects
from .cases import (
    HEADLINE,
    Case,
    Comparison,
    Ready,
    TimeFunction,
    attributes,
    check,
    objects_in,
    rounds_for,
    timed,
)
from .processors import (
    OURS,
    RESTATED,
    cases,
    comparable,
    load_case,
    loaded,
    logprobs_field,
    names,
    step_call,
    token_processor_module,
)
from .runner import Compared

ABOUT = "the token processor's step in steady decode: a received message -> results given to the scheduler"
REFERENCE = "floor"
BASELINE = RESTATED
LISTS_READ, COUNTERS = f"{OURS}, all lists read", "counters and stage times"
RECORDER = "the same, and the flight recorder"

load = token_processor_module


def comparisons(quick: bool) -> Iterator[Comparison]:
    for case in cases(quick):
        yield _comparison(str(case), load_case(case), rounds_for(case))
        if not quick and case.channel == "spec_topk" and (case.batch, case.accepted) == (256, 2):
            yield _comparison(f"{case} draft", load_case(case, draft=True), rounds=3)

    for case in HEADLINE[:1] if quick else (Case(batch=1, columns=1), Case(batch=32, columns=1), HEADLINE[0]):
        one = load_case(case)
        ways = {
            OURS: partial(_make, OURS, one),
            COUNTERS: partial(_counting, one),
            RECORDER: partial(_recording, one),
        }
        yield Comparison(f"{case}, counters", ways)


def _comparison(label: str, case: LoadCase, rounds: int) -> Comparison:
    contenders = {name: partial(_make, name, case) for name in names()}
    if case.logprobs:
        contenders[LISTS_READ] = partial(_and_read, case)
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


def _and_read(case: LoadCase) -> Ready:
    """Read the log-probabilities of every result: only then do ours become lists."""
    work = loaded(OURS, token_processor_module(), case)
    return Ready(steps_of(work, and_read(work)))


def and_read(work: Load) -> Callable[[], Any]:
    """A step, and a look at the log-probabilities of every result."""
    step, field = step_call(work), logprobs_field(work.case)

    def call() -> None:
        step()
        for result in work.sink.last:
            getattr(result.outputs, field)

    return call


def _counting(case: LoadCase, ring: FlightRing | None = None) -> Ready:
    """What the receive loop does for its counters and stage times at a step, and nothing else.

    With `ring`, also the flight recorder's entry.  The bare loop, which is taken off, has none of it.
    """
    work = loaded(OURS, token_processor_module(), case)
    processor = work.processor
    tensors = [processor.output_tokens]
    if case.logprobs:
        tensors += [processor.output_scores, processor.output_ranks]
    step = step_from_tensors(processor.channel, *tensors, layout=processor.layout)
    stages, reporter, results = processor.counters.stages, processor.parts.reporter(), [None] * case.batch
    stages.ring = ring

    def run(loops: int) -> float:
        began = perf_counter()
        for _ in repeat(None, loops):
            pass
        bare = perf_counter()
        for _ in repeat(None, loops):
            stages.end_build(step)
            stages.end_put(results, step)
            if not reporter.has_news:
                reporter.notify()
        return max(perf_counter() - bare - (bare - began), 1e-9)  # a loop of one may be slower bare

    before = stages.steps
    run(1)
    check(stages.steps == before + 1, "the step was not counted")
    return Ready(run)


def _recording(case: LoadCase) -> Ready:
    """The same, with the flight recorder's entry of the step."""
    return _counting(case, FlightRing(bytearray(8 << 20)))


def notes(compared: list[Compared]) -> list[str]:
    """What counting and recording cost."""
    return [
        f"{one.case}{what}: {100 * one.results[name].ratio_of_best(one.results[OURS]):.2f} % of a step"
        for one in compared
        for name, what in ((COUNTERS, ""), (RECORDER, " and flight recorder"))
        if name in one.results and OURS in one.results
    ]


def _from_tensors(case: LoadCase) -> Ready:
    """With FastDeploy's get op before it, as in FastDeploy's own tests."""
    work = loaded(OURS, token_processor_module(), case)
    return Ready(steps_of(work, work.step))


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

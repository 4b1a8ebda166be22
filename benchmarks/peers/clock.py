"""What a step costs: CPU time, memory that its results keep, pauses of the garbage collector."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from .load import Load, Message, Model, check

PASSES = 5
QUEUED = 3
"""Steps whose results are alive at the same time, on their way to clients."""
CHECKED = 3
"""Steps that are compared with what was sent."""
PASS_SECONDS = 0.15
"""CPU time of a pass, about."""
MOST_STEPS, LEAST_STEPS = 200, 3


class Contender(NamedTuple):
    """An engine's own way from a message to results.

    Attributes
    ----------
    prepare : callable
        A message as the engine has it; not timed.
    begin : callable
        Forget all requests, and begin as many new ones.
    step : callable
        From what `prepare` made to the results of a step.
    answers : callable
        A step's results as a list of `Answer`, in the order of the requests.
    """

    prepare: Callable[[Message], Any]
    begin: Callable[[], Any]
    step: Callable[[Any], Any]
    answers: Callable[[Any], Any]


class Pauses:
    """Listens to the garbage collector while it is entered: CPU seconds, for other programs may run, too."""

    def __init__(self) -> None:
        self.count, self.total, self.longest, self._began = 0, 0.0, 0.0, 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.thread_time()
            return
        took = time.thread_time() - self._began
        self.count, self.total, self.longest = self.count + 1, self.total + took, max(self.longest, took)

    def __enter__(self) -> Pauses:
        gc.callbacks.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self)


def measure(contender: Contender, load: Load, model: Model, passes: int = PASSES) -> dict[str, Any]:
    """Check a contender's answers, then time it.

    Returns
    -------
    dict
        ``us``: CPU microseconds of a token, median over the passes, and ``passes`` all of them; ``kept``:
        bytes of resident memory a token that results and requests hold; ``pauses``: of the collector, how
        many in a thousand steps, the longest in ms, and their share of the time.
    """
    sent = load.messages(model.usable)
    contender.begin()
    check(load, model, sent[:CHECKED], [
        contender.answers(contender.step(contender.prepare(one))) for one in sent[:CHECKED]
    ])  # fmt: skip
    contender.begin()
    spent = _pass(contender, sent, LEAST_STEPS)  # warm, and a first guess
    steps = int(min(MOST_STEPS, max(LEAST_STEPS, PASS_SECONDS / max(spent, 1e-6))))
    kept = _kept(contender, sent, steps) / load.tokens
    pauses = Pauses()
    times = [_pass(contender, sent, steps, pauses) for _ in range(passes)]
    return {
        "us": statistics.median(times) / load.tokens * 1e6,
        "passes": [one / load.tokens * 1e6 for one in times],
        "steps": steps,
        "kept": kept,
        "load average": os.getloadavg()[0],
        "pauses": {
            "in 1000 steps": pauses.count * 1000 / (passes * steps),
            "longest ms": pauses.longest * 1e3,
            "share": pauses.total / (sum(times) * steps),
        },
    }


def _pass(contender: Contender, sent: list[Message], steps: int, pauses: Pauses | None = None) -> float:
    """CPU seconds of a step.  What was there before is no business of the collector's."""
    contender.begin()
    inputs = [[contender.prepare(one) for one in sent] for _ in range(-(-steps // len(sent)))]
    todo = [one for some in inputs for one in some][:steps]
    kept: deque[Any] = deque(maxlen=QUEUED)
    gc.collect()
    gc.freeze()
    step = contender.step
    with pauses or Pauses():
        began = time.process_time()
        for one in todo:
            kept.append(step(one))
        spent = time.process_time() - began
    gc.unfreeze()
    return spent / steps


def _kept(contender: Contender, sent: list[Message], steps: int) -> float:
    """Resident bytes of a step that results hold, none of which is given up."""
    contender.begin()
    todo = [contender.prepare(sent[n % len(sent)]) for n in range(2 * steps)]
    gc.collect()
    before = _resident()
    results = [contender.step(one) for one in todo]
    more = _resident() - before
    return max(more, 0) / len(results)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

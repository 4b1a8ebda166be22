"""What a step costs: CPU time, memory that its results keep, pauses of the garbage collector."""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from .load import Load, Message, Model, check
from .turns import timed

QUEUED = 3
"""Steps whose results are alive at the same time, on their way to clients."""
CHECKED = 3
"""Steps that are compared with what was sent."""
PASS_SECONDS = 0.3
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


class Measured:
    """A contender whose answers are right, ready for its passes.

    Attributes
    ----------
    steps : int
        Of a pass.
    kept : float
        Bytes of resident memory a token that results and requests hold.

    Raises
    ------
    WrongAnswer
    """

    def __init__(self, contender: Contender, load: Load, model: Model) -> None:
        self._contender, self._load, self._sent = contender, load, load.messages(model.usable)
        sent = self._sent
        contender.begin()
        check(load, model, sent[:CHECKED], [
            contender.answers(contender.step(contender.prepare(one))) for one in sent[:CHECKED]
        ])  # fmt: skip
        contender.begin()
        spent = _pass(contender, sent, LEAST_STEPS)["seconds"]  # warm, and a first guess
        self.steps = int(min(MOST_STEPS, max(LEAST_STEPS, PASS_SECONDS / max(spent, 1e-6))))
        self.kept = _kept(contender, sent, self.steps) / load.tokens
        self._pauses, self._seconds, self._passes = Pauses(), 0.0, 0

    def one_pass(self) -> dict[str, float]:
        """What a step costs, over a pass, as `turns.timed` gives it."""
        cost = _pass(self._contender, self._sent, self.steps, self._pauses)
        self._seconds, self._passes = self._seconds + cost["seconds"] * self.steps, self._passes + 1
        return cost

    def told(self) -> dict[str, Any]:
        """What is known besides the passes' times; ``pauses``: of the collector.

        Those are how many in a thousand steps, the longest in ms, and their share of the time.
        """
        pauses = self._pauses
        return {
            "steps": self.steps,
            "kept": self.kept,
            "load average": os.getloadavg()[0],
            "pauses": {
                "in 1000 steps": pauses.count * 1000 / max(self._passes * self.steps, 1),
                "longest ms": pauses.longest * 1e3,
                "share": pauses.total / max(self._seconds, 1e-9),
            },
        }


def _pass(
    contender: Contender, sent: list[Message], steps: int, pauses: Pauses | None = None
) -> dict[str, float]:
    """What a step costs.  What was there before is no business of the collector's."""
    contender.begin()
    inputs = [[contender.prepare(one) for one in sent] for _ in range(-(-steps // len(sent)))]
    todo = [one for some in inputs for one in some][:steps]
    kept: deque[Any] = deque(maxlen=QUEUED)
    gc.collect()
    gc.freeze()
    with pauses or Pauses():
        cost = timed(lambda one=one: kept.append(contender.step(one)) for one in todo)
    gc.unfreeze()
    return cost


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

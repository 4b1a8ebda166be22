"""Times FastDeploy's own token processor and ours in turn on the same steps, for ``bench``.

Run as a program, it imports FastDeploy, which takes seconds and changes the process that does it, and prints
one line of JSON.  Both are real: FastDeploy's class with its own metrics and loggers, and ours made from it,
without a scheduler behind them.  A step goes in where each one's receive loop would put it: as tensors
filled by the get op, or as a Step.  Getting it out of the queue is not in these times, and neither are the
gauges of speculative decoding, which ours sets ten times a second in a thread of its own.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from tools.accept.differences import difference
from tools.accept.features import ABORT_SETS, Facts
from tools.accept.sandbox import Sandbox
from tools.accept.step_messages import fill
from tools.accept.steps import CannedMessage, Script
from tools.accept.trial import Trial

from .._core import has_logprobs, step_from_tensors
from ..environment import FASTDEPLOY
from ..fastdeploy.engine.activation import decide
from ..fastdeploy.engine.processor_class import make_class
from ..fastdeploy.report import import_fastdeploy
from ..layout import Channel
from ..needed_limits import Load
from ..subprocess_json import answer_of
from .rates import Spread, loops_for, timed

STOCK, OURS, READ = "FastDeploy's own", "fd_postproc", "fd_postproc, all logprobs read"
_MARK = "fd_postproc side by side: "
_TRIAL_WAIT_S = 300.0  # seconds; most of it for importing FastDeploy
_SLACK = 30.0  # seconds that two stamps may be apart: requests of the two are not equally old
_LEAST_ROUNDS = 5


def side_by_side(channel: Channel, loads: list[Load], seconds: float) -> dict[str, Any]:
    """The child process's result.

    Returns
    -------
    dict
        ``"why_not"``: a sentence, if nothing was measured.  Otherwise ``"from"``, the path of FastDeploy's
        module, and ``"steps"``: for each load its numbers, ``"seconds"`` of a step for each contender, and
        ``"spread"``, the ends of the middle half.
    """
    if find_spec("fastdeploy") is None and not FASTDEPLOY.text:
        return {"why_not": f"FastDeploy is not installed here ({FASTDEPLOY}=PATH names a source tree)"}
    orders = {"channel": channel, "loads": [asdict(load) for load in loads], "seconds": seconds}
    with tempfile.TemporaryDirectory(prefix="fd_postproc_bench.") as folder:
        own = {"FD_LOG_DIR": f"{folder}/log", "PROMETHEUS_MULTIPROC_DIR": f"{folder}/prometheus"}
        os.mkdir(own["PROMETHEUS_MULTIPROC_DIR"])  # metrics in files, as in service, but not in a service's
        try:
            return answer_of(
                "fd_postproc.cli.side_by_side",
                json.dumps(orders),
                mark=_MARK,
                patience=_TRIAL_WAIT_S,
                environment={**os.environ, **own},
                folder=folder,
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return {"why_not": f"the comparison failed: {error}"}


def main() -> int:
    orders = json.loads(sys.argv[1])
    loads = [Load(**load) for load in orders["loads"]]
    print(_MARK + json.dumps(_measured(orders["channel"], loads, orders["seconds"])))
    return 0


def _measured(channel: Channel, loads: list[Load], seconds: float) -> dict[str, Any]:
    try:
        module = import_fastdeploy()
    except ImportError as error:
        return {"why_not": str(error)}
    decision = decide(module)
    if not decision.compatible:
        return {"why_not": f"fd_postproc stands aside beside this FastDeploy: {decision.reason}"}
    ours = make_class(module)
    for name, value in decision.facts.items():
        setattr(ours, name, value)
    facts = Facts.of(module, Sandbox(module))
    steps = []
    for load in loads:
        columns = load.columns if facts.packed(channel) else module.K + 1
        load = replace(load, columns=columns if has_logprobs(channel) else 1)
        stock = _Side(module, module.TokenProcessor, channel, load, facts)
        other = _Side(module, ours, channel, load, facts)
        different = _first_difference(stock, other)
        if different:
            return {"why_not": f"the results differ: {different}"}
        times = _timings(stock, other, seconds)
        medians = {name: took.median for name, took in times.items()}
        spreads = {name: [took.low, took.high] for name, took in times.items()}
        steps.append({**asdict(load), "seconds": medians, "spread": spreads})
    return {"from": module.__file__, "steps": steps}


class _Side:
    """A token processor with a full batch of running requests, and a message in its tensors."""

    def __init__(self, module: Any, cls: type, channel: Channel, load: Load, facts: Facts) -> None:
        rows = tuple(
            tuple(range(1000 + 8 * slot, 1000 + 8 * slot + load.accepted)) for slot in range(load.batch)
        )
        message = CannedMessage(rows, columns=load.columns)
        script = Script("bench", channel, ({},) * load.batch, (message,))
        packed = facts.packed(channel)
        clock = SimpleNamespace(now=time.time())
        surroundings: Any = SimpleNamespace(module=module, clock=clock, switches={}, reset=lambda: None)
        self.trial = Trial(surroundings, cls, script, facts.abort_set or ABORT_SETS[0], packed)
        self.processor = self.trial.processor
        self.processor.cached_generated_tokens = self
        self.results: list[Any] = []
        fill(self.processor, module, script, message, packed)
        self.step = self._step()

    def _step(self) -> Callable[[], Any]:
        processor = self.processor
        if not hasattr(processor, "_process_step"):
            process: Callable[[], Any] = processor._process_batch_output
            return process
        tensors = [processor.output_tokens]
        if has_logprobs(processor.channel):
            tensors += [processor.output_scores, processor.output_ranks]
        step = step_from_tensors(processor.channel, *tensors, layout=processor.layout)
        return partial(processor._process_step, step)

    def put_results(self, results: list[Any]) -> None:
        """Store the last step's results, as the scheduler."""
        self.results = results

    def step_and_read(self) -> None:
        """Process a step and read its log-probabilities, which become lists then."""
        self.step()
        for result in self.results:
            result.outputs.top_logprobs  # noqa: B018

    def begin(self) -> None:
        """Reset every request to its start."""
        for task in self.trial.tasks:
            task.output_token_ids.clear()
            self.processor.tokens_counter[task.request_id] = 5
        self.step()  # the first step takes longer


def _first_difference(stock: _Side, ours: _Side) -> str | None:
    """The first difference between the clients' results of a step."""

    def answers_of(side: _Side) -> list[Any]:
        side.step()
        return [result.to_dict() for result in side.results]

    return difference(answers_of(stock), answers_of(ours), _SLACK)


def _timings(stock: _Side, ours: _Side, seconds: float) -> dict[str, Spread]:
    """Seconds of a step; the contenders take turns."""
    calls = {STOCK: (stock, stock.step), OURS: (ours, ours.step)}
    if has_logprobs(ours.processor.channel):
        calls[READ] = (ours, ours.step_and_read)
    gc.collect()
    gc.freeze()  # so that no collection goes through what FastDeploy has loaded
    loops = {}
    for name, (side, call) in calls.items():
        side.begin()
        loops[name] = loops_for(call, seconds / 10)
    passes: dict[str, list[float]] = {name: [] for name in calls}
    end, rounds = time.perf_counter() + len(calls) * seconds, 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
        for name, (side, call) in calls.items():
            side.begin()
            passes[name].append(timed(call, loops[name]) / loops[name])
        rounds += 1
    return {name: Spread.of(times) for name, times in passes.items()}


if __name__ == "__main__":
    sys.exit(main())

"""What the engine process does with a step's results after the token processor: repr, to_dict, msgpack."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

from .measured import CONSUMER, CONSUMER_PARTS
from .workload import Case, Load


def consume(module: Any, cls: type, case: Case, steps: int) -> tuple[float, ...]:
    """Milliseconds of thread time of each of CONSUMER_PARTS, and the message's bytes last: medians."""
    msgpack = importlib.import_module("msgpack")
    load = Load(module, cls, case)
    load.step()
    results = load.sink.last
    dicts = [result.to_dict() for result in results]
    packed = msgpack.packb([dicts])
    parts: tuple[Callable[[], Any], ...] = (
        lambda: f"{results}",
        lambda: [result.to_dict() for result in results],
        lambda: [result.metrics.to_dict() for result in results],
        lambda: msgpack.packb([dicts]),
        lambda: msgpack.unpackb(packed),
    )
    times = tuple(_median(part, steps) for part in parts)
    load.processor._finalizer()
    return (*times, float(len(packed)))


def _median(part: Callable[[], Any], steps: int) -> float:
    samples = []
    for _ in range(steps):
        began = time.thread_time_ns()
        part()
        samples.append((time.thread_time_ns() - began) / 1e6)
    return statistics.median(samples)


def report(module: Any, cls: type, steps: int) -> str:
    """A Markdown table at batch 256: here / FastDeploy's own classes."""
    lines = [
        f"| case | {' | '.join(CONSUMER_PARTS)} | bytes |",
        "| --- |" + " --- |" * (len(CONSUMER_PARTS) + 1),
    ]
    for key, theirs in CONSUMER.items():
        *times, size = consume(module, cls, Case(*key, 256), steps)
        cells = [f"{own:.2f} / {their:.2f}" for own, their in zip(times, theirs[:-1], strict=True)]
        channel, columns, accepted = key
        lines.append(
            f"| {channel} c{columns} a{accepted} | {' | '.join(cells)} | {size:.0f} / {theirs[-1]:.0f} |"
        )
    return "\n".join(lines)

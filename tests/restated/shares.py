"""Where a step's time goes: parts are taken out one after the other, and each share is what that saves."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .measured import PROFILE_MS, PROFILED, SHARES
from .workload import Case, Load

WARM_UP = 3


def _nothing(*arguments: Any, **named: Any) -> None:
    """Stands where a call was; a stand-in is not free, which shows in the remainder."""


def _without_repr(load: Load, names: Any, patch: Callable) -> None:
    patch(names.RequestOutput, "__repr__", lambda result: "")


def _without_prometheus(load: Load, names: Any, patch: Callable) -> None:
    idle = SimpleNamespace(observe=_nothing, inc=_nothing, set=_nothing)
    metrics: dict[str, Any] = dict.fromkeys(vars(names.main_process_metrics), idle)
    metrics["spec_decode_draft_single_head_acceptance_rate"] = [idle] * 6
    names.main_process_metrics = SimpleNamespace(**metrics)


def _without_copy(load: Load, names: Any, patch: Callable) -> None:
    names.copy = SimpleNamespace(copy=lambda stamps: stamps)


def _without_stamps(load: Load, names: Any, patch: Callable) -> None:
    patch(names.RequestMetrics, "record_recv_token", lambda stamps: None)


def _without_tracing(load: Load, names: Any, patch: Callable) -> None:
    names.tracing = SimpleNamespace(trace_set_proc_propagate_context=_nothing)


def _without_get(load: Load, names: Any, patch: Callable) -> None:
    patch(names.Request, "get", lambda task, key, default: None)


def _without_environment(load: Load, names: Any, patch: Callable) -> None:
    names.envs = SimpleNamespace(FD_ENABLE_INTERNAL_ADAPTER=0, ENABLE_V1_KVCACHE_SCHEDULER=1)


def _without_acceptance(load: Load, names: Any, patch: Callable) -> None:
    load.processor._record_speculative_decoding_accept_num_per_request = lambda name, count: None
    load.processor._record_speculative_decoding_metrics = lambda counts: None


def _without_slow_counts(load: Load, names: Any, patch: Callable) -> None:
    counts = [load.case.accepted] * load.case.batch
    load.processor._counts_one_by_one = lambda batch: counts


def _without_header(load: Load, names: Any, patch: Callable) -> None:
    """The batch as an int on the channels that keep a Paddle scalar; the rest of decoding stays."""
    decode, batch = load.processor._decode, load.case.batch
    if load.case.logprobs:
        return
    cells = load.processor.output_tokens
    received = decode()
    tokens = received.tokens

    def read() -> Any:
        cells.numpy()
        return received._replace(batch=batch, tokens=tokens)

    load.processor._decode = read


def _without_lists(load: Load, names: Any, patch: Callable) -> None:
    received = load.processor._decode()._replace(batch=load.case.batch)
    load.processor._decode = lambda: received


def _without_result(load: Load, names: Any, patch: Callable) -> None:
    results = [
        load.processor._new_result(slot, task, 3, task.metrics) for slot, task in enumerate(load.tasks)
    ]

    def reuse(slot: int, task: Any, mtype: int, metrics: Any) -> Any:
        outputs = results[slot].outputs
        outputs.token_ids, outputs.top_logprobs = [], None
        return results[slot]

    load.processor._new_result = reuse


def _without_tokens(load: Load, names: Any, patch: Callable) -> None:
    load.processor._append_tokens = lambda *arguments: None


REMOVALS = dict(
    zip(
        SHARES,
        (
            _without_repr,
            _without_prometheus,
            _without_copy,
            _without_stamps,
            _without_tracing,
            _without_get,
            _without_environment,
            _without_acceptance,
            _without_slow_counts,
            _without_header,
            _without_lists,
            _without_result,
            _without_tokens,
        ),
        strict=False,
    )
)


def shares(module: Any, stock: type, case: Case, steps: int, passes: int) -> tuple[float, dict[str, float]]:
    """Milliseconds of a whole step, and the share of each part in it, in per cent.

    The passes go round all variants, so that a slow spell of the machine meets all of them; the best median
    of each counts.  The collector is off.
    """
    variants = range(len(REMOVALS) + 1)
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(passes):
        for removed in variants:
            best[removed] = min(best[removed], _median(module, stock, case, removed, steps))
    whole = best[0]
    parts = {name: 100 * (best[i] - best[i + 1]) / whole for i, name in enumerate(REMOVALS)}
    return whole, {**parts, "remainder": 100 * best[len(REMOVALS)] / whole}


def stripped(module: Any, stock: type, case: Case, removed: int) -> tuple[Load, Callable[[], None]]:
    """A load without the first `removed` parts of REMOVALS, and what puts them back."""
    names = SimpleNamespace(**vars(module))
    load = Load(module, type("Profiled", (stock,), {"fd": names}), case)
    patched: list[tuple[type, str, Any]] = []

    def patch(owner: type, name: str, value: Any) -> None:
        patched.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    def restore() -> None:
        for owner, name, value in patched:
            setattr(owner, name, value)
        load.processor._finalizer()

    try:
        for removal in list(REMOVALS.values())[:removed]:
            removal(load, names, patch)
        load.reset()
    except BaseException:
        restore()
        raise
    return load, restore


def _median(module: Any, stock: type, case: Case, removed: int, steps: int) -> float:
    """Median of a step without the first `removed` parts."""
    load, restore = stripped(module, stock, case, removed)
    try:
        gc.collect()
        gc.disable()
        samples = []
        for step in range(steps + WARM_UP):
            began = time.thread_time_ns()
            load.step()
            if step >= WARM_UP:
                samples.append((time.thread_time_ns() - began) / 1e6)
        return statistics.median(samples)
    finally:
        gc.enable()
        restore()


def report(module: Any, stock: type, steps: int, passes: int) -> str:
    """A Markdown table of shares in per cent: here / FastDeploy's own class."""
    profiles = [shares(module, stock, Case(*case, 256), steps, passes) for case in PROFILED]
    lines = [
        "| part | "
        + " | ".join(f"{channel} c{cols} a{accepted}" for channel, cols, accepted in PROFILED)
        + " |",
        "| --- |" + " --- |" * len(PROFILED),
        "| ms | "
        + " | ".join(f"{p[0]:.2f} / {ms:.2f}" for p, ms in zip(profiles, PROFILE_MS, strict=True))
        + " |",
    ]
    for part, theirs in SHARES.items():
        cells = (f"{p[1][part]:.0f} / {share}" for p, share in zip(profiles, theirs, strict=True))
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)

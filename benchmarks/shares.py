"""Steps without their first parts: what each part costs is what taking it out saves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.restated.workload import Case, Load


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


REMOVALS = {
    "repr of every result": _without_repr,
    "prometheus, per request": _without_prometheus,
    "copy.copy of the metrics": _without_copy,
    "stamping the metrics": _without_stamps,
    "tracing, switched off": _without_tracing,
    "task.get, twice": _without_get,
    "environment look-up, per token": _without_environment,
    "acceptance tables and gauges": _without_acceptance,
    "accept counts from a tensor": _without_slow_counts,
    "header as Paddle scalars": _without_header,
    "nested lists": _without_lists,
    "making the result": _without_result,
    "per-token loop": _without_tokens,
}


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

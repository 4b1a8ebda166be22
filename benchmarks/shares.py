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


PARTS: dict[str, tuple[Callable, ...]] = {
    "text of every result": (_without_repr,),
    "metrics": (_without_prometheus, _without_copy, _without_stamps),
    "look-ups and acceptance tables": (
        _without_tracing,
        _without_get,
        _without_environment,
        _without_acceptance,
    ),
    "tensors to lists": (_without_slow_counts, _without_header, _without_lists),
}
"""What goes into the restated step beside making the results, in the order in which it is taken out."""


def stripped(module: Any, stock: type, case: Case, removed: int) -> tuple[Load, Callable[[], None]]:
    """A load without the first `removed` of PARTS, and what puts them back."""
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
        for removals in list(PARTS.values())[:removed]:
            for removal in removals:
                removal(load, names, patch)
        load.reset()
    except BaseException:
        restore()
        raise
    return load, restore

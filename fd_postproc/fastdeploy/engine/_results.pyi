from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from typing_extensions import disjoint_base

from ..._core import FlightRing, Step
from .context import Context

@final
class FieldCopier:
    cls: Any  # a type, with the attributes of FastDeploy's class
    names: tuple[str, ...]
    def __init__(self, cls: type, names: Iterable[str]) -> None: ...
    def of(self, pattern: Any) -> Any: ...

@disjoint_base
class Lazy:
    def __init__(self, base: type, name: str, stuff: type) -> None: ...
    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...
    def __set__(self, instance: Any, value: Any, /) -> None: ...
    def __delete__(self, instance: Any, /) -> None: ...

@final
class LazyLists(Lazy):
    def __init__(self, base: type, name: str, lists: type) -> None: ...

@final
class LazyEmpty(Lazy):
    def __init__(self, base: type, name: str) -> None: ...
    def begin(self, pattern: Any) -> None: ...

@final
class DictMaker:
    key_of: dict[str, str]
    only: dict[str, object]
    def __init__(
        self,
        fields: FieldCopier,
        keys: dict[str, str],
        usual: dict[str, Any],
        upstream: Callable[[Any], dict[str, Any]],
        plain_only: bool = False,
        nested: Mapping[str, DictMaker | Lazy] | None = None,
        only: Mapping[str, object] | None = None,
    ) -> None: ...
    def method(self) -> Callable[[Any], dict[str, Any]]: ...

@final
class LazyMetrics(Lazy):
    def __init__(
        self, base: type, name: str, metrics: FieldCopier, stamps: tuple[str, ...], dicts: DictMaker | None
    ) -> None: ...

@final
class LazyOutputs(Lazy):
    def __init__(
        self, base: type, name: str, outputs: FieldCopier, pattern: Any, dicts: DictMaker | None
    ) -> None: ...

def short_repr(fields: FieldCopier, name: str) -> Callable[[Any], str]: ...

@final
class Plan:
    fd: Any
    results: FieldCopier
    outputs: FieldCopier
    metrics: FieldCopier
    result: Any
    inline_stamps: bool
    carrier: Any
    def __init__(
        self,
        fd: Any,
        results: FieldCopier,
        outputs: FieldCopier,
        metrics: FieldCopier,
        accepted: LazyOutputs,
        moments: LazyMetrics,
        result: Any,
        inline_stamps: bool,
        dicts: DictMaker | None = None,
        output_dicts: DictMaker | None = None,
    ) -> None: ...
    def copy_metrics(self, metrics: Any) -> Any: ...
    def new_result(
        self, index: int, send_idx: int | None, request_id: str, output_type: int, metrics: Any
    ) -> Any: ...
    def logprobs_lists(self, step: Step, slot: int, rows: int) -> Any: ...

@final
class Batch:
    step: Step
    sums: Sums
    failures: dict[str, Exception]
    output_type: int
    masks: dict[int, Any]
    def __init__(
        self,
        plan: Plan,
        step: Step,
        context: Context,
        advance: Callable[[int, Any, int, Batch], Any],
        give_up: Callable[[int, Any, Exception], Any],
    ) -> None: ...
    def results(self) -> list[Any]: ...
    def is_crowded(self, most: int) -> bool: ...

@final
class Messages:
    plan: Plan
    packed: int
    asked: int
    def __init__(self, plan: Plan) -> None: ...
    def pack(self, batch: list[list[Any]], packb: Callable[[Any], bytes]) -> bytes: ...
    def pack_step(self, results: list[Any], packb: Callable[[Any], bytes]) -> bytes: ...

@final
class Delivery:
    scheduler: Any
    stock: Any
    response: type
    log: Any
    time: Any
    def __init__(
        self, scheduler: Any, stock: Any, response: type, log: Any, time: Any, results: FieldCopier
    ) -> None: ...
    def put(self, results: list[Any]) -> bool: ...
    def delivered(self, results: list[Any]) -> bool: ...

class Beside:
    responses: dict[str, list[Any]]
    batch_responses_per_step: list[list[Any]]
    def __init__(self, scheduler: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    @property
    def mutex(self) -> Beside: ...
    @property
    def responses_not_empty(self) -> Beside: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *error: object) -> None: ...
    def notify_all(self) -> None: ...

@final
class Collection:
    stock: Any
    log: Any
    def __init__(self, stock: Any, log: Any, results: FieldCopier) -> None: ...
    def get(self, scheduler: Any) -> dict[str, list[Any]] | None: ...
    def fetched(self, scheduler: Any) -> dict[str, list[Any]]: ...

class OneRequest:
    def __init__(self, scheduler: Any, responses: dict[str, list[Any]]) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    @property
    def responses_not_empty(self) -> OneRequest: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *error: object) -> None: ...
    def wait_for(self, predicate: Any, timeout: float | None = None) -> tuple[Any, list[Any]]: ...

@final
class Rounds:
    def __init__(self, plan: Plan) -> None: ...
    def batches(self, results: Any, workers: Any) -> dict[int | None, list[list[Any]]] | None: ...

@disjoint_base
class Totals:
    steps: int
    results: int
    malformed: int
    stale: int
    lost_steps: int
    failed_requests: int
    receive_seconds: float
    build_seconds: float
    put_seconds: float
    clock: float
    ring: FlightRing | None
    def begin(self) -> None: ...
    def end_receive(self) -> None: ...
    def end_build(self) -> None: ...
    def end_put(self, results: int, step: Step | None = None) -> None: ...

def live_requests(step: Step) -> int: ...

@final
class Sums:
    steps: int
    decoded: int
    @property
    def fused(self) -> bool: ...
    def fuse(self, histogram: Any, counter: Any) -> None: ...
    def tell_decoded(self) -> None: ...
    def take(self) -> tuple[int, int, list[int]]: ...
    def observe(self, tokens: int) -> None: ...

@final
class SharedTensor:
    shape: tuple[int, ...]
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def tensor(self) -> Any: ...
    def tolist(self) -> list[Any]: ...

@final
class TensorFiles:
    rebuild_file: Callable[..., Any]
    rebuild_tensor: Callable[..., Any]
    int64: int
    float32: int
    def __init__(
        self,
        rebuild_file: Callable[..., Any],
        rebuild_tensor: Callable[..., Any],
        int64: int,
        float32: int,
    ) -> None: ...
    def of_file(self, *arguments: Any) -> Any: ...
    def of_tensor(self, cls: Any, content: Any, metadata: Any) -> Any: ...

@final
class Entries:
    step: Step
    apart: set[int]
    masks: dict[int, list[int]]
    def entry(self, slot: int) -> Any: ...

def entries_of(datas: list[Any], logprobs: bool) -> Entries | None: ...

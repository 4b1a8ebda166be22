from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from ...._core import FlightRing, Step
from .step_context import Context

@final
class FieldCopier:
    cls: Any  # a type, with the attributes of FastDeploy's class
    names: tuple[str, ...]
    def __init__(self, cls: type, names: Iterable[str]) -> None: ...
    def of(self, pattern: Any) -> Any: ...

@final
class Lazy:
    def __init__(
        self,
        base: type,
        name: str,
        tuples: type | None = None,
        is_object: bool = False,
        dicts: DictMaker | None = None,
    ) -> None: ...
    def begin_empty(self, pattern: Any) -> None: ...
    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...
    def __set__(self, instance: Any, value: Any, /) -> None: ...
    def __delete__(self, instance: Any, /) -> None: ...

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
class Outputs:
    def __init__(self, copier: FieldCopier, pattern: Any, lists: type, dicts: DictMaker | None) -> None: ...

@final
class Moments:
    def __init__(self, copier: FieldCopier, stamps: tuple[str, ...], dicts: DictMaker | None) -> None: ...

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
        accepted: Outputs,
        moments: Moments,
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

EXPERTS: str

@final
class Messages:
    plan: Plan
    packed: int
    asked: int
    def __init__(self, plan: Plan) -> None: ...
    def pack(
        self,
        batch: list[list[Any]],
        packb: Callable[[Any], bytes],
        arrays: Callable[[], bool] | None = None,
    ) -> bytes: ...

class HalfPut(Exception):
    rest: list[Any]
    def __init__(self, rest: list[Any]) -> None: ...

@final
class Handover:
    scheduler: Any
    put_results: Any
    get_results: Any
    log: Any
    failure: Exception | None
    def __init__(
        self, scheduler: Any, put_results: Any, get_results: Any, log: Any, results: FieldCopier
    ) -> None: ...
    def hold(self, plan: Plan, tokens: int, seconds: float) -> None: ...
    def join_for(self, processes: dict[str, Any], readers: frozenset[Any]) -> None: ...
    def release(self) -> None: ...
    def put(self, results: list[Any]) -> bool: ...
    def take(self) -> dict[str, list[Any]] | None: ...
    def put_back(self, responses: dict[str, list[Any]], wrapped: Callable[[Any], Any]) -> None: ...

def by_process(
    plan: Plan,
    results: dict[str, list[Any]],
    processes: dict[str, int],
    prepare: Callable[[str, Any], list[Any]],
    is_usual: bool,
    batches: dict[int | None, list[list[Any]]] | None = None,
) -> dict[int | None, list[list[Any]]]: ...

@final
class Stages:
    ring: FlightRing | None
    @property
    def steps(self) -> int: ...
    @property
    def results(self) -> int: ...
    @property
    def receive_seconds(self) -> float: ...
    @property
    def build_seconds(self) -> float: ...
    @property
    def put_seconds(self) -> float: ...
    @property
    def clock(self) -> float: ...
    def begin(self) -> None: ...
    def end_receive(self, step: Step | None = None) -> None: ...
    def end_build(self, step: Step | None, /) -> None: ...
    def end_put(self, results: list[Any], step: Step | None, /) -> None: ...

def live_requests(step: Step) -> int: ...

@final
class Sums:
    steps: int
    decoded: int
    @property
    def fused(self) -> bool: ...
    def fuse(self, metrics: Any) -> None: ...
    def tell_decoded(self) -> None: ...
    def take(self) -> tuple[int, int, list[int]]: ...
    def observe(self, tokens: int) -> None: ...

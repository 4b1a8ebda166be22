"""Subclasses of FastDeploy's result classes: equal for every reader, fast to make and pack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from ...gate.judgements import gate
from ._results import (
    DictMaker,
    FieldCopier,
    Lazy,
    Moments,
    Outputs,
    Plan,
    short_repr,
)

STAMPS = (
    "engine_recv_latest_token_time",
    "llm_engine_recv_latest_token_timestamp",
    "model_execute_time",
    "model_forward_time",
)


def plan_of(fd: Any) -> Plan:
    """Make the result classes, and the plan for the batch loop, from FastDeploy's module.

    Raises
    ------
    TypeError, AttributeError
        If FastDeploy's classes are not of the kind that is known here; the text names what differs.
    """
    lazy = {"top_logprobs": fd.LogprobsLists}
    outputs, output_dicts = _slotted(fd.CompletionOutput, lazy)
    metrics, metric_dicts = _slotted(fd.RequestMetrics, plain_only=True)
    pattern = fd.RequestOutput(
        request_id="",
        output_type=3,
        outputs=None,
        finished=False,
        metrics=None,
        ic_req_data=None,
        prompt_token_ids_len=0,
        trace_carrier=None,
    )
    results = _with_dictionary(fd.RequestOutput, list(vars(pattern)))
    output = outputs.of(fd.CompletionOutput(index=0, send_idx=0, token_ids=[], draft_token_ids=[]))
    accepted = Outputs(outputs, output, fd.LogprobsLists, output_dicts)
    moments = Moments(metrics, STAMPS, metric_dicts)
    made_late = {
        "outputs": Lazy(results.cls, "outputs", is_object=True, dicts=output_dicts),
        "metrics": Lazy(results.cls, "metrics", is_object=True, dicts=metric_dicts),
        "prompt_token_ids": Lazy(results.cls, "prompt_token_ids"),
    }
    for name, attribute in made_late.items():
        setattr(results.cls, name, attribute)
    dicts = None
    if output_dicts is not None:
        dicts = _turn_into_dicts(fd.RequestOutput, results, vars(pattern), made_late)
    result = results.cls.__new__(results.cls)
    for name, value in vars(pattern).items():
        setattr(result, name, value)
    made_late["prompt_token_ids"].begin_empty(result)
    known = gate.judge("stamps").reason is None and has_known_stamps(fd.RequestMetrics)
    known = known and is_plain_request(fd.Request)
    return Plan(fd, results, outputs, metrics, accepted, moments, result, known, dicts, output_dicts)


def _slotted(
    base: type, lazy: dict[str, type] | None = None, *, plain_only: bool = False
) -> tuple[FieldCopier, DictMaker | None]:
    """A subclass of a slotted dataclass with its dictionary maker, and `lazy` attributes."""
    if not is_dataclass(base) or "__dict__" in dir(base):
        raise TypeError(f"{base.__name__} is no dataclass with slots")
    names = [field.name for field in fields(base)]
    lists = {name: Lazy(base, name, kind) for name, kind in (lazy or {}).items()}
    body: dict[str, Any] = {
        **lists,
        "__slots__": (),
        "__eq__": _equal(base, names),
        "__hash__": None,
        "__reduce__": _reduce_to(base, names),
        "__module__": __name__,
        "__doc__": base.__doc__,
    }
    cls: Any = type(base.__name__, (base,), body)
    copier = FieldCopier(cls, names)
    usual = {field.name: field.default for field in fields(base)}
    maker = _dict_maker(
        base, copier, lambda: _filled(base, names), usual, plain_only=plain_only, nested=lists
    )
    cls.__repr__ = short_repr(copier, names[0])
    if maker is not None:
        cls.to_dict = maker.method()
    return copier, maker


def _with_dictionary(base: type, names: list[str]) -> FieldCopier:
    """A subclass of an ordinary class that stores the attributes `names` in ``__slots__``."""
    body: dict[str, Any] = {
        "__slots__": tuple(names),
        "__dict__": property(_attributes(base, names)),
        "raw": property(lambda self: self),  # a result is its own ScheduledResponse
        "__reduce__": _reduce_to(base, names),
        "__module__": __name__,
        "__doc__": base.__doc__,
    }
    cls: Any = type(base.__name__, (base,), body)
    copier = FieldCopier(cls, names)
    cls.__repr__ = short_repr(copier, "request_id")
    return copier


def _turn_into_dicts(
    base: type, copier: FieldCopier, usual: dict[str, Any], nested: dict[str, Lazy]
) -> DictMaker | None:
    """Give a class a fast ``to_dict``; the `nested` attributes are made on access."""

    def filled() -> Any:
        instance = base(request_id="")
        for name in copier.names:
            setattr(instance, name, _Nested(name) if name in ("outputs", "metrics") else _unique(name))
        return instance

    maker = _dict_maker(base, copier, filled, usual, nested=nested)
    if maker is not None:
        copier.cls.to_dict = maker.method()
    return maker


class _Nested:
    """Stand-in for an output or metrics in the trial of a class's to_dict."""

    def __init__(self, name: str) -> None:
        self.name = name

    def to_dict(self) -> str:
        return _unique(self.name)


def _unique(name: str) -> str:
    return f"value of {name}"


def _filled(base: type, names: list[str]) -> Any:
    """An instance whose every attribute is a text with its name."""
    return base(**{name: _unique(name) for name in names})


def _dict_maker(
    base: Any, copier: FieldCopier, filled: Callable[[], Any], usual: dict[str, Any], **options: Any
) -> DictMaker | None:
    """The fast ``to_dict`` for `base`; None if some value is made, not kept: FastDeploy alone knows how.

    FastDeploy's own is asked what it shows of an object whose every attribute is marked, and again with one
    attribute after the other set to something else.  An attribute that decides about more than the value of
    its own key (``if self.routing_data is not None: ...``) has to keep its usual value, or FastDeploy's own
    method is called.
    """
    if gate.judge("dictionaries").reason:
        return None
    nested = options.get("nested") or {}
    values = _NUMBERS if options.get("plain_only") else _NUMBERS + _OTHERS
    before = base.to_dict(filled())
    only = {
        name: usual.get(name, _UNSET)
        for name in copier.names
        if _decides(base, filled, before, name, (None,) if name in nested else values)
    }
    if any(value is not None and value is not True and value is not False for value in only.values()):
        return None
    usually = filled()
    for name, value in only.items():
        setattr(usually, name, value)
    name_of = {_unique(name): name for name in copier.names if name not in only}
    keys = {}
    for key, value in base.to_dict(usually).items():
        if isinstance(value, str):
            kept = name_of.get(value)
        else:
            kept = key if only.get(key, _UNSET) is value else None
        if kept is None:
            return None
        keys[key] = kept
    return DictMaker(copier, keys, usual, base.to_dict, only=only, **options)


_UNSET = object()
_NUMBERS: tuple[Any, ...] = (None, 0)
_OTHERS: tuple[Any, ...] = ("", [], {"a key": 1})


def _decides(
    base: Any, filled: Callable[[], Any], before: dict[str, Any], name: str, values: tuple[Any, ...]
) -> bool:
    """Whether an attribute's value changes more of a dictionary than the value of one key."""
    keys = [key for key, value in before.items() if value == _unique(name)]
    if len(keys) > 1:
        return True
    for value in values:
        other = filled()
        setattr(other, name, value)
        try:
            shown = base.to_dict(other)
        except Exception:  # whatever it cannot show: FastDeploy's own method is to raise it
            return True
        if list(shown.items()) != list({**before, **dict.fromkeys(keys, value)}.items()):
            return True
    return False


def _attributes(base: type, names: list[str]) -> Any:
    """A copy of a result's ``vars()``, as FastDeploy's own class has them."""
    own = next(cls.__dict__["__dict__"] for cls in base.__mro__ if "__dict__" in cls.__dict__)

    def attributes(self: Any) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in names if hasattr(self, name)}
        more: dict[str, Any] = own.__get__(self)
        return kept | more

    return attributes


def _reduce_to(base: type, names: list[str]) -> Any:
    """Pickle and copy as an instance of FastDeploy's class; the peer may not have ours."""
    has_dict = "__dict__" in dir(base)

    def reduce(self: Any, protocol: int = 2) -> tuple[Any, ...]:
        state = vars(self) if has_dict else {n: getattr(self, n) for n in names if hasattr(self, n)}
        return object.__new__, (base,), (state if has_dict else (None, state))

    return reduce


def _equal(base: type, names: list[str]) -> Any:
    def equal(self: Any, other: Any) -> Any:
        if not isinstance(other, base):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names)

    return equal


READ = (
    *("request_id", "metrics", "output_token_ids", "last_token_time", "disaggregate_info", "eos_token_ids"),
    *("status", "ic_req_data", "prompt_token_ids_len", "num_cached_tokens", "multimodal_inputs"),
    *("prefill_chunk_info", "sampling_params", "pooling_params"),
    *("need_prefill_tokens", "num_computed_tokens"),
)
"""Attributes that the batch loop looks for in a request's dictionary alone."""


def is_plain_request(request: Any) -> bool:
    """Whether requests have the attributes of `READ` in their dictionary: no property, no default."""
    own = any(getattr(request, name, None) is not None for name in (*READ, "__getattr__"))
    return not own and bool(request.__setattr__ is object.__setattr__)


def has_known_stamps(metrics: type) -> bool:
    """Whether ``record_recv_token`` sets exactly the stamps that the batch loop sets.

    The two begin-of-inference cases are tried; times are compared with each other, not with the clock.
    """
    for start in (None, 2.0):
        stamps = metrics(arrival_time=1.0, inference_start_time=start)
        before = {field.name: getattr(stamps, field.name) for field in fields(metrics)}
        stamps.record_recv_token()
        changed = {name for name, value in before.items() if getattr(stamps, name) is not value}
        expected = set(STAMPS if start else STAMPS[:3])
        now = stamps.engine_recv_latest_token_time
        if changed != expected or stamps.llm_engine_recv_latest_token_timestamp is not now:
            return False
        if stamps.model_execute_time != now - 1.0 or (start and stamps.model_forward_time != now - start):
            return False
    return True

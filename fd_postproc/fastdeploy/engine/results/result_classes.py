"""FastDeploy's result class with numbers below it, and the plan that the batch loop works by."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ... import gate
from ._results import STAMPS, Plan, Result, attribute_of, attributes_of


def plan_of(fd: Any) -> Plan:
    """Make the result class, and the plan for the batch loop, from FastDeploy's module.

    Raises
    ------
    TypeError, AttributeError
        If FastDeploy's classes are not of the kind that is known here; the text names what differs.
    """
    names = list(vars(fd.RequestOutput(request_id="")))
    body = {
        "__slots__": (),
        "__dict__": property(lambda result: attributes_of(result, names)),
        "__getattr__": attribute_of,
        "__module__": __name__,
        "__doc__": fd.RequestOutput.__doc__,
        "stock": fd.RequestOutput,
    }
    others = [field.name for field in fields(fd.RequestMetrics) if field.name not in STAMPS]
    stamps = gate.judge("stamps").reason is None and has_known_stamps(fd.RequestMetrics)
    return Plan(
        fd,
        type("RequestOutput", (Result, fd.RequestOutput), body),
        others,
        inline_stamps=stamps and is_plain_request(fd.Request),
        has_dictionaries=gate.judge("dictionaries").reason is None,
    )


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

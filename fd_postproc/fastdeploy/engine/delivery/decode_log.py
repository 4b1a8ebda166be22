"""Checks whether one ``on_decode_tokens`` call may report a whole step's decoded tokens."""

from __future__ import annotations

import types
from types import SimpleNamespace
from typing import Any

_STAGES = (  # need_prefill_tokens, num_computed_tokens, whether that is decoding
    (None, 5, False),
    (5, 4, False),
    (5, 5, True),
    (5, 6, True),
)


def adds_up(logger: Any, is_decode_stage: Any) -> bool:
    """Whether the tokens of a step's requests may be reported in one call of ``on_decode_tokens``.

    Parameters
    ----------
    logger : object
        FastDeploy's ``SchedulerMetricsLogger``, or what stands in its place.
    is_decode_stage : function
        FastDeploy's method, of a task alone.

    Returns
    -------
    bool
        Whether one call with a sum leaves the same behind as a call for each part of it, and a request
        decodes once as many tokens are computed as its prefill needs.  Both are tried, on copies.
    """
    try:
        return _is_additive(logger) and all(
            is_decode_stage(SimpleNamespace(need_prefill_tokens=need, num_computed_tokens=done)) is decodes
            for need, done, decodes in _STAGES
        )
    except Exception:  # another logger, whatever it is
        return False


def _is_additive(logger: Any) -> bool:
    method = logger.on_decode_tokens
    if type(getattr(method, "__self__", None)) is not type(logger):
        return False
    if not isinstance(getattr(method, "__func__", None), types.FunctionType):
        return False
    parts, whole = _twin(logger), _twin(logger)
    parts.on_decode_tokens(2)
    parts.on_decode_tokens(3)
    whole.on_decode_tokens(5)
    return bool(vars(parts) == vars(whole))


def _twin(logger: Any) -> Any:
    twin = object.__new__(type(logger))
    for name, value in vars(logger).items():
        setattr(twin, name, value.copy() if isinstance(value, list | dict | set) else value)
    return twin

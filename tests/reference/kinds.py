"""Are the arguments of the specification what they are said to be?"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from fd_postproc.checks import kind_of, seconds, shown, whole_number
from fd_postproc.layout import checked_layout

CHANNELS = ("plain", "topk", "spec", "spec_topk")
DIALECTS = ("packed", "legacy", "compact")
ANY, INT32, UINT64 = (-math.inf, math.inf), (-(1 << 31), (1 << 31) - 1), (0, (1 << 64) - 1)
NUMBERS = {
    "mtype": ANY,
    "rank_id": ANY,
    "message_flag": ANY,
    "message_id": INT32,
    "sender": UINT64,
    "seq": UINT64,
    "limit": (65, math.inf),  # a header, and a byte that it is for
    "columns": (1, math.inf),
}
BYTES = ("payload", "frame", "message")
FILLED = ("tokens", "scores")
SCORES = ("logprob_scores",)
TENSORS = (
    *("x", "not_need_stop", "preempted_idx", "topk_ids", "ranks", "accept_tokens", "accept_num"),
    *("seq_lens_decoder", "prompt_lens", "step_idx", "sampled_token_ids", "logprob_token_ids"),
    *("logprob_ranks", "token_num_per_batch", "cu_batch_token_offset", *SCORES),
)

Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """The function, its arguments being looked at first: by their names, which have one meaning each here."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        for name, value in signature.bind(*arguments, **named).arguments.items():
            if value is not signature.parameters[name].default:
                _check(name, value)
        return function(*arguments, **named)

    return call  # type: ignore[return-value]


def _check(name: str, value: Any) -> None:
    if name == "channel":
        _one_of(CHANNELS, name, value)
    elif name == "dialect":
        _one_of(DIALECTS, name, value)
    elif name == "layout":
        checked_layout(value)
    elif name in NUMBERS:
        whole_number(value, name, *NUMBERS[name])
    elif name in BYTES and not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} must be bytes, not {kind_of(value)}")
    elif name == "step" and not all(hasattr(value, field) for field in ("channel", "counts", "ids")):
        raise TypeError(f"step must be a step, not {kind_of(value)}")
    elif name == "now":
        seconds(value, name)
    elif name in FILLED:
        if not (hasattr(value, "__setitem__") and hasattr(value, "__len__")):
            raise TypeError(f"{name} must be a list or an array, which is written into, not {kind_of(value)}")
    elif name in TENSORS:
        _check_tensor(name, value)


def _one_of(names: tuple[str, ...], what: str, value: Any) -> None:
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{what} {shown(value)} is not one of {', '.join(map(repr, names))}")


def _check_tensor(name: str, value: Any) -> None:
    kinds, wanted = ("biuf", "numbers") if name in SCORES else ("biu", "whole numbers")
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        raise TypeError(f"{name} must be an array of {wanted}, with rows of one length") from None
    if array.dtype.kind not in kinds or (array.ndim == 0 and name != "not_need_stop"):
        raise TypeError(f"{name} must be an array of {wanted}, not {shown(value)} ({kind_of(value)})")

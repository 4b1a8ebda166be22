"""Finds the first difference of two values, in words."""

from __future__ import annotations

import marshal
import math
from typing import Any


def difference(expected: Any, actual: Any, slack: float, near: bool = False) -> str | None:
    """The first difference of two values; None if they are equal.

    Parameters
    ----------
    slack : float
        Seconds that two stamps may be apart.
    near : bool, optional
        The values are stamps or made from them: in entries named ``metrics`` or after a time.
    """
    if _same_bytes(expected, actual):
        return None
    if type(expected) is not type(actual):
        return f": {_short(expected)} is expected, ours is {_short(actual)}"
    if isinstance(expected, dict):
        if list(expected) != list(actual):
            return _keys(list(expected), list(actual))
        pairs = [(f", {key}", expected[key], actual[key], near or _of_times(key)) for key in expected]
    elif isinstance(expected, (list, tuple)):
        if len(expected) != len(actual):
            return f": {len(expected)} entries are expected, ours has {len(actual)}: {_short(actual)}"
        pairs = [(f"[{i}]", *both, near) for i, both in enumerate(zip(expected, actual, strict=True))]
    elif isinstance(expected, float):
        room = slack if near else 1e-9 * abs(expected)
        return None if _close(expected, actual, room) else f": {expected!r} is expected, ours is {actual!r}"
    elif hasattr(expected, "__dataclass_fields__"):
        names = list(expected.__dataclass_fields__)
        pairs = [(f".{name}", getattr(expected, name), getattr(actual, name), near) for name in names]
    else:
        return None if expected == actual else f": {_short(expected)} is expected, ours is {_short(actual)}"
    for place, before, after, inside in pairs:
        found = difference(before, after, slack, inside)
        if found:
            return place + found
    return None


def _same_bytes(expected: Any, actual: Any) -> bool:
    """Fast check for equality; marshal version 2 tells types and zeros apart."""
    try:
        return marshal.dumps(expected, 2) == marshal.dumps(actual, 2)
    except ValueError:
        return False


def _of_times(key: Any) -> bool:
    return key == "metrics" or "time" in str(key)


def _close(expected: float, actual: float, room: float) -> bool:
    if expected == actual:
        return math.copysign(1, expected) == math.copysign(1, actual)
    return abs(expected - actual) <= room or (math.isnan(expected) and math.isnan(actual))


def _keys(expected: list[Any], actual: list[Any]) -> str:
    missing = [key for key in expected if key not in actual]
    more = [key for key in actual if key not in expected]
    if missing:
        return f": ours lacks {missing[0]!r}"
    if more:
        return f": ours has {more[0]!r} besides"
    return f": entries in the order {expected} are expected, ours are {actual}"


def _short(value: Any, limit: int = 120) -> str:
    text = f"{value!r}"
    return text if len(text) <= limit else f"{text[:limit]}..."

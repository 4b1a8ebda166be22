"""Checks of arguments: numbers of every kind become plain ones, anything else is refused by name.

Standard library only; a NumPy scalar or 0-d array has ``__index__`` or ``__float__`` like any other number.
"""

from __future__ import annotations

import math
import operator
import os
import re
import sys
from typing import Any

_SHOWN = 60  # characters of a value in an error text


def shown(value: Any) -> str:
    """A value for an error text: its repr, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not spell out an int of more than 4,300 digits
        return f"a number of {int(value).bit_length()} bits"
    text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split()))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def plural(number: int, what: str) -> str:
    """``1 token``, ``2 tokens``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def kind_of(value: Any) -> str:
    """The kind of a value for an error text: the name of its type, or None."""
    return "None" if value is None else type(value).__name__


def _typed(value: Any) -> str:
    return "None" if value is None else f"{shown(value)} ({kind_of(value)})"


def is_bool(value: Any) -> bool:
    """Whether a value is a bool, also one of NumPy's or a tensor's: NumPy 1.26 takes its own for a number."""
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))


def whole_number(value: Any, name: str, low: float, high: float, hint: str = "") -> int:
    """A whole number as an int; it has a `name` in error texts, and `hint` is the remedy.

    A bool is not accepted: it means that the caller has mixed up the arguments.

    Raises
    ------
    TypeError
        If it is not a whole number.
    ValueError
        If it is outside ``low..high``.
    """
    try:
        if is_bool(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {_typed(value)}{_remedy(hint)}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} = {shown(number)} is outside {low}..{high}{_remedy(hint)}")
    return number


def _remedy(hint: str) -> str:
    return f"; {hint}" if hint else ""


def seconds(value: Any, name: str = "timeout") -> float:
    """A time in seconds, 0 or more, as a float; infinity is allowed.

    For a timeout, the caller has taken None, which means for ever; no other time may be None.

    Raises
    ------
    TypeError, ValueError
        If it is not a number, or is negative or NaN.
    """
    try:
        if is_bool(value) or isinstance(value, (str, bytes, bytearray)) or getattr(value, "ndim", 0) > 0:
            raise TypeError
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -1.0
    except (TypeError, ValueError):
        kinds = "a number of seconds or None" if name == "timeout" else "a number of seconds"
        raise TypeError(f"{name} must be {kinds}, not {_typed(value)}") from None
    if not number >= 0:
        raise ValueError(f"{name} = {shown(value)} is not a number of seconds from 0")
    return number


def permission_bits(value: Any) -> int:
    """Permission bits of a new queue: 0o600, 0o660, 0o666 or another mode between them.

    Its owner must be able to read and write it, otherwise only root could use it; execute and special bits
    mean nothing to a queue.

    Raises
    ------
    TypeError, ValueError
        If it is something else.
    """
    rule = "permission bits of a queue are 0o600 (its owner alone) to 0o666 (everybody), without others"
    mode = whole_number(value, "mode", -(1 << 63), (1 << 63) - 1, f"{rule}; 0o600 is the usual one")
    if mode & ~0o666 or mode & 0o600 != 0o600:
        text = f"mode {mode}" if mode < 0 else f"mode 0o{mode:o}"
        meant = str(mode)
        if set(meant) <= set("01234567") and int(meant, 8) & ~0o66 == 0o600:
            text = f"mode {mode} (0o{mode:o}; did you mean 0o{meant}?)"
        raise ValueError(f"{text}: {rule}")
    return mode


def file_path(value: Any) -> str:
    """A path as str.

    Raises
    ------
    TypeError
        If it is not a path.  (A number would be taken for an open file.)
    ValueError
        If it contains a NUL, or a character that no file's name can have.
    """
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(f"path must be a str or an os.PathLike, not {_typed(value)}")
    text = os.fsdecode(value)
    if "\0" in text:
        raise ValueError(f"path {shown(text)} holds a NUL character, which no path can")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        code = sys.getfilesystemencoding()
        raise ValueError(f"path {shown(text)} cannot be a file's name in {code}") from None
    return text

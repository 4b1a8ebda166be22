"""Conversion of lists, arrays and tensors to NumPy arrays of the types that a step has.

Any number that would change is refused, naming the argument: nothing is wrapped, cut or reinterpreted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.checks import kind_of, shown
from .codes import Code
from .tensors import as_float32, host_array

_KINDS = {
    "b": "booleans",
    "i": "integers",
    "u": "integers",
    "f": "floats",
    "c": "complex numbers",
    "U": "strings",
    "S": "byte strings",
    "M": "dates",
    "m": "times",
}


ROUNDED = 0.001
"""Most that a log-probability may be above 0, as the rounded sum of a softmax makes it.

float16's distance of 1 from the next number is 2**-10, 0.00098.  Of n numbers that are summed in float32,
the relative error is about 2**-24 times the square root of n (Higham and Mary, A new approach to
probabilistic rounding error analysis, 2019): 0.000023 of a vocabulary of 151,936.
"""


def int32_array(values: Any, name: str, ndim: int) -> Any:
    """A C-contiguous int32 array of integers of any width; `name` is what they are called in error texts.

    If two dimensions are asked for, an array of one becomes a single column.

    Raises
    ------
    TypeError
        If it holds anything but integers.
    ValueError
        If it has a different number of dimensions, or a number in it does not fit 32 bits.
    """
    array = _shaped(_array(values, name), name, ndim)
    if array.size == 0:
        return np.ascontiguousarray(array, dtype=np.int32)
    if array.dtype.kind == "f" and isinstance(values, (list, tuple)):
        array = np.asarray(values, dtype=object)  # NumPy makes floats of integers around 2 ** 63
    if array.dtype.kind == "O":  # Python numbers beyond 64 bits, no numbers, or an array of that dtype
        array = _numbers_of(array, name, "integers", np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {_kind(array)}, not integers (dtype {_dtype(values, array)})")
    for bad in (array.min(), array.max()):
        if not -(1 << 31) <= int(bad) < 1 << 31:
            raise ValueError(f"{name} holds {bad}, which does not fit 32 bits")
    return np.ascontiguousarray(array, dtype=np.int32)


def float32_array(values: Any, name: str, ndim: int) -> Any:
    """A C-contiguous float32 array; parameters and errors as for `int32_array`, of floats or integers.

    NaN and infinities stay; a finite number that would become infinite is refused.
    """
    array = _shaped(_array(values, name), name, ndim)
    if array.size == 0:
        return np.ascontiguousarray(np.zeros(array.shape, np.float32))
    if array.dtype.kind == "O":
        array = _numbers_of(array, name, "floats", np.float64)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} holds {_kind(array)}, not floats (dtype {_dtype(values, array)})")
    return as_float32(array, name)


def refuse_impossible(counts: Any, scores: Any, ranks: Any) -> None:
    """Refuse what no model and no worker gives.

    Raises
    ------
    ValueError
        If a count is a negative number that is no code, a score is NaN or above `ROUNDED`, or a rank is
        below 1; the text names the first such value and its place.
    """
    unknown = (counts < 0) & ~np.isin(counts, list(Code))
    if unknown.any():
        codes = ", ".join(f"{code.value} ({code.text})" for code in Code)
        raise _impossible("counts", counts, unknown, f"a negative count is a code: {codes}")
    if scores is None:
        return
    wrong = ~(scores <= ROUNDED)
    if wrong.any():
        why = f"a log-probability is at most 0, or {ROUNDED:g} where a softmax was rounded"
        raise _impossible("scores", scores, wrong, why)
    if (ranks < 1).any():
        raise _impossible("ranks", ranks, ranks < 1, "the likeliest token has rank 1")


def _impossible(name: str, array: Any, wrong: Any, why: str) -> ValueError:
    place = [int(index[0]) for index in wrong.nonzero()]
    where = f"[{', '.join(map(str, place))}]"
    return ValueError(f"{name}{where} is {array[tuple(place)]}: {why}; as_recorded=True keeps any value")


def _array(values: Any, name: str) -> Any:
    """The values as a NumPy array of their own type; bfloat16 becomes float32."""
    if values is None:
        raise TypeError(f"{name} is None: give an array")
    if isinstance(values, (list, tuple)) and any(hasattr(value, "data_ptr") for value in values):
        values = [host_array(value, name) for value in values]
    elif hasattr(values, "data_ptr") or hasattr(values, "__cuda_array_interface__"):
        values = host_array(values, name)
    if not hasattr(values, "__array__") and not hasattr(values, "__array_interface__"):
        _refuse_unindexed(values, name)
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} is not a regular array: its rows are of different lengths") from None
    except Exception as error:
        why = f": {error}" if str(error) else ""
        raise TypeError(f"{name} cannot be made an array ({type(values).__name__}{why})") from None
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise TypeError(f"{name} is a masked array, with values that are missing; give .filled()")
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":  # ml_dtypes, and jax
        array = array.astype(np.float32)
    return array


def _refuse_unindexed(values: Any, name: str) -> None:
    """Refuse what NumPy takes for one value: a number, a text, a dict, a generator."""
    if isinstance(values, (str, bytes, dict, set)) or not hasattr(values, "__len__"):
        raise TypeError(f"{name} is {shown(values)} ({kind_of(values)}): give a list, an array or a tensor")


def _shaped(array: Any, name: str, ndim: int) -> Any:
    if ndim == 2 and array.ndim == 1:
        return array.reshape(-1, 1)
    if array.ndim != ndim:
        wanted = "1 dimension" if ndim == 1 else f"{ndim} dimensions"
        raise ValueError(f"{name} has shape {array.shape}; it must have {wanted}")
    return array


def _dtype(values: Any, array: Any) -> str:
    """The type of the caller's array or tensor; bfloat16 is float32 here."""
    return str(getattr(values, "dtype", array.dtype)).removeprefix("paddle.").removeprefix("torch.")


def _kind(array: Any) -> str:
    return _KINDS.get(array.dtype.kind, "something else")


def _numbers_of(array: Any, name: str, wanted: str, dtype: Any) -> Any:
    """An array of objects as one of numbers; what is no number, or too large for one, is refused."""
    good = (int, np.integer) if wanted == "integers" else (int, float, np.integer, np.floating)
    for value in array.flat:
        if isinstance(value, bool) or not isinstance(value, good):
            raise TypeError(f"{name} holds {shown(value)} ({kind_of(value)}), not {wanted}")
    try:
        return array.astype(dtype)
    except OverflowError:
        largest, bound = max(array.flat, key=abs), "32 bits" if wanted == "integers" else "float32"
        raise ValueError(f"{name} holds {shown(largest)}, which does not fit {bound}") from None

"""Conversion of lists, arrays and tensors to NumPy arrays of the types that a step has.

Any number that would change is refused, naming the argument: nothing is wrapped, cut or reinterpreted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import MalformedMessage
from ..support.checks import kind_of, shown
from .codes import Code
from .layout import Layout
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


class GetTensors:
    """What a get op has left in its tensors, as the message that it was.

    Parameters
    ----------
    channel : str
    layout : Layout
    tokens, scores, ranks : bytes
        Their int64, float32 and int64 numbers.

    Raises
    ------
    MalformedMessage
        If a number does not fit the 32 bits that it has in a message.
    """

    def __init__(
        self, channel: str, layout: Layout, tokens: bytes, scores: bytes = b"", ranks: bytes = b""
    ) -> None:
        self._channel, self._has_counts = channel, channel.startswith("spec")
        self._slots = layout.spec_batch if channel == "spec" else layout.max_batch
        self._depth = layout.max_draft if self._has_counts else 1
        self._width = layout.top_k + 1 if channel.endswith("topk") else 1
        self._header = 3 if channel == "spec_topk" else 2
        self._words, self._ranks = (self._narrow(np.frombuffer(part, np.int64)) for part in (tokens, ranks))
        self._scores = np.frombuffer(scores, np.float32)
        self._refuse_shorter(self._words, self._header)

    def _narrow(self, numbers: Any) -> Any:
        narrow = numbers.astype(np.int32)
        if (wide := numbers[narrow != numbers]).size:
            raise MalformedMessage(self._channel, "number", int(wide[0]), (1 << 31) - 1)
        return narrow

    def _refuse_shorter(self, numbers: Any, least: int) -> None:
        if numbers.size < least:
            raise MalformedMessage(self._channel, "length", numbers.size, least)

    def message(self) -> bytes:
        """The message, with zeros where the tensors are shorter than the layout's."""
        cells = self._slots * self._depth
        words = _padded(self._words, self._header + self._slots * self._has_counts + cells * self._width)
        if not self._channel.endswith("topk"):
            return bytes(words)
        scores = _padded(self._scores, cells * self._width).view(np.int32)
        ranks = _padded(self._ranks, cells)
        if not self._has_counts:
            return b"".join(map(bytes, (words, scores, ranks)))
        head, tokens = np.split(words, [self._header + self._slots])
        rows = [part.reshape(self._slots, -1) for part in (tokens, scores, ranks)]
        return bytes(head) + bytes(np.concatenate(rows, axis=1))

    def check(self, step: Any) -> None:
        """Refuse tensors that do not hold all that the step of their message claims."""
        first = self._header + self._slots * self._has_counts
        live = (self._depth * slot + count for slot, count in enumerate(step.counts) if count > 0)
        rows = max(live, default=0) if self._has_counts else step.batch
        pitch = step.cols if self._channel == "topk" else self._width
        cells = pitch * (rows - 1) + step.cols if rows else 0
        self._refuse_shorter(self._words, first + cells if rows else self._header)
        if self._channel.endswith("topk"):
            self._refuse_shorter(self._scores, cells)
            self._refuse_shorter(self._ranks, rows)


def _padded(numbers: Any, size: int) -> Any:
    whole = np.zeros(size, numbers.dtype)
    whole[: numbers.size] = numbers[:size]
    return whole

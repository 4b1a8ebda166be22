# Arrays that came as one value of a message: routed experts, and the numbers of a prompt's log-probabilities.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from fd_postproc.headers.packed_array cimport FDY_TYPE, fdy_array, fdy_open

from importlib import import_module as _import

ARRAY = FDY_TYPE
"""Type of msgpack's extensions that are arrays."""


cdef object _array_from(fdu_bytes *source, bint lazy):
    """NumPy's int64 or float64 array where its readers are known; the nested lists otherwise."""
    cdef const unsigned char *content
    cdef size_t size
    cdef fdy_array array
    if not fdu_extension(source, FDY_TYPE, &content, &size) or not fdy_open(content, size, &array):
        raise Unknown("a message of results with something else than numbers, texts, lists and maps")
    numbers = _numpy_array(&array)
    if lazy and _arrays_as_numpy:
        return numbers.astype("f8" if array.kind == c"f" else "i8")
    return numbers.tolist()


def lists_of(bytes content not None):
    """The nested lists of an array's bytes; for msgpack, where that unpacks the message."""
    cdef fdy_array array
    if not fdy_open(<const unsigned char *>PyBytes_AS_STRING(content), len(content), &array):
        raise ValueError("bytes that are no array")
    return _numpy_array(&array).tolist()


cdef object _numpy_array(fdy_array *array):
    """The array with its numbers as they came."""
    numbers = PyBytes_FromStringAndSize(<const char *>array.numbers, array.bytes)
    shape = [array.shape[i] for i in range(array.dimensions)]
    return _import("numpy").frombuffer(numbers, f"<{chr(array.kind)}{array.size}").reshape(shape)

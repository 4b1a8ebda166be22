# NumPy arrays and tensors in host memory as msgpack bytes, from their memory.
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport uint32_t
from fd_postproc.headers.msgpack cimport (
    fdm_out, fdm_put_any, fdm_put_array, fdm_room_for_array, fdm_write_array,
)
from fd_postproc.headers.packed_array cimport FDY_DIMENSIONS, fdy_array, fdy_settle

cdef enum:
    LARGE = 1 << 16  # bytes of an array that is copied without the GIL

cdef Py_ssize_t LONGEST_VALUE = 0xFFFFFFFF - 64  # of one value; as in packed_array.h

cdef Py_ssize_t _array_bytes = 0  # of arrays since the last message was packed
cdef object _asked_for_arrays = None  # a function, while a message is packed


cdef bint _reads_arrays() except -1:
    """Whether who receives the message that is packed reads arrays as one value."""
    return _asked_for_arrays is not None and _asked_for_arrays()


cdef bint _put_arrays(fdm_out *out, value) except -1:
    """Write what FastDeploy gives msgpack as lists: an array, a named tuple of some; False for the rest.

    The arrays of a tuple are one value each, if who receives the message reads that.
    """
    cdef Py_ssize_t i
    if not isinstance(value, tuple):
        return _put_array(out, value, False)
    if not hasattr(value, "_asdict"):
        return False
    fdm_put_array(out, PyTuple_GET_SIZE(value))
    for i in range(PyTuple_GET_SIZE(value)):
        item = <object>PyTuple_GET_ITEM(value, i)
        if not fdm_put_any(out, <PyObject *>item, NULL, 0) and not _put_array(out, item, _reads_arrays()):
            return False
    return True


cdef bint _put_array(fdm_out *out, value, bint as_one) except -1:
    """Write an array of NumPy's or a tensor of Paddle's, as one value or as lists; False for the rest."""
    global _array_bytes
    cdef Py_buffer view
    cdef fdy_array array
    cdef int i
    if not hasattr(value, "tolist") or isinstance(value, memoryview):  # msgpack's own business
        return False
    if not PyObject_CheckBuffer(value):
        if not hasattr(value, "numpy"):
            return False
        value = array_of(value)
        if not PyObject_CheckBuffer(value):
            return False
    try:
        PyObject_GetBuffer(value, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    except (BufferError, ValueError):  # not in one piece; a type without a letter
        return False
    try:
        if not _describe(&view, &array):
            if view.len > LONGEST_VALUE:  # FastDeploy's lists of it would need a hundred times as much memory
                raise ValueError(f"an array of {view.len} bytes is too large: 4 GiB are a message's most")
            return False
        fdm_room_for_array(out, &array, not as_one)
        if view.len < LARGE:
            fdm_write_array(out, &array, not as_one)
        else:
            with nogil:
                fdm_write_array(out, &array, not as_one)
        _array_bytes += view.len
        return True
    finally:
        PyBuffer_Release(&view)


cdef bint _describe(Py_buffer *view, fdy_array *array) noexcept:
    """Whether numbers of this format and shape are known; they are described then."""
    cdef int i
    cdef const char *letter = view.format
    if letter == NULL or letter[0] == 0 or letter[1] != 0 or view.ndim > FDY_DIMENSIONS:
        return False
    if letter[0] == c"f" or letter[0] == c"d":
        array.kind = c"f"
    elif letter[0] in (c"b", c"h", c"i", c"l", c"q"):
        array.kind = c"i"
    elif letter[0] in (c"B", c"H", c"I", c"L", c"Q"):
        array.kind = c"u"
    else:
        return False
    array.size, array.dimensions = <int>view.itemsize, view.ndim
    for i in range(view.ndim):
        if view.shape[i] > 0xFFFFFFFF:
            return False
        array.shape[i] = <uint32_t>view.shape[i]
    array.numbers = <const unsigned char *>view.buf
    return fdy_settle(array) == 0

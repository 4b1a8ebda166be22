# NumPy arrays and tensors in host memory as msgpack bytes, from their memory.
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from libc.stdint cimport uint32_t
from fd_postproc.headers.msgpack cimport (
    fdm_begin, fdm_end, fdm_give_up, fdm_out, fdm_room_for_array, fdm_write_array,
)
from fd_postproc.headers.packed_array cimport FDY_DIMENSIONS, fdy_array, fdy_settle

cdef Py_ssize_t LONGEST_VALUE = 0xFFFFFFFF - 64  # of one value; as in packed_array.h


cdef bytes packed_array(value, bint as_one):
    """An array of NumPy's or a tensor of Paddle's, as one value or as lists; None for the rest."""
    cdef Py_buffer view
    cdef fdy_array array
    cdef fdm_out out
    if not hasattr(value, "tolist") or isinstance(value, memoryview):  # msgpack's own business
        return None
    if not PyObject_CheckBuffer(value):
        if not hasattr(value, "numpy"):
            return None
        value = array_of(value)
        if not PyObject_CheckBuffer(value):
            return None
    try:
        PyObject_GetBuffer(value, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    except (BufferError, ValueError):  # not contiguous; a type without a letter
        return None
    try:
        if not _describe(&view, &array):
            if view.len > LONGEST_VALUE:  # FastDeploy's lists of it would need a hundred times as much memory
                raise ValueError(f"an array of {view.len} bytes is too large: 4 GiB are a message's most")
            return None
        fdm_begin(&out, 0)
        try:
            fdm_room_for_array(&out, &array, not as_one)
            with nogil:
                fdm_write_array(&out, &array, not as_one)
            return fdm_end(&out)
        finally:
            fdm_give_up(&out)
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

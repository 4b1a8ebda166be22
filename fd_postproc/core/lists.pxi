# C arrays -> Python lists, in bulk.
#
# The C-API is called on bare PyObject pointers: Cython's own object type would count a reference up and
# down for every number.  PyList_SET_ITEM takes over the reference that the maker returned.

cdef extern from "Python.h":
    PyObject *_new_list "PyList_New"(Py_ssize_t size) except NULL
    PyObject *_new_int "PyLong_FromLong"(long value) except NULL
    PyObject *_new_float "PyFloat_FromDouble"(double value) except NULL
    void _set_item "PyList_SET_ITEM"(PyObject *target, Py_ssize_t i, PyObject *item) noexcept
    void _drop "Py_DECREF"(PyObject *o) noexcept


cdef PyObject *_int_row(const int32_t *values, Py_ssize_t stride, Py_ssize_t n) except NULL:
    """n numbers, `stride` apart."""
    cdef PyObject *row = _new_list(n)
    cdef Py_ssize_t k
    try:
        for k in range(n):
            _set_item(row, k, _new_int(values[k * stride]))
    except:  # noqa: E722 - out of memory: free what was made, then let it pass
        _drop(row)
        raise
    return row


cdef PyObject *_float_row(const float *values, Py_ssize_t n) except NULL:
    cdef PyObject *row = _new_list(n)
    cdef Py_ssize_t k
    try:
        for k in range(n):
            _set_item(row, k, _new_float(values[k]))
    except:  # noqa: E722
        _drop(row)
        raise
    return row


cdef PyObject *_int_rows(const int32_t *values, Py_ssize_t pitch, Py_ssize_t rows,
                         Py_ssize_t cols) except NULL:
    """A list of `rows` lists of `cols` numbers; rows begin `pitch` numbers apart."""
    cdef PyObject *out = _new_list(rows)
    cdef Py_ssize_t j
    try:
        for j in range(rows):
            _set_item(out, j, _int_row(values + j * pitch, 1, cols))
    except:  # noqa: E722
        _drop(out)
        raise
    return out


cdef PyObject *_float_rows(const float *values, Py_ssize_t pitch, Py_ssize_t rows,
                           Py_ssize_t cols) except NULL:
    cdef PyObject *out = _new_list(rows)
    cdef Py_ssize_t j
    try:
        for j in range(rows):
            _set_item(out, j, _float_row(values + j * pitch, cols))
    except:  # noqa: E722
        _drop(out)
        raise
    return out


cdef list _owned(PyObject *made):
    """Hand a new reference over to Cython's counting."""
    cdef list out = <list>made
    _drop(made)
    return out

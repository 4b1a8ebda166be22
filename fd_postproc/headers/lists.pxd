# C arrays -> Python lists, in bulk: inline functions for more than one extension.
#
# The C-API is called on bare PyObject pointers: Cython's own object type would increment and decrement a
# reference count for every number.  PyList_SET_ITEM steals the reference that the maker returned.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t

cdef extern from "Python.h":
    PyObject *new_list "PyList_New"(Py_ssize_t size) except NULL
    PyObject *new_int "PyLong_FromLong"(long value) except NULL
    PyObject *new_float "PyFloat_FromDouble"(double value) except NULL
    void set_item "PyList_SET_ITEM"(PyObject *target, Py_ssize_t i, PyObject *item) noexcept
    void drop_reference "Py_DECREF"(PyObject *o) noexcept


cdef inline PyObject *int_row(const int32_t *values, Py_ssize_t stride, Py_ssize_t n) except NULL:
    """n numbers, `stride` apart."""
    cdef PyObject *row = new_list(n)
    cdef Py_ssize_t k
    try:
        for k in range(n):
            set_item(row, k, new_int(values[k * stride]))
    except:  # noqa: E722 - out of memory: free what was made, then let it pass
        drop_reference(row)
        raise
    return row


cdef inline PyObject *float_row(const float *values, Py_ssize_t n) except NULL:
    cdef PyObject *row = new_list(n)
    cdef Py_ssize_t k
    try:
        for k in range(n):
            set_item(row, k, new_float(values[k]))
    except:  # noqa: E722
        drop_reference(row)
        raise
    return row


cdef inline PyObject *int_rows(const int32_t *values, Py_ssize_t pitch, Py_ssize_t rows,
                               Py_ssize_t cols) except NULL:
    """A list of `rows` lists of `cols` numbers; rows begin `pitch` numbers apart."""
    cdef PyObject *out = new_list(rows)
    cdef Py_ssize_t j
    try:
        for j in range(rows):
            set_item(out, j, int_row(values + j * pitch, 1, cols))
    except:  # noqa: E722
        drop_reference(out)
        raise
    return out


cdef inline PyObject *float_rows(const float *values, Py_ssize_t pitch, Py_ssize_t rows,
                                 Py_ssize_t cols) except NULL:
    cdef PyObject *out = new_list(rows)
    cdef Py_ssize_t j
    try:
        for j in range(rows):
            set_item(out, j, float_row(values + j * pitch, cols))
    except:  # noqa: E722
        drop_reference(out)
        raise
    return out


cdef inline list owned(PyObject *made):
    """Hand a new reference over to Cython's counting."""
    cdef list out = <list>made
    drop_reference(made)
    return out

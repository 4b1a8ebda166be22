# Numbers that callers give, and numbers that are compared.
from cpython.object cimport PyObject
from libc.math cimport isnan

cdef extern from "Python.h":
    bint PyIndex_Check(object o)
    bint PyLong_CheckExact(object o)
    long long PyLong_AsLongLongAndOverflow(object o, int *overflow) except? -1
    Py_ssize_t _clipped_index "PyNumber_AsSsize_t"(object o, PyObject *error) except? -1  # NULL: clips


cdef Py_ssize_t _clipped_whole(value) except? -1:
    """A number as Py_ssize_t; what is beyond that becomes the end of its range."""
    try:
        if type(value) is not bool and checks.is_bool(value):
            raise TypeError
        return _clipped_index(value, NULL)
    except TypeError:  # an array of several numbers, or NumPy's bool
        raise TypeError(f"{checks.shown(value)} is not one whole number") from None


cdef bint _same_scores(const float *a, const float *b, Py_ssize_t n) noexcept nogil:
    """Equal numbers; NaN equals NaN, so that a pickled copy equals its original."""
    cdef Py_ssize_t k
    for k in range(n):
        if a[k] != b[k] and not (isnan(a[k]) and isnan(b[k])):
            return False
    return True

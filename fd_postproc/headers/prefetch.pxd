# The C declarations of prefetch.h that Cython code uses; the comments are there.
from cpython.object cimport PyObject

cdef extern from "fd_postproc/headers/prefetch.h":
    void fdh_lines(const void *o, int first, int last) noexcept
    void fdh_table(PyObject *d, int most) noexcept
    void fdh_end(PyObject *items) noexcept
    PyObject *fdh_item(PyObject *items, Py_ssize_t i) noexcept
    PyObject *fdh_own(PyObject *o) noexcept

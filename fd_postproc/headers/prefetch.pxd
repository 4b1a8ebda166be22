# The C declarations of prefetch.h that Cython code uses; the comments are there.
from cpython.object cimport PyObject

cdef extern from "fd_postproc/headers/prefetch.h":
    void fda_lines(const void *o, int first, int last) noexcept
    void fda_table(PyObject *d, int most) noexcept
    void fda_end(PyObject *items) noexcept
    PyObject *fda_item(PyObject *items, Py_ssize_t i) noexcept
    PyObject *fda_own(PyObject *o) noexcept

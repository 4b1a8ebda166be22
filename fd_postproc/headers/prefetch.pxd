# The C declarations of prefetch.h that Cython code uses; the comments are there.
from cpython.object cimport PyObject

cdef extern from "fd_postproc/headers/prefetch.h":
    ctypedef struct fda_places:
        pass

    void fda_lines(const void *o, int first, int last) noexcept
    void fda_table(PyObject *d, int most) noexcept
    bint fda_moved(const fda_places *at, PyObject *own, PyObject *metrics, PyObject *tokens) noexcept
    void fda_note(fda_places *at, PyObject *own, PyObject *metrics, PyObject *tokens, PyObject *stops,
                  PyObject *settings, PyObject *name, PyObject *heads) noexcept
    void fda_note_end(fda_places *at, PyObject *tokens, PyObject *sent) noexcept
    void fda_fetch_table(const fda_places *at) noexcept
    void fda_fetch_values(const fda_places *at) noexcept
    PyObject *fda_item(PyObject *items, Py_ssize_t i) noexcept

# The C declarations of msgpack.h that Cython code uses; the comments are there.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from fd_postproc.headers.packed_array cimport fdy_array

cdef extern from "fd_postproc/headers/msgpack.h":
    ctypedef struct fdm_out:
        PyObject *bytes
        unsigned char *at
        Py_ssize_t n

    int fdm_begin(fdm_out *o, Py_ssize_t room) except -1
    object fdm_end(fdm_out *o)
    void fdm_give_up(fdm_out *o) noexcept
    int fdm_room(fdm_out *o, Py_ssize_t more) except -1
    int fdm_copy(fdm_out *o, const void *begin, Py_ssize_t n) except -1
    unsigned char *fdm_integer(unsigned char *p, int64_t v) noexcept
    unsigned char *fdm_token(unsigned char *p, int32_t v) noexcept
    unsigned char *fdm_array(unsigned char *p, size_t n) noexcept
    unsigned char *fdm_float(unsigned char *p, double v) noexcept
    int fdm_put_array(fdm_out *o, Py_ssize_t n) except -1
    int fdm_put_logprobs(fdm_out *o, const int32_t *ids, const float *scores, const int32_t *ranks,
                         Py_ssize_t rows, Py_ssize_t cols) except -1
    int fdm_room_for_array(fdm_out *o, const fdy_array *a, bint as_lists) except -1
    void fdm_write_array(fdm_out *o, const fdy_array *a, bint as_lists) noexcept nogil

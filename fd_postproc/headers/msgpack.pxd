# The C declarations of msgpack.h that Cython code uses; the comments are there.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

cdef extern from "fd_postproc/headers/msgpack.h":
    ctypedef struct fdx_out:
        PyObject *bytes
        unsigned char *at
        Py_ssize_t n

    ctypedef struct fdx_spares:
        pass

    int fdx_begin_in(fdx_out *o, fdx_spares *spares, Py_ssize_t room) except -1
    object fdx_end_in(fdx_out *o, fdx_spares *spares)
    void fdx_drop(fdx_spares *spares) noexcept
    int fdx_begin(fdx_out *o, Py_ssize_t room) except -1
    object fdx_end(fdx_out *o)
    void fdx_give_up(fdx_out *o) noexcept
    int fdx_room(fdx_out *o, Py_ssize_t more) except -1
    int fdx_copy(fdx_out *o, const void *begin, Py_ssize_t n) except -1
    unsigned char *fdx_map(unsigned char *p, size_t n) noexcept
    unsigned char *fdx_integer(unsigned char *p, int64_t v) noexcept
    unsigned char *fdx_token(unsigned char *p, int32_t v) noexcept
    unsigned char *fdx_array(unsigned char *p, size_t n) noexcept
    unsigned char *fdx_float(unsigned char *p, double v) noexcept
    int fdx_put_array(fdx_out *o, Py_ssize_t n) except -1
    int fdx_put_plain(fdx_out *o, PyObject *v) except -1
    int fdx_put_any(fdx_out *o, PyObject *v, void *named, int depth) except -1
    int fdx_put_logprobs(fdx_out *o, const int32_t *ids, const float *scores, const int32_t *ranks,
                         Py_ssize_t rows, Py_ssize_t cols) except -1

# The C declarations of packed_array.h that Cython code uses; the comments are there.
from libc.stdint cimport int64_t, uint32_t

cdef extern from "fd_postproc/headers/packed_array.h":
    enum:
        FDY_TYPE, FDY_DIMENSIONS

    ctypedef struct fdy_array:
        char kind
        int size, dimensions
        uint32_t *shape
        int64_t count, bytes
        const unsigned char *numbers

    int fdy_settle(fdy_array *a) noexcept nogil
    bint fdy_open(const unsigned char *p, size_t n, fdy_array *a) noexcept nogil

# The C declarations of product.h that Cython code uses; the comments are there.
from libc.stdint cimport int64_t

cdef extern from "fd_postproc/headers/product.h" nogil:
    int fdo_times(int64_t a, int64_t b, int64_t *product)

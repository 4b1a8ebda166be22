# The C declarations of counter.h that Cython code uses; the comments are there.
from libc.stdint cimport int64_t

cdef extern from "fd_postproc/headers/counter.h" nogil:
    int64_t fdc_read(const int64_t *counter)
    void fdc_set(int64_t *counter, int64_t value)
    void fdc_add(int64_t *counter, int64_t more)

# What other extensions of the package may use of `_core`: the content of a Step.
from fd_postproc.headers.wire cimport fdw_step


cdef class Step:
    cdef fdw_step raw
    cdef int dialect_number
    cdef void *memory

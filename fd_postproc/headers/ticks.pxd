# The C declarations of ticks.h that Cython code uses; the comments are there.
from libc.stdint cimport int64_t

cdef extern from "fd_postproc/headers/ticks.h":
    const char *FDT_SOURCE

    ctypedef struct fdt_clock:
        bint is_steady

    int64_t fdt_now(fdt_clock *clock)

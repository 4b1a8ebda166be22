# The C declarations of shared.h that Cython code uses; the comments are there.
from libc.stdint cimport int64_t

cdef extern from "fd_postproc/headers/shared.h" nogil:
    enum:
        FDH_NAME
        FDH_WAITS
        FDH_READ
        FDH_LEFT

    ctypedef struct fdh_file:
        char *name
        int64_t size
        void *numbers
        int state

    void fdh_read(fdh_file *f)
    void fdh_let_go(fdh_file *f)

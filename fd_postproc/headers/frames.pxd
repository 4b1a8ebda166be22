# The C declarations of frames.h and senders.h that Cython code uses; the comments are there.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from fd_postproc.headers.wire cimport fdw_fault, fdw_layout, fdw_message

cdef extern from "fd_postproc/headers/frames.h" nogil:
    enum:
        FDF_REFUSED
        FDF_NO_MEMORY
        FDF_MORE
        FDF_WHOLE
        FDF_LEAST_LIMIT

    ctypedef struct fdf_sending:
        int64_t size
        int32_t next
        int32_t fragments

    ctypedef struct fdf_assembly:
        int64_t fragments
        int64_t incomplete, open
        uint32_t service
        int numbered
        int64_t foreign

    int fdf_accept(fdf_assembly *a, const fdw_layout *layout, int channel, const void *data, int64_t size,
                   int64_t now, fdw_message *m, fdw_fault *fault)
    void fdf_begin(fdf_assembly *a, const fdw_layout *layout, int channel, int verify, uint64_t seed)
    void fdf_count_stalled(fdf_assembly *a, int64_t now)
    void fdf_free(fdf_assembly *a)

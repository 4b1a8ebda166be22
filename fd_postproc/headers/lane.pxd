# The C declarations of lane.h that Cython code uses; the comments are there.
from libc.stdint cimport int64_t, uint64_t

from fd_postproc.headers.frames cimport fdf_sending

cdef extern from "fd_postproc/headers/lane.h" nogil:
    enum:
        FDQ_TOO_BIG
        FDQ_LAYOUT
        FDQ_SLICE_NS

    ctypedef struct fdq_limits:
        int64_t msgmax
        int64_t msg_qbytes
        int64_t size

    ctypedef struct fdq_lane:
        int msqid
        int compact
        int checksum
        int64_t stock_size
        int64_t capacity
        uint64_t seq
        int64_t frames, messages, bytes, fragments, waits, waited_ns
        fdq_limits limits
        int64_t waiting_since

    int fdq_begin(fdq_lane *lane, fdf_sending *sending, void *message, int64_t size)
    int fdq_go_on(fdq_lane *lane, fdf_sending *sending, int64_t deadline)

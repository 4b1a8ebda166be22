# The C declarations of stream.h that Cython code uses; the comments are there.
from libc.stdint cimport int32_t, int64_t, uint8_t
from fd_postproc.headers.wire cimport fdw_draft, fdw_message

cdef extern from "fd_postproc/headers/stream.h" nogil:
    ctypedef struct fdz_sampled:
        const int64_t *tokens
        const int64_t *ids
        const float *scores
        const int64_t *ranks
        int64_t rows
        int64_t cols

    int64_t fdz_sort(const fdz_sampled *s, int64_t begin, int64_t end, int32_t none, uint8_t *apart,
                     int32_t *counts)
    int fdz_write(const fdw_message *m, const fdz_sampled *s, const int32_t *counts, const fdw_draft *d)

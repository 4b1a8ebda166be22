# The C declarations of stream.h that Cython code uses; the comments are there.
from libc.stdint cimport int32_t, int64_t

cdef extern from "fd_postproc/headers/stream.h" nogil:
    ctypedef struct fdz_rows:
        const char *ids
        const char *scores
        const char *ranks
        int64_t rows
        int64_t cols

    bint fdz_fit(const int64_t *numbers, int64_t n)
    int64_t fdz_sort(const char *tokens, int64_t slots, const fdz_rows *r, int32_t none,
                     unsigned char *apart, int32_t *counts)
    void fdz_gather(const char *tokens, int64_t slots, const fdz_rows *r, const int32_t *counts,
                    int32_t *ids, float *scores, int32_t *ranks)

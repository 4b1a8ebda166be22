# The C declarations of headers/pack.h that Cython code uses; the comments are there.
from libc.stdint cimport int32_t, int64_t

from fd_postproc.headers.wire cimport fdw_draft, fdw_layout, fdw_message

cdef extern from "fd_postproc/headers/pack.h" nogil:
    enum:
        FDP_SAVE_OUTPUT
        FDP_SAVE_OUTPUT_TOPK
        FDP_SPECULATE
        FDP_SPECULATE_TOPK
        FDP_FIRST
        FDP_FIRST_TOPK
        FDP_TOO_MANY
        FDP_TOO_NARROW
        FDP_NO_ROW
        FDP_TOKEN_WIDE
        FDP_ID_WIDE
        FDP_RANK_WIDE
        FDP_BATCH
        FDP_COLUMNS

    ctypedef struct fdp_source:
        int32_t op
        int32_t batch
        int32_t cols
        int32_t stop_flag
        int32_t flag
        int32_t depth
        int32_t skip_prefill
        int64_t width
        int64_t rows
        const int64_t *tokens
        const int64_t *ids
        const float *scores
        const int64_t *ranks
        const int32_t *counts
        const int32_t *offsets
        const int32_t *decoded
        const int64_t *prompts
        const int32_t *preempted
        const int64_t *steps

    ctypedef struct fdp_fault:
        int32_t reason
        int64_t index
        int64_t value
        int64_t bound

    int fdp_channel(int op)
    ctypedef struct fdp_settled:
        pass

    int fdp_plan(fdw_message *m, const fdp_source *s, const fdw_layout *layout, int dialect,
                 fdp_settled *settled, fdp_fault *fault)
    int fdp_write(const fdw_message *m, const fdp_source *s, const fdp_settled *settled, const fdw_draft *d,
                  fdp_fault *fault)

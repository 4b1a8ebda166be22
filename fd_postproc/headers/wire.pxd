# The C declarations of wire.h, gate.h, block.h, gather.h and write.h that Cython code uses; the comments
# are there.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "fd_postproc/headers/wire.h" nogil:
    ctypedef struct fdw_layout:
        int32_t max_batch
        int32_t top_k
        int32_t max_draft
        int32_t spec_batch

    enum:
        FDW_PLAIN
        FDW_TOPK
        FDW_SPEC
        FDW_SPEC_TOPK
        FDW_LEGACY
        FDW_PACKED
        FDW_COMPACT
        FDW_MTYPE_STOCK
        FDW_MTYPE_COMPACT
        FDW_FLAG_DRAFT
        FDW_FLAG_TARGET

    ctypedef struct fdw_geometry:
        int32_t slots
        int32_t depth
        int32_t width
        int64_t counts
        int64_t size

    bint fdw_has_logprobs(int channel)
    bint fdw_counts_may_be_0(int channel)
    bint fdw_is_flag(int32_t flag)
    int32_t fdw_width(const fdw_layout *layout, int channel)
    fdw_geometry fdw_geometry_of(const fdw_layout *layout, int channel, int dialect, int32_t cols)
    int64_t fdw_longest_frame(const fdw_layout *layout, int channel)
    int64_t FDW_MOST_EXTRA
    int64_t FDW_MOST_STREAMED
    int32_t FDW_MOST_STREAMED_BATCH

cdef extern from "fd_postproc/headers/gate.h" nogil:
    enum:
        FDW_LENGTH
        FDW_BATCH
        FDW_COLUMNS
        FDW_COUNT
        FDW_FLAG
        FDW_FIELD_MAGIC
        FDW_FIELD_VERSION
        FDW_FIELD_CHANNEL
        FDW_FRAGMENT
        FDW_ROWS
        FDW_TOKEN
        FDW_CHECKSUM
        FDW_SECTIONS
        FDW_SECTION
        FDW_MASKS
        FDW_NUMBER
        FDW_SERVICE

    ctypedef struct fdw_message:
        const uint8_t *data
        int64_t size
        int32_t channel
        int32_t dialect
        int32_t stop_flag
        int32_t flag
        int32_t batch
        int32_t cols
        int32_t rows
        int64_t claimed
        uint64_t seq
        uint64_t sender
        uint32_t service
        int64_t extra
        int streamed
        fdw_geometry at

    ctypedef struct fdw_fault:
        int32_t field
        int32_t index
        int64_t value
        int64_t bound

    const char *FDW_MASKS_NAME
    const char *FDW_WEIGHTS_NAME
    const char *FDW_TOKENS_NAME
    const char *FDW_PROMPT_NAME
    const char *FDW_POOLED_NAME
    const char *FDW_SPAN_NAME
    int fdw_check_sections(const fdw_message *m, fdw_fault *fault)
    int fdw_refuse(fdw_fault *fault, int field, int32_t index, int64_t value, int64_t bound)
    int fdw_open(fdw_message *m, const fdw_layout *layout, int channel, const void *data, int64_t size,
                 fdw_fault *fault)
    int fdw_open_frame(fdw_message *m, const fdw_layout *layout, int channel, const void *data, int64_t size,
                       int verify, fdw_fault *fault)
    enum:
        FDW_VERSION

    ctypedef struct fdw_frame_header:
        uint8_t version
        uint8_t channel
        int32_t batch
        int32_t cols
        uint64_t seq
        uint64_t sender
        uint16_t fragment
        uint16_t fragments

    bint fdw_is_frame(const void *data, int64_t size)
    uint32_t fdw_service_in(const void *data, int64_t size)
    int fdw_open_streamed(fdw_message *m, int channel, int32_t max_draft, const void *data, int64_t size,
                          int verify, fdw_fault *fault)

cdef extern from "fd_postproc/headers/checksum.h" nogil:
    void fdw_seal(void *frame, int64_t size)
    int fdi_has_instruction

cdef extern from "fd_postproc/headers/block.h" nogil:
    ctypedef struct fdw_block:
        int32_t *counts
        int32_t *offsets
        int32_t *ids
        float *scores
        int32_t *ranks

    ctypedef struct fdw_step:
        int32_t channel
        int32_t stop_flag
        int32_t flag
        int32_t batch
        int32_t rows
        int32_t cols
        uint64_t seq
        fdw_block block
        const void *extra
        int64_t extra_size

    int64_t fdw_block_size(int channel, int32_t batch, int32_t rows, int32_t cols)
    fdw_block fdw_block_in(void *memory, int channel, int32_t batch, int32_t rows, int32_t cols)

cdef extern from "fd_postproc/headers/gather.h" nogil:
    ctypedef struct fdw_tensors:
        int64_t *tokens
        float *scores
        int64_t *ranks

    int fdw_gather(const fdw_message *m, const fdw_block *to)
    int64_t fdw_token_elements(const fdw_geometry *at)
    int64_t fdw_score_elements(const fdw_geometry *at)
    int64_t fdw_rank_elements(const fdw_geometry *at)
    int fdw_fill(const fdw_message *m, const fdw_layout *layout, const fdw_tensors *to, int32_t columns)

cdef extern from "fd_postproc/headers/write.h" nogil:
    ctypedef struct fdw_draft:
        uint8_t *data
        int64_t size

    int fdw_plan(fdw_message *m, const fdw_layout *layout, int channel, int dialect, int32_t batch,
                 int32_t rows, int32_t cols, fdw_fault *fault)
    int fdw_plan_step(fdw_message *m, const fdw_layout *layout, const fdw_step *s, int dialect,
                      fdw_fault *fault)
    int fdw_write_step(const fdw_message *m, const fdw_step *s, const fdw_draft *d)

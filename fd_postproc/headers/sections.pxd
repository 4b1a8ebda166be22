# The C declarations of sections.h that Cython code uses; the comments are there.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "fd_postproc/headers/sections.h" nogil:
    enum:
        FDZ_SECTION_HEADER
        FDZ_MOST_SECTIONS
        FDZ_REQUIRED
        FDZ_ONE_MASK
        FDZ_FINE

    ctypedef struct fdz_section:
        uint64_t name
        uint32_t marks
        int64_t begin
        int64_t length

    ctypedef struct fdz_masks:
        int32_t slots
        int32_t masks
        const uint8_t *counts
        const uint8_t *begins
        const uint8_t *ids

    int64_t fdz_padded(int64_t length)
    int fdz_next(const uint8_t *area, int64_t size, int64_t *at, fdz_section *s)
    int32_t fdz_number(const uint8_t *numbers, int64_t k)
    int fdz_open_masks(fdz_masks *m, const uint8_t *content, int64_t length, int64_t slots, int64_t *where,
                       int64_t *value, int64_t *bound)

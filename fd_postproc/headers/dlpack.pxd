# The C declarations of dlpack.h that Cython code uses; the comments are there.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "fd_postproc/headers/dlpack.h":
    enum:
        FDL_CPU
        FDL_CUDA
        FDL_PINNED
        FDL_MANAGED
        FDL_INT
        FDL_FLOAT
        FDL_BOOL
    const char *FDL_CAPSULE

    ctypedef struct fdl_tensor:
        void *data
        int32_t device_type
        int32_t device_id
        int32_t ndim
        uint8_t code
        uint8_t bits
        uint16_t lanes
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset

    ctypedef struct fdl_exchange:
        uint32_t major
        int (*look)(void *tensor, fdl_tensor *out) except -1
        int (*current_stream)(int32_t device_type, int32_t device_id, void **stream) except -1

    int64_t fdl_elements(const fdl_tensor *t)
    bint fdl_is_contiguous(const fdl_tensor *t)

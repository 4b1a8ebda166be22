/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of DLPack's C exchange API (version 1.x) that asks a tensor where its memory is.
 *
 * A framework puts a capsule with a table of functions on its tensor type, as `__dlpack_c_exchange_api__`;
 * one call then fills in address, device, dtype and shape, twenty times faster than asking the tensor's own
 * methods one by one.  Paddle 3.3 and PyTorch 2.10 and later have it.  DLPack's specification fixes the
 * layout.
 */
#ifndef FD_POSTPROC_DLPACK_H
#define FD_POSTPROC_DLPACK_H

#include <stddef.h>
#include <stdint.h>

#include "fd_postproc/headers/product.h"

/* DLDeviceType: host memory, a CUDA device's, pinned host memory, memory that moves between the two. */
enum { FDL_CPU = 1, FDL_CUDA = 2, FDL_PINNED = 3, FDL_MANAGED = 13 };
enum { FDL_INT = 0, FDL_FLOAT = 2, FDL_BOOL = 6 };   /* DLDataTypeCode */

#define FDL_CAPSULE "dlpack_exchange_api"

/* DLTensor.  Everything in it belongs to the tensor and lives as long as that. */
typedef struct {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous */
    uint64_t byte_offset;
} fdl_tensor;

/* DLPackExchangeAPI; only the version and two functions are used here. */
typedef struct {
    uint32_t major;
    uint32_t minor;
    void *previous;
    void *allocate;
    void *from_python;
    void *to_python;
    int (*look)(void *tensor, fdl_tensor *out); /* dltensor_from_py_object_no_sync: 0, or -1 and an exception */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream); /* may be NULL */
} fdl_exchange;

_Static_assert(sizeof(fdl_tensor) == 48 && offsetof(fdl_tensor, shape) == 24, "DLTensor");
_Static_assert(offsetof(fdl_exchange, look) == 40, "DLPackExchangeAPI");

/* How many elements; -1 if that has no room in 63 bits, or a dimension is negative. */
static inline int64_t fdl_elements(const fdl_tensor *t)
{
    int64_t n = 1;
    for (int32_t k = 0; k < t->ndim; k++)
        if (fdo_times(n, t->shape[k], &n) < 0)
            return -1;
    return n;
}

static inline int fdl_is_contiguous(const fdl_tensor *t)
{
    int64_t stride = 1;
    if (t->strides == NULL)
        return 1;
    for (int32_t k = t->ndim - 1; k >= 0; k--) {
        if (t->shape[k] != 1 && t->strides[k] != stride)
            return 0;
        if (fdo_times(stride, t->shape[k], &stride) < 0)
            return 0;
    }
    return 1;
}

#endif

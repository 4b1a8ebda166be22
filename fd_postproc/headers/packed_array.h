/* SPDX-License-Identifier: Apache-2.0
 *
 * An array as one binary value of msgpack: kind, shape and numbers; written, checked, read, and shown as lists.
 * Plain C: no Python object, no allocation, no system call.
 *
 * The value is an extension of type FDY_TYPE.  Its bytes: a letter ('i' signed, 'u' unsigned, 'f' float), the size
 * of a number, the number of dimensions, a zero; the dimensions, 32 bits each; the numbers.  All little-endian.
 */
#ifndef FD_POSTPROC_PACKED_ARRAY_H
#define FD_POSTPROC_PACKED_ARRAY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fd_postproc/headers/product.h"

#define FDY_TYPE 0x41
#define FDY_DIMENSIONS 4 /* at most */

typedef struct {
    char kind;
    int size, dimensions;
    uint32_t shape[FDY_DIMENSIONS];
    int64_t count, bytes;         /* of all numbers; one number at least */
    const unsigned char *numbers; /* maybe not aligned */
} fdy_array;

/* Whether numbers of this kind are known: those that a list of Python's ints becomes int64 of, and floats. */
static inline int fdy_known(char kind, int size)
{
    if (kind == 'i')
        return size == 1 || size == 2 || size == 4 || size == 8;
    if (kind == 'u')
        return size == 1 || size == 2 || size == 4;
    return kind == 'f' && (size == 4 || size == 8);
}

/* Count the numbers; 0, or -1 for none, too many dimensions, or another kind. */
static inline int fdy_settle(fdy_array *a)
{
    int i;
    a->count = 1;
    if (!fdy_known(a->kind, a->size) || a->dimensions < 1 || a->dimensions > FDY_DIMENSIONS)
        return -1;
    for (i = 0; i < a->dimensions; i++)
        if (fdo_times(a->count, a->shape[i], &a->count) < 0)
            return -1;
    return a->count < 1 || fdo_times(a->count, a->size, &a->bytes) < 0 || a->bytes > UINT32_MAX - 64 ? -1 : 0;
}

static inline size_t fdy_head_size(const fdy_array *a) { return 4 + 4 * (size_t)a->dimensions; }

/* What stands before the numbers; `p` has room for FDY_DIMENSIONS. */
static inline void fdy_put_head(unsigned char *p, const fdy_array *a)
{
    p[0] = (unsigned char)a->kind;
    p[1] = (unsigned char)a->size;
    p[2] = (unsigned char)a->dimensions;
    p[3] = 0;
    memcpy(p + 4, a->shape, 4 * (size_t)a->dimensions);
}

/* 1: the bytes are an array, and it is described; 0: they are none. */
static inline int fdy_open(const unsigned char *p, size_t n, fdy_array *a)
{
    if (n < 8 || p[3] || p[2] < 1 || p[2] > FDY_DIMENSIONS || n < 4 + 4 * (size_t)p[2])
        return 0;
    a->kind = (char)p[0];
    a->size = p[1];
    a->dimensions = p[2];
    memcpy(a->shape, p + 4, 4 * (size_t)p[2]);
    a->numbers = p + fdy_head_size(a);
    return fdy_settle(a) == 0 && (uint64_t)a->bytes == n - fdy_head_size(a);
}

/* A number as 64 bits: an int64, or a double's. */
static inline uint64_t fdy_word(const fdy_array *a, int64_t i)
{
    const unsigned char *p = a->numbers + i * a->size;
    uint64_t u = 0;
    float single;
    double wide;
    memcpy(&u, p, (size_t)a->size);
    if (a->kind == 'i' && a->size < 8) {
        const uint64_t sign = (uint64_t)1 << (8 * a->size - 1);
        return (u ^ sign) - sign;
    }
    if (a->kind == 'f' && a->size == 4) {
        memcpy(&single, p, 4);
        wide = single;
        memcpy(&u, &wide, 8);
    }
    return u;
}

/* ---- nested lists, as msgpack writes those of tolist() ----------------------------------------------------- */

/* How many bytes they take at most. */
static inline int64_t fdy_lists_size(const fdy_array *a)
{
    int64_t bytes = a->kind == 'f' ? 9 * a->count : a->bytes + a->count, lists = 1;
    int i;
    for (i = 0; i < a->dimensions; i++) {
        bytes += 5 * lists;
        lists *= a->shape[i];
    }
    return bytes;
}

#endif

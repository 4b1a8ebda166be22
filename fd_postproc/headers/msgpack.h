/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack bytes, as msgpack's own Packer writes them for numbers and lists of them.
 *
 * https://github.com/msgpack/msgpack/blob/master/spec.md; of several forms the shortest, an integer that is not
 * negative in an unsigned one.
 */
#ifndef FD_POSTPROC_MSGPACK_H
#define FD_POSTPROC_MSGPACK_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "fd_postproc/headers/packed_array.h"
#include "fd_postproc/headers/product.h"

/* A bytes object in the making. */
typedef struct {
    PyObject *bytes; /* NULL after a failure */
    unsigned char *at;
    Py_ssize_t n, room;
} fdm_out;

static inline uint16_t fdm_swap16(uint16_t v) { return __builtin_bswap16(v); }

static int fdm_begin(fdm_out *o, Py_ssize_t room)
{
    o->bytes = PyBytes_FromStringAndSize(NULL, room);
    o->at = o->bytes ? (unsigned char *)PyBytes_AS_STRING(o->bytes) : NULL;
    o->n = 0;
    o->room = o->bytes ? room : 0;
    return o->bytes ? 0 : -1;
}

static void fdm_give_up(fdm_out *o)
{
    Py_CLEAR(o->bytes);
    o->at = NULL;
    o->n = o->room = 0;
}

static int fdm_resize(fdm_out *o, Py_ssize_t room)
{
    if (_PyBytes_Resize(&o->bytes, room) < 0) { /* which has let go of it */
        fdm_give_up(o);
        return -1;
    }
    o->at = (unsigned char *)PyBytes_AS_STRING(o->bytes);
    o->room = room;
    return 0;
}

/* The bytes; a new reference, or NULL. */
static PyObject *fdm_end(fdm_out *o)
{
    PyObject *bytes;
    if (o->n != o->room && fdm_resize(o, o->n) < 0)
        return NULL;
    bytes = o->bytes;
    o->bytes = NULL;
    fdm_give_up(o);
    return bytes;
}

static int fdm_grow(fdm_out *o, Py_ssize_t more)
{
    if (o->bytes == NULL)
        return -1;
    if (more > PY_SSIZE_T_MAX / 4 - o->n) {
        PyErr_NoMemory();
        return -1;
    }
    return fdm_resize(o, (o->n + more) + (o->n + more) / 2);
}

/* Make sure that there is room for more bytes. */
static inline int fdm_room(fdm_out *o, Py_ssize_t more)
{
    return __builtin_expect(o->room - o->n >= more, 1) ? 0 : fdm_grow(o, more);
}

static inline int fdm_copy(fdm_out *o, const void *from, Py_ssize_t n)
{
    if (fdm_room(o, n) < 0)
        return -1;
    memcpy(o->at + o->n, from, (size_t)n);
    o->n += n;
    return 0;
}

/* These need room for nine bytes, and return the place behind what they have written. */

static inline unsigned char *fdm_u8(unsigned char *p, unsigned char tag, uint8_t v)
{
    p[0] = tag;
    p[1] = v;
    return p + 2;
}

static inline unsigned char *fdm_u16(unsigned char *p, unsigned char tag, uint16_t v)
{
    v = fdm_swap16(v);
    p[0] = tag;
    memcpy(p + 1, &v, 2);
    return p + 3;
}

static inline unsigned char *fdm_u32(unsigned char *p, unsigned char tag, uint32_t v)
{
    v = __builtin_bswap32(v);
    p[0] = tag;
    memcpy(p + 1, &v, 4);
    return p + 5;
}

static inline unsigned char *fdm_u64(unsigned char *p, unsigned char tag, uint64_t v)
{
    v = __builtin_bswap64(v);
    p[0] = tag;
    memcpy(p + 1, &v, 8);
    return p + 9;
}

static inline unsigned char *fdm_float(unsigned char *p, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, 8);
    return fdm_u64(p, 0xcb, bits);
}

static unsigned char *fdm_integer(unsigned char *p, int64_t v)
{
    if (v >= 0) {
        if (v < 0x80) {
            *p = (unsigned char)v;
            return p + 1;
        }
        if (v < 0x100)
            return fdm_u8(p, 0xcc, (uint8_t)v);
        if (v < 0x10000)
            return fdm_u16(p, 0xcd, (uint16_t)v);
        if (v < INT64_C(0x100000000))
            return fdm_u32(p, 0xce, (uint32_t)v);
        return fdm_u64(p, 0xcf, (uint64_t)v);
    }
    if (v >= -0x20) {
        *p = (unsigned char)v;
        return p + 1;
    }
    if (v >= -0x80)
        return fdm_u8(p, 0xd0, (uint8_t)v);
    if (v >= -0x8000)
        return fdm_u16(p, 0xd1, (uint16_t)v);
    if (v >= -INT64_C(0x80000000))
        return fdm_u32(p, 0xd2, (uint32_t)v);
    return fdm_u64(p, 0xd3, (uint64_t)v);
}

/* The same for what a token id usually is.  Ids need two or four bytes, as it happens: no branch depends on it. */
static inline unsigned char *fdm_token(unsigned char *p, int32_t v)
{
    uint32_t u = (uint32_t)v, wide, swapped;
    if (__builtin_expect(v < 0x100, 0))
        return fdm_integer(p, v);
    wide = u >= 0x10000;
    swapped = __builtin_bswap32(u << (wide ? 0 : 16));
    *p = (unsigned char)(0xcd + wide);
    memcpy(p + 1, &swapped, 4);
    return p + 3 + 2 * wide;
}

static inline unsigned char *fdm_head(unsigned char *p, size_t n, unsigned char fix, size_t fixed, unsigned char wide)
{
    if (n < fixed) {
        *p = (unsigned char)(fix | n);
        return p + 1;
    }
    return n < 0x10000 ? fdm_u16(p, wide, (uint16_t)n) : fdm_u32(p, (unsigned char)(wide + 1), (uint32_t)n);
}

static inline unsigned char *fdm_array(unsigned char *p, size_t n) { return fdm_head(p, n, 0x90, 16, 0xdc); }

/* What follows makes sure of its room itself.  1: written; 0: not known here; -1: an exception. */

static inline int fdm_put_array(fdm_out *o, Py_ssize_t n)
{
    if (n > (Py_ssize_t)UINT32_MAX)
        return 0;
    if (fdm_room(o, 9) < 0)
        return -1;
    o->n = fdm_array(o->at + o->n, (size_t)n) - o->at;
    return 1;
}

/* [[id, ...], ...], [[score, ...], ...], [rank, ...] in an array: what LogprobsLists is packed as. */
static int fdm_put_logprobs(fdm_out *o, const int32_t *ids, const float *scores, const int32_t *ranks,
                            Py_ssize_t rows, Py_ssize_t cols)
{
    Py_ssize_t i, j;
    unsigned char *p;
    int64_t most;
    if (rows > INT32_MAX || cols > INT32_MAX || fdo_times(rows, 18 * cols + 27, &most) < 0
        || most > PY_SSIZE_T_MAX / 2 || fdm_room(o, 28 + most) < 0)
        return -1;
    p = fdm_array(o->at + o->n, 3);
    p = fdm_array(p, (size_t)rows);
    for (i = 0; i < rows; i++) {
        p = fdm_array(p, (size_t)cols);
        for (j = 0; j < cols; j++)
            p = fdm_token(p, *ids++);
    }
    p = fdm_array(p, (size_t)rows);
    for (i = 0; i < rows; i++) {
        p = fdm_array(p, (size_t)cols);
        for (j = 0; j < cols; j++)
            p = fdm_float(p, *scores++);
    }
    p = fdm_array(p, (size_t)rows);
    for (i = 0; i < rows; i++)
        p = fdm_integer(p, ranks[i]);
    o->n = p - o->at;
    return 1;
}

/* ---- arrays ------------------------------------------------------------------------------------------------ */

/* Memory of an array for fdm_write_array, which needs no GIL; -1 with an exception.  `*room` bytes are made. */
static int fdm_room_for_array(fdm_out *o, const fdy_array *a, int as_lists)
{
    const int64_t most = as_lists ? fdy_lists_size(a) : a->bytes + (int64_t)fdy_head_size(a) + 6;
    if (o->bytes == NULL)
        return -1;
    if (o->room - o->n >= most)
        return 0;
    if (most > PY_SSIZE_T_MAX / 2 - o->n) {
        PyErr_NoMemory();
        return -1;
    }
    return fdm_resize(o, o->n + most + 1024); /* exactly: half as much again would be many megabytes */
}

static unsigned char *fdm_lists(unsigned char *p, const fdy_array *a, int level, int64_t *next)
{
    uint32_t i;
    p = fdm_array(p, a->shape[level]);
    if (level + 1 < FDY_DIMENSIONS && level + 1 < a->dimensions) { /* the first for the compiler */
        for (i = 0; i < a->shape[level]; i++)
            p = fdm_lists(p, a, level + 1, next);
        return p;
    }
    if (a->kind == 'u' && a->size == 1) {
        const unsigned char *from = a->numbers + *next;
        for (i = 0; i < a->shape[level]; i++) { /* no branch: one byte, or a tag and it */
            const unsigned char wide = from[i] >> 7;
            p[0] = wide ? 0xcc : from[i];
            p[1] = from[i];
            p += 1 + wide;
        }
    } else if (a->kind == 'f') {
        for (i = 0; i < a->shape[level]; i++)
            p = fdm_u64(p, 0xcb, fdy_word(a, *next + i));
    } else {
        for (i = 0; i < a->shape[level]; i++)
            p = fdm_integer(p, (int64_t)fdy_word(a, *next + i));
    }
    *next += a->shape[level];
    return p;
}

/* An array as one value, or as the lists that tolist() makes.  There is room for it. */
static void fdm_write_array(fdm_out *o, const fdy_array *a, int as_lists)
{
    unsigned char *p = o->at + o->n;
    int64_t next = 0;
    size_t size;
    if (as_lists) {
        p = fdm_lists(p, a, 0, &next);
    } else {
        size = fdy_head_size(a) + (size_t)a->bytes;
        p = fdm_u32(p, 0xc9, (uint32_t)size);
        *p++ = FDY_TYPE;
        fdy_put_head(p, a);
        memcpy(p + fdy_head_size(a), a->numbers, (size_t)a->bytes);
        p += size;
    }
    o->n = p - o->at;
}

#endif

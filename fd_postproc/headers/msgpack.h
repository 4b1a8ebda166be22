/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack bytes, as msgpack's own Packer writes them for Python's numbers, texts, lists and dictionaries.
 *
 * https://github.com/msgpack/msgpack/blob/master/spec.md; of several forms the shortest, an integer that is not
 * negative in an unsigned one.  Whatever has to be asked how it is packed is not known here: 0 is returned, and
 * the caller asks msgpack.
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

#define FDX_DEEPEST 64 /* levels of lists and dictionaries; msgpack itself takes some 500 */

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

static inline unsigned char *fdm_map(unsigned char *p, size_t n) { return fdm_head(p, n, 0x80, 16, 0xde); }

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

static int fdm_put_run(fdm_out *o, const char *from, Py_ssize_t n, unsigned char tag8)
{
    unsigned char *p;
    if (n > (Py_ssize_t)UINT32_MAX)
        return 0;
    if (fdm_room(o, n + 9) < 0)
        return -1;
    p = o->at + o->n;
    if (n < 0x100)
        p = fdm_u8(p, tag8, (uint8_t)n);
    else if (n < 0x10000)
        p = fdm_u16(p, (unsigned char)(tag8 + 1), (uint16_t)n);
    else
        p = fdm_u32(p, (unsigned char)(tag8 + 2), (uint32_t)n);
    memcpy(p, from, (size_t)n);
    o->n = p + n - o->at;
    return 1;
}

static int fdm_put_text(fdm_out *o, PyObject *text)
{
    Py_ssize_t n;
    const char *from;
    if (PyUnicode_IS_COMPACT_ASCII(text)) {
        from = (const char *)PyUnicode_1BYTE_DATA(text);
        n = PyUnicode_GET_LENGTH(text);
    } else {
        from = PyUnicode_AsUTF8AndSize(text, &n);
        if (from == NULL) { /* half a surrogate pair, or no memory: msgpack says it */
            PyErr_Clear();
            return 0;
        }
    }
    if (n >= 32)
        return fdm_put_run(o, from, n, 0xd9);
    if (fdm_room(o, 32) < 0)
        return -1;
    o->at[o->n] = (unsigned char)(0xa0 | n);
    memcpy(o->at + o->n + 1, from, (size_t)n);
    o->n += n + 1;
    return 1;
}

static int fdm_put_integer(fdm_out *o, PyObject *v)
{
    int overflow;
    int64_t d = PyLong_AsLongLongAndOverflow(v, &overflow);
    if (fdm_room(o, 9) < 0)
        return -1;
    if (overflow > 0) {
        uint64_t u = PyLong_AsUnsignedLongLong(v);
        if (u == UINT64_MAX && PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
        o->n = fdm_u64(o->at + o->n, 0xcf, u) - o->at;
        return 1;
    }
    if (overflow < 0)
        return 0;
    o->n = fdm_integer(o->at + o->n, d) - o->at;
    return 1;
}

static inline int fdm_put_byte(fdm_out *o, unsigned char byte)
{
    if (fdm_room(o, 1) < 0)
        return -1;
    o->at[o->n++] = byte;
    return 1;
}

/* None, a bool, a number or a text; exactly, not an instance of a subclass. */
static inline int fdm_put_plain(fdm_out *o, PyObject *v)
{
    if (PyLong_CheckExact(v))
        return fdm_put_integer(o, v);
    if (PyFloat_CheckExact(v)) {
        if (fdm_room(o, 9) < 0)
            return -1;
        o->n = fdm_float(o->at + o->n, PyFloat_AS_DOUBLE(v)) - o->at;
        return 1;
    }
    if (PyUnicode_CheckExact(v))
        return fdm_put_text(o, v);
    if (v == Py_None)
        return fdm_put_byte(o, 0xc0);
    if (v == Py_False)
        return fdm_put_byte(o, 0xc2);
    if (v == Py_True)
        return fdm_put_byte(o, 0xc3);
    return 0;
}

/* Plain values, bytes, and lists, tuples and dictionaries of all these.  `named` is a tuple's subclass that is
 * taken for a tuple.  No code of Python's is run, so nothing changes meanwhile. */
static int fdm_put_any(fdm_out *o, PyObject *v, PyTypeObject *named, int depth)
{
    Py_ssize_t i, n, place = 0;
    PyObject *key, *value, **items;
    int done = fdm_put_plain(o, v);
    if (done)
        return done;
    if (depth >= FDX_DEEPEST)
        return 0;
    if (PyList_CheckExact(v) || PyTuple_CheckExact(v) || Py_TYPE(v) == named) {
        n = Py_SIZE(v);
        items = PySequence_Fast_ITEMS(v); /* a list, a tuple or a subclass of tuple */
        done = fdm_put_array(o, n);
        for (i = 0; i < n && done > 0; i++)
            done = fdm_put_any(o, items[i], named, depth + 1);
        return done;
    }
    if (PyDict_CheckExact(v)) {
        n = PyDict_GET_SIZE(v);
        if (n > (Py_ssize_t)UINT32_MAX)
            return 0;
        if (fdm_room(o, 9) < 0)
            return -1;
        o->n = fdm_map(o->at + o->n, (size_t)n) - o->at;
        for (done = 1; done > 0 && PyDict_Next(v, &place, &key, &value);) {
            done = fdm_put_any(o, key, named, depth + 1);
            if (done > 0)
                done = fdm_put_any(o, value, named, depth + 1);
        }
        return done;
    }
    if (PyBytes_CheckExact(v))
        return fdm_put_run(o, PyBytes_AS_STRING(v), PyBytes_GET_SIZE(v), 0xc4);
    return 0;
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

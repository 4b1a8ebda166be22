/* SPDX-License-Identifier: Apache-2.0
 *
 * A growing buffer, and what is written into it as JSON.  Plain C: no Python object, no system call.
 *
 * Every function that writes returns 0, or -1 where memory is out; the buffer then keeps what it had.
 */
#ifndef FDJ_JSON_H
#define FDJ_JSON_H

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fd_postproc/headers/shortest.h"

typedef struct {
    char *data;
    size_t used, room;
} fdj_buffer;

static int fdj_grow(fdj_buffer *b, size_t more) {
    if (more > SIZE_MAX / 4 - b->used)
        return -1;
    size_t room = 2 * (b->used + more);
    char *data = (char *)realloc(b->data, room < 4096 ? 4096 : room);
    if (!data)
        return -1;
    b->data = data;
    b->room = room < 4096 ? 4096 : room;
    return 0;
}

/* Room for some bytes more. */
static inline int fdj_need(fdj_buffer *b, size_t more) {
    return b->room - b->used >= more ? 0 : fdj_grow(b, more);
}

static inline int fdj_put(fdj_buffer *b, const char *from, size_t n) {
    if (fdj_need(b, n))
        return -1;
    if (n) /* nothing may go into a buffer without memory, where memcpy is undefined */
        memcpy(b->data + b->used, from, n);
    b->used += n;
    return 0;
}

/* What JSON has to escape: quote, backslash and control characters below 32; the letter of the short form. */
static const char fdj_escapes[256] = {
    'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'b', 't', 'n', 'u', 'f', 'r', 'u', 'u',
    'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u',
    ['"'] = '"', ['\\'] = '\\',
};

/* How many letters stand at the beginning that are written as they are: a multiple of 64, or all. */
static inline size_t fdj_plain(const char *text, size_t n) {
    size_t at, i;
    for (at = 0; at + 64 <= n; at += 64) {
        unsigned char escaped = 0;
        for (i = 0; i < 64; i++) { /* without a branch: eight letters or more at once */
            const unsigned char c = (unsigned char)text[at + i];
            escaped |= (unsigned char)((c < 0x20) | (c == '"') | (c == '\\'));
        }
        if (escaped)
            return at;
    }
    for (i = at; i < n; i++)
        if (fdj_escapes[(unsigned char)text[i]])
            return at;
    return n;
}

/* A string in quotes, of UTF-8 that is taken as it is. */
static inline int fdj_string(fdj_buffer *b, const char *text, size_t n) {
    static const char hex[] = "0123456789abcdef";
    const size_t plain = n < 64 ? 0 : fdj_plain(text, n);
    if (n > SIZE_MAX / 8 || fdj_need(b, plain + 6 * (n - plain) + 2))
        return -1;
    char *out = b->data + b->used;
    *out++ = '"';
    memcpy(out, text, plain);
    out += plain;
    for (size_t i = plain; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const char escape = fdj_escapes[c];
        if (!escape) {
            *out++ = (char)c;
            continue;
        }
        *out++ = '\\';
        *out++ = escape;
        if (escape == 'u') {
            *out++ = '0';
            *out++ = '0';
            *out++ = hex[c >> 4];
            *out++ = hex[c & 15];
        }
    }
    *out++ = '"';
    b->used = (size_t)(out - b->data);
    return 0;
}

static inline int fdj_integer(fdj_buffer *b, long long n) {
    char digits[24];
    char *from = fdj_digits(digits + 24, n < 0 ? 0 - (uint64_t)n : (uint64_t)n);
    if (n < 0)
        *--from = '-';
    return fdj_put(b, from, (size_t)(digits + 24 - from));
}

/* A double; null if it is not finite. */
static inline int fdj_double(fdj_buffer *b, double value, const fdj_style *style) {
    if (!isfinite(value))
        return fdj_put(b, "null", 4);
    if (fdj_need(b, FDJ_DOUBLE_ROOM))
        return -1;
    b->used = (size_t)(fdj_write_double(b->data + b->used, value, style) - b->data);
    return 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack bytes, read in place: numbers, and how long lists and texts are.  Plain C: no Python object, no allocation.
 *
 * https://github.com/msgpack/msgpack/blob/master/spec.md.  Nothing is read behind `end`.  Every function that reads
 * moves `at` behind what it has read and returns 1; or returns 0 where something else stands there.
 */
#ifndef FDU_UNPACK_H
#define FDU_UNPACK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const unsigned char *at, *end;
} fdu_bytes;

static inline size_t fdu_left(const fdu_bytes *b) { return (size_t)(b->end - b->at); }

/* A number of n bytes, the most significant first, behind the byte that says what it is. */
static inline int fdu_big_endian(fdu_bytes *b, size_t n, uint64_t *value) {
    uint64_t v = 0;
    if (fdu_left(b) <= n)
        return 0;
    if (n == 8) {
        memcpy(&v, b->at + 1, 8);
        v = __builtin_bswap64(v);
    } else {
        for (size_t i = 1; i <= n; i++)
            v = v << 8 | b->at[i];
    }
    b->at += n + 1;
    *value = v;
    return 1;
}

/* An integer of 64 bits with a sign. */
static inline int fdu_integer(fdu_bytes *b, int64_t *value) {
    uint64_t v = 0;
    if (b->at >= b->end)
        return 0;
    unsigned char kind = *b->at;
    if (kind <= 0x7f || kind >= 0xe0) {
        *value = (int8_t)kind;
        b->at++;
        return 1;
    }
    if (kind < 0xcc || kind > 0xd3 || !fdu_big_endian(b, (size_t)1 << (kind & 3), &v))
        return 0;
    switch (kind) {
    case 0xcf:
        if (v > INT64_MAX) {
            b->at -= 9;
            return 0;
        }
        break;
    case 0xd0: v = (uint64_t)(int64_t)(int8_t)v; break;
    case 0xd1: v = (uint64_t)(int64_t)(int16_t)v; break;
    case 0xd2: v = (uint64_t)(int64_t)(int32_t)v; break;
    }
    *value = (int64_t)v;
    return 1;
}

/* A float, of either size. */
static inline int fdu_float(fdu_bytes *b, double *value) {
    uint64_t v;
    if (b->at >= b->end)
        return 0;
    if (*b->at == 0xcb) {
        if (!fdu_big_endian(b, 8, &v))
            return 0;
        memcpy(value, &v, 8);
        return 1;
    }
    if (*b->at == 0xca) {
        float single;
        if (!fdu_big_endian(b, 4, &v))
            return 0;
        uint32_t bits = (uint32_t)v;
        memcpy(&single, &bits, 4);
        *value = single;
        return 1;
    }
    return 0;
}

/* How many items a list (`few` 0x90, `many` 0xdc) or pairs a map (0x80, 0xde) has; no more than there are bytes. */
static inline int fdu_count(fdu_bytes *b, unsigned char few, unsigned char many, size_t *count) {
    const unsigned char *begin = b->at;
    uint64_t n;
    if (b->at >= b->end)
        return 0;
    unsigned char kind = *b->at;
    if ((kind & 0xf0) == few) {
        n = kind & 15;
        b->at++;
    } else if ((kind & 0xfe) != many || !fdu_big_endian(b, kind == many ? 2 : 4, &n)) {
        return 0;
    }
    if (n > fdu_left(b)) {
        b->at = begin;
        return 0;
    }
    *count = (size_t)n;
    return 1;
}

static inline int fdu_list(fdu_bytes *b, size_t *count) { return fdu_count(b, 0x90, 0xdc, count); }

static inline int fdu_map(fdu_bytes *b, size_t *count) { return fdu_count(b, 0x80, 0xde, count); }

/* A text's UTF-8, which may not be any. */
static inline int fdu_text(fdu_bytes *b, const char **text, size_t *size) {
    const unsigned char *begin = b->at;
    uint64_t n;
    if (b->at >= b->end)
        return 0;
    unsigned char kind = *b->at;
    if ((kind & 0xe0) == 0xa0) {
        n = kind & 31;
        b->at++;
    } else if (kind < 0xd9 || kind > 0xdb || !fdu_big_endian(b, (size_t)1 << (kind - 0xd9), &n)) {
        return 0;
    }
    if (n > fdu_left(b)) {
        b->at = begin;
        return 0;
    }
    *text = (const char *)b->at;
    *size = (size_t)n;
    b->at += n;
    return 1;
}

/* Log-probabilities of a result: [ids of each row, scores of each row, a rank a row]. */
typedef struct {
    const unsigned char *ids, *scores; /* the first of each */
    size_t rows;                       /* that are in all three */
} fdu_rows;

/* Such rows, integers and floats only. */
static inline int fdu_logprobs(fdu_bytes *b, fdu_rows *rows) {
    const unsigned char *begin = b->at;
    size_t parts, ids, scores, ranks, n;
    int64_t integer;
    double real;
    if (!fdu_list(b, &parts) || parts != 3 || !fdu_list(b, &ids))
        goto other;
    rows->ids = b->at;
    for (size_t i = 0; i < ids; i++) {
        if (!fdu_list(b, &n))
            goto other;
        while (n--)
            if (!fdu_integer(b, &integer))
                goto other;
    }
    if (!fdu_list(b, &scores))
        goto other;
    rows->scores = b->at;
    for (size_t i = 0; i < scores; i++) {
        if (!fdu_list(b, &n))
            goto other;
        while (n--)
            if (!fdu_float(b, &real))
                goto other;
    }
    if (!fdu_list(b, &ranks))
        goto other;
    for (size_t i = 0; i < ranks; i++)
        if (!fdu_integer(b, &integer))
            goto other;
    rows->rows = ids < scores ? ids : scores;
    rows->rows = rows->rows < ranks ? rows->rows : ranks;
    return 1;
other:
    b->at = begin;
    return 0;
}

/* The bytes of an extension of a type. */
static inline int fdu_extension(fdu_bytes *b, int type, const unsigned char **content, size_t *size) {
    const unsigned char *begin = b->at;
    uint64_t n;
    if (b->at >= b->end)
        return 0;
    unsigned char kind = *b->at;
    if (kind >= 0xd4 && kind <= 0xd8) {
        n = (uint64_t)1 << (kind - 0xd4);
        b->at++;
    } else if (kind < 0xc7 || kind > 0xc9 || !fdu_big_endian(b, (size_t)1 << (kind - 0xc7), &n)) {
        return 0;
    }
    if (fdu_left(b) <= n || *b->at != type) {
        b->at = begin;
        return 0;
    }
    *content = b->at + 1;
    *size = (size_t)n;
    b->at += 1 + n;
    return 1;
}

#endif

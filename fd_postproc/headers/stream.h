/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sampler leaves of a step that goes through FastDeploy's ZeroMQ socket, sorted into what the body of
 * a compact frame holds, and what not.
 *
 * Plain C: no system call, no allocation, no Python.
 */
#ifndef FD_POSTPROC_STREAM_H
#define FD_POSTPROC_STREAM_H

#include <limits.h>
#include "fd_postproc/headers/write.h"

/* Whether n numbers fit 32 bits. */
static inline int fdz_fit(const int64_t *numbers, int64_t n)
{
    uint64_t wide = 0;
    for (int64_t k = 0; k < n; k++)
        wide |= (uint64_t)(numbers[k] ^ (int32_t)numbers[k]);
    return wide == 0;
}

/* One token a slot, or a code below 0.  Rows of log-probabilities are of the first slots; `ids` is NULL if
 * there are none. */
typedef struct {
    const int64_t *tokens;
    const int64_t *ids;     /* rows * cols */
    const float *scores;
    const int64_t *ranks;   /* rows */
    int64_t rows, cols;
} fdz_sampled;

/* Whether the body of a frame holds the token of slot i, which is none below 0. */
static inline int fdz_fits_body(const fdz_sampled *s, int64_t i)
{
    if (s->tokens[i] > INT_MAX)
        return 0;
    if (s->ids == NULL)
        return 1;
    return i < s->rows && s->ids[s->cols * i] == s->tokens[i] && fdz_fit(s->ids + s->cols * i, s->cols)
           && fdz_fit(s->ranks + i, 1);
}

/* Write the counts of the slots from `begin` to `end`: 1 where the body holds the token, a code (at least
 * INT_MIN) where there is none, and `none` where it goes into a section of its own, which a mark in `apart`
 * says.  Slots that are marked already stay so.  The number of tokens in the body. */
static inline int64_t fdz_sort(const fdz_sampled *s, int64_t begin, int64_t end, int32_t none, uint8_t *apart,
                               int32_t *counts)
{
    int64_t live = 0;
    for (int64_t i = begin; i < end; i++) {
        const int64_t token = s->tokens[i];
        if (token < 0) {
            counts[i] = token < INT_MIN ? INT_MIN : (int32_t)token;
            apart[i] = 0;
            continue;
        }
        apart[i] |= !fdz_fits_body(s, i);
        counts[i] = apart[i] ? none : 1;
        live += !apart[i];
    }
    return live;
}

/* Write a planned frame without its sections: header, counts, and what is in the body. */
static inline int fdz_write(const fdw_message *m, const fdz_sampled *s, const int32_t *counts, const fdw_draft *d)
{
    const fdw_geometry *at = &m->at;
    const int64_t cols = m->cols;
    int64_t row = 0, i = 0, run, first;
    if (fdw_write_header(m, d) < 0 || fdw_put(d, at->counts, counts, 4 * (int64_t)m->batch) < 0)
        return -1;
    while (i < m->batch) {
        uint8_t *ids, *ranks;
        if (counts[i] != 1) {
            i++;
            continue;
        }
        for (first = i; i < m->batch && counts[i] == 1; i++)
            ;
        run = i - first;
        ids = fdw_room(d, fdw_place(&at->ids, 0, row), 4 * cols * run);
        if (ids == NULL)
            return -1;
        if (s->ids == NULL) {
            fdw_narrow(ids, s->tokens + first, run);
        } else {
            ranks = fdw_room(d, fdw_place(&at->ranks, 0, row), 4 * run);
            if (ranks == NULL
                || fdw_put(d, fdw_place(&at->scores, 0, row), s->scores + cols * first, 4 * cols * run) < 0)
                return -1;
            fdw_narrow(ids, s->ids + cols * first, cols * run);
            fdw_narrow(ranks, s->ranks + first, run);
        }
        row += run;
    }
    return 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The numbers of a step that comes through FastDeploy's ZeroMQ socket, sorted into what a step of one token a
 * request can hold, and what not.
 *
 * Plain C: no system call, no allocation, no Python.  Nothing is assumed of alignment.
 */
#ifndef FD_POSTPROC_STREAM_H
#define FD_POSTPROC_STREAM_H

#include <limits.h>
#include <stdint.h>
#include <string.h>

/* Whether n numbers fit 32 bits. */
static inline int fdz_fit(const int64_t *numbers, int64_t n)
{
    uint64_t wide = 0;
    for (int64_t k = 0; k < n; k++)
        wide |= (uint64_t)(numbers[k] ^ (int32_t)numbers[k]);
    return wide == 0;
}

/* Log-probabilities of a frame: rows of the first slots; `ids` NULL if it has none. */
typedef struct {
    const char *ids, *scores, *ranks;
    int64_t rows, cols;
} fdz_rows;

/* Write counts[slots]: 1 where a step can hold the token, a code (at least INT_MIN) where there is none, and
 * `none` for a slot that somebody has to look at closely, whose mark in `apart` is set.  Slots that are marked
 * already stay so.  The number of tokens in the step. */
static inline int64_t fdz_sort(const char *tokens, int64_t slots, const fdz_rows *r, int32_t none,
                               unsigned char *apart, int32_t *counts)
{
    int64_t live = 0;
    for (int64_t i = 0; i < slots; i++) {
        int64_t token;
        int32_t first = 0;
        memcpy(&token, tokens + 8 * i, sizeof token);
        if (token < 0) {
            counts[i] = token < INT_MIN ? INT_MIN : (int32_t)token;
            apart[i] = 0;
            continue;
        }
        if (r->ids != NULL && i < r->rows)
            memcpy(&first, r->ids + 4 * r->cols * i, sizeof first);
        apart[i] |= token > INT_MAX || (r->ids != NULL && (i >= r->rows || first != token));
        counts[i] = apart[i] ? none : 1;
        live += !apart[i];
    }
    return live;
}

/* Copy the numbers of those that are in the step, one after the other. */
static inline void fdz_gather(const char *tokens, int64_t slots, const fdz_rows *r, const int32_t *counts,
                              int32_t *ids, float *scores, int32_t *ranks)
{
    const int64_t pitch = 4 * r->cols;
    int64_t row = 0, i = 0, run, first;
    while (i < slots) {
        if (counts[i] != 1) {
            i++;
            continue;
        }
        for (first = i; i < slots && counts[i] == 1; i++)
            if (r->ids == NULL) {
                int64_t token;
                memcpy(&token, tokens + 8 * i, sizeof token);
                ids[row + i - first] = (int32_t)token;
            }
        run = i - first;
        if (r->ids != NULL) {
            memcpy((char *)ids + pitch * row, r->ids + pitch * first, (size_t)(pitch * run));
            memcpy((char *)scores + pitch * row, r->scores + pitch * first, (size_t)(pitch * run));
            memcpy(ranks + row, r->ranks + 4 * first, (size_t)(4 * run));
        }
        row += run;
    }
}

#endif

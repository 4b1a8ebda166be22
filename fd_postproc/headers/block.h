/* SPDX-License-Identifier: Apache-2.0
 *
 * A step in memory: one block, structure of arrays, accepted rows only.
 */
#ifndef FD_POSTPROC_BLOCK_H
#define FD_POSTPROC_BLOCK_H

#include "fd_postproc/headers/wire.h"

typedef struct {
    int32_t *counts;    /* [batch] tokens of each request, or its negative code */
    int32_t *offsets;   /* [batch + 1] first row of each request */
    int32_t *ids;       /* [rows][cols] */
    float *scores;      /* [rows][cols]; NULL on channels without logprobs */
    int32_t *ranks;     /* [rows]; NULL likewise */
} fdw_block;

static inline int64_t fdw_block_size(int channel, int32_t batch, int32_t rows, int32_t cols)
{
    const int64_t cells = (int64_t)rows * cols;
    return 4 * (2 * (int64_t)batch + 1 + cells + (fdw_has_logprobs(channel) ? cells + rows : 0));
}

/* Divide `memory` (fdw_block_size bytes, aligned to 4) into the arrays. */
static inline fdw_block fdw_block_in(void *memory, int channel, int32_t batch, int32_t rows, int32_t cols)
{
    const int64_t cells = (int64_t)rows * cols;
    fdw_block b;
    b.counts = (int32_t *)memory;
    b.offsets = b.counts + batch;
    b.ids = b.offsets + batch + 1;
    b.scores = NULL;
    b.ranks = NULL;
    if (fdw_has_logprobs(channel)) {
        b.scores = (float *)(b.ids + cells);
        b.ranks = (int32_t *)(b.scores + cells);
    }
    return b;
}

/* All that a Step holds, and a message says. */
typedef struct {
    int32_t channel;
    int32_t stop_flag;
    int32_t flag;
    int32_t batch;
    int32_t rows;
    int32_t cols;
    uint64_t seq;       /* of a compact frame */
    fdw_block block;
    const void *extra;  /* sections, in `extra_size` bytes, which a compact frame carries */
    int64_t extra_size;
} fdw_step;

#endif

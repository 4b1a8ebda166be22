/* SPDX-License-Identifier: Apache-2.0
 *
 * The least that the work could cost, in plain C.
 *
 * Nothing here checks anything: not a length, not a count, not an allocation.  It is a yardstick for
 * timing inputs known to be good, never a way to read a message.
 */
#ifndef FD_POSTPROC_FLOOR_H
#define FD_POSTPROC_FLOOR_H

#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fd_postproc/headers/block.h"

/* What a message looks like, worked out before any timing. */
typedef struct {
    fdw_geometry at;
    int channel;
    int32_t batch;
    int32_t rows;
    int32_t cols;
} flr_shape;

/* Accepted rows of a message -> one malloc'd block laid out as a Step's (fdw_block). */
static inline void *flr_rows(const flr_shape *s, const uint8_t *data)
{
    const fdw_geometry *at = &s->at;
    const size_t bytes = 4 * (size_t)s->cols;
    void *memory = malloc((size_t)fdw_block_size(s->channel, s->batch, s->rows, s->cols));
    const fdw_block to = fdw_block_in(memory, s->channel, s->batch, s->rows, s->cols);
    int32_t *ids = to.ids, *ranks = to.ranks, row = 0;
    float *scores = to.scores;
    if (at->counts >= 0)
        memcpy(to.counts, data + at->counts, 4 * (size_t)s->batch);
    for (int32_t i = 0; i < s->batch; i++) {
        const uint8_t *slot = data + at->ids.slot * i;
        if (at->counts < 0) {
            int32_t word;
            memcpy(&word, slot + at->ids.base, sizeof word);
            to.counts[i] = word < 0 ? word : 1;
        }
        to.offsets[i] = row;
        for (int32_t j = 0; j < to.counts[i]; j++, row++) {
            const uint8_t *from = slot + at->ids.pitch * j;
            memcpy(ids, from + at->ids.base, bytes);
            ids += s->cols;
            if (scores == NULL)
                continue;
            memcpy(scores, from + at->scores.base, bytes);
            scores += s->cols;
            memcpy(ranks++, data + at->ranks.base + at->ranks.slot * i + 4 * (int64_t)j, 4);
        }
    }
    to.offsets[s->batch] = row;
    return memory;
}

/* One call, in a function that callgrind can tell from all others: not inlined, and its name exported. */
__attribute__((noinline, visibility("default"))) PyObject *flr_counted(PyObject *call)
{
    return PyObject_CallNoArgs(call);
}

#endif

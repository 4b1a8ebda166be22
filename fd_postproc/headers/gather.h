/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of an opened message: its accepted rows in a block (fdw_gather), or what FastDeploy's get op
 * would leave in its tensors (fdw_fill).
 */
#ifndef FD_POSTPROC_GATHER_H
#define FD_POSTPROC_GATHER_H

#include "fd_postproc/headers/block.h"
#include "fd_postproc/headers/gate.h"

/* Copy the accepted rows of an opened message, and only the columns sent, into a block.
 * Counts are checked again: the bytes may lie in memory that another process writes to. */
static inline int fdw_gather(const fdw_message *m, const fdw_block *to)
{
    const fdw_geometry *at = &m->at;
    int64_t row = 0;
    for (int32_t i = 0; i < m->batch; i++) {
        int32_t count = 0;
        if (fdw_count(m, i, &count) < 0 || count > m->rows - row)
            return -1;
        to->counts[i] = count;
        to->offsets[i] = (int32_t)row;
        const int64_t ids = fdw_place(&at->ids, i, row);
        const int64_t scores = fdw_place(&at->scores, i, row);
        const int64_t ranks = fdw_place(&at->ranks, i, row);
        for (int32_t j = 0; j < count; j++, row++) {
            if (fdw_row(m, ids + at->ids.pitch * j, to->ids + row * m->cols, m->cols) < 0)
                return -1;
            if (to->scores == NULL)
                continue;
            if (fdw_row(m, scores + at->scores.pitch * j, to->scores + row * m->cols, m->cols) < 0
                || fdw_word(m, ranks + at->ranks.pitch * j, to->ranks + row) < 0)
                return -1;
        }
    }
    to->offsets[m->batch] = (int32_t)row;
    return row == m->rows ? 0 : -1;
}

/* ---- FastDeploy's receive tensors ------------------------------------------------------------------ */

/* What a get op writes into: int64 tokens with the header in front, float32 scores, int64 ranks. */
typedef struct {
    int64_t *tokens;
    float *scores;
    int64_t *ranks;
} fdw_tensors;

/* Elements that each tensor must have for any message of the layout. */
static inline int64_t fdw_token_elements(const fdw_geometry *at)
{
    const int64_t counts = at->counts < 0 ? 0 : at->slots;
    return at->header / 4 + counts + (int64_t)at->slots * at->depth * at->width;
}
static inline int64_t fdw_score_elements(const fdw_geometry *at)
{
    return (int64_t)at->slots * at->depth * at->width;
}
static inline int64_t fdw_rank_elements(const fdw_geometry *at)
{
    return (int64_t)at->slots * at->depth;
}

static inline int fdw_widen(const fdw_message *m, int64_t offset, int64_t *to, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        int32_t word;
        if (fdw_word(m, offset + 4 * k, &word) < 0)
            return -1;
        to[k] = word;
    }
    return 0;
}

/* Write an opened message into a get op's tensors as FastDeploy's op does, and touch nothing else.  A compact
 * frame is written as the packed message that means the same.  `columns` is the op's k + 1: columns that the
 * legacy dialect copies. */
static inline int fdw_fill(const fdw_message *m, const fdw_layout *layout, const fdw_tensors *to,
                           int32_t columns)
{
    const fdw_geometry *at = &m->at;
    const fdw_geometry stock = fdw_geometry_of(layout, m->channel, FDW_PACKED, m->cols);
    const int32_t cols = m->dialect == FDW_LEGACY && columns < m->cols ? columns : m->cols;
    int32_t words[3];
    const int header = fdw_stock_words(m, words);
    int64_t *counts = to->tokens + header;
    int64_t *tokens = counts + (stock.counts < 0 ? 0 : stock.slots); /* of slot 0 */
    int64_t row = 0;
    if (m->batch > stock.slots)
        return -1;
    for (int k = 0; k < header; k++)
        to->tokens[k] = words[k];
    if (m->channel == FDW_SPEC && m->dialect != FDW_COMPACT) { /* upstream copies everything, live or not */
        const int64_t end = stock.ids.base + stock.ids.slot * stock.slots;
        return fdw_widen(m, 0, to->tokens, (m->size < end ? m->size : end) / 4);
    }
    for (int32_t i = 0; i < m->batch; i++) {
        int64_t ids, scores, ranks;
        int32_t count;
        if (fdw_count(m, i, &count) < 0 || count > at->depth)
            return -1;
        if (stock.counts >= 0)
            counts[i] = count;
        else if (at->counts < 0)
            count = 1; /* such a slot is copied whatever its token says */
        else if (count < 0)
            for (int32_t k = 0; k < cols; k++)
                tokens[(int64_t)i * cols + k] = count;
        ids = fdw_place(&at->ids, i, row);
        scores = fdw_place(&at->scores, i, row);
        ranks = fdw_place(&at->ranks, i, row);
        for (int32_t j = 0; j < count; j++, row++) {
            /* Rows of a tensor lie as wide apart as in a message, but its slots hold nothing else. */
            const int64_t width = m->channel != FDW_TOPK || m->dialect == FDW_LEGACY ? at->width : m->cols;
            const int64_t slot = (int64_t)i * at->depth + j;
            if (fdw_widen(m, ids + at->ids.pitch * j, tokens + slot * width, cols) < 0)
                return -1;
            if (to->scores == NULL)
                continue;
            if (fdw_copy(m, scores + at->scores.pitch * j, to->scores + slot * width, 4 * (int64_t)cols) < 0
                || fdw_widen(m, ranks + at->ranks.pitch * j, to->ranks + slot, 1) < 0)
                return -1;
        }
    }
    return 0;
}

#endif

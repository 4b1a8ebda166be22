/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a message: fdw_plan and what follows it find its header and its length, then it is written into
 * zeroed memory.  Every write goes through fdw_room.
 */
#ifndef FD_POSTPROC_WRITE_H
#define FD_POSTPROC_WRITE_H

#include "fd_postproc/headers/block.h"
#include "fd_postproc/headers/gate.h"

/* Narrow n numbers; the index of one that does not fit 32 bits, or -1. */
static inline int64_t fdw_narrow(uint8_t *to, const int64_t *from, int64_t n)
{
    int64_t wide = 0;
    for (int64_t k = 0; k < n; k++) {
        const int64_t number = from[k];
        const int32_t word = (int32_t)number;
        wide |= number ^ word;
        memcpy(to + 4 * k, &word, sizeof word);
    }
    if (wide == 0)
        return -1;
    for (int64_t k = 0; k < n; k++)
        if (from[k] != (int32_t)from[k])
            return k;
    return 0; /* it has changed since */
}

/* A message being written into zeroed memory. */
typedef struct {
    uint8_t *data;
    int64_t size;
} fdw_draft;

static inline uint8_t *fdw_room(const fdw_draft *d, int64_t offset, int64_t length)
{
    return offset >= 0 && length >= 0 && offset <= d->size - length ? d->data + offset : NULL;
}

static inline int fdw_put(const fdw_draft *d, int64_t offset, const void *from, int64_t length)
{
    uint8_t *to = fdw_room(d, offset, length);
    if (to == NULL)
        return -1;
    memcpy(to, from, (size_t)length);
    return 0;
}

/* One row of n numbers; see fdw_row. */
static inline int fdw_put_row(const fdw_draft *d, int64_t offset, const void *from, int64_t n)
{
    return n == 1 ? fdw_put(d, offset, from, 4) : fdw_put(d, offset, from, 4 * n);
}

static inline int fdw_put_word(const fdw_draft *d, int64_t offset, int32_t word)
{
    return fdw_put(d, offset, &word, sizeof word);
}

/* Begin a message: what fdw_open would read in its header.  m->claimed has to be grown to its length by
 * fdw_plan_request; a compact frame also has to know its rows beforehand. */
static inline int fdw_plan(fdw_message *m, const fdw_layout *layout, int channel, int dialect, int32_t batch,
                           int32_t rows, int32_t cols, fdw_fault *fault)
{
    memset(m, 0, sizeof *m);
    m->channel = channel;
    m->dialect = dialect;
    m->batch = batch;
    m->rows = rows;
    m->at = dialect == FDW_COMPACT ? fdw_geometry_of_frame(layout, channel, batch, rows, cols)
                                   : fdw_geometry_of(layout, channel, dialect, cols);
    m->cols = dialect == FDW_LEGACY ? m->at.width : cols; /* a legacy message always has all columns */
    if (batch > m->at.slots)
        return fdw_refuse(fault, FDW_BATCH, -1, batch, m->at.slots);
    if (cols > m->at.width)
        return fdw_refuse(fault, FDW_COLUMNS, -1, cols, m->at.width);
    m->claimed = m->at.counts < 0 ? m->at.header : m->at.counts + 4 * (int64_t)batch;
    if (dialect == FDW_COMPACT)
        m->claimed = m->at.size;
    return 0;
}

/* Count request i, which will have `count` tokens or a code, into m->claimed.  A message ends after its last
 * live slot: every FastDeploy receiver accepts that. */
static inline int fdw_plan_request(fdw_message *m, int32_t i, int32_t count, fdw_fault *fault)
{
    const int64_t end = m->dialect == FDW_COMPACT ? 0 : fdw_slot_end(m, i, count);
    if (count > m->at.depth)
        return fdw_refuse(fault, FDW_COUNT, i, count, m->at.depth);
    if (end > m->claimed)
        m->claimed = end;
    return 0;
}

/* The header of a planned message.  m->seq, m->sender and m->service go into a frame. */
static inline int fdw_write_header(const fdw_message *m, const fdw_draft *d)
{
    int32_t words[3];
    fdw_frame_header h;
    if (m->dialect != FDW_COMPACT)
        return fdw_put(d, 0, words, 4 * fdw_stock_words(m, words));
    memset(&h, 0, sizeof h);
    h.words[0] = -2;
    h.magic = FDW_MAGIC;
    h.version = FDW_VERSION;
    h.channel = (uint8_t)m->channel;
    h.flag = (uint8_t)m->flag;
    h.features = (m->extra > 0 ? FDW_SECTIONED : 0) | (m->service != 0 ? FDW_NUMBERED : 0);
    h.stop_flag = m->stop_flag;
    h.batch = m->batch;
    h.cols = m->cols;
    h.rows = m->rows;
    h.total = (uint32_t)m->claimed;
    h.seq = m->seq;
    h.sender = fdw_sender_in(m->service, m->sender);
    h.fragments = 1;
    return fdw_put(d, 0, &h, sizeof h);
}

/* Can this layout carry the step? */
static inline int fdw_plan_step(fdw_message *m, const fdw_layout *layout, const fdw_step *s, int dialect,
                                fdw_fault *fault)
{
    if (fdw_plan(m, layout, s->channel, dialect, s->batch, s->rows, s->cols, fault) < 0)
        return -1;
    if (!fdw_is_flag(s->flag))
        return fdw_refuse(fault, FDW_FLAG, -1, s->flag, FDW_FLAG_DRAFT);
    m->stop_flag = s->stop_flag;
    m->flag = s->flag;
    m->seq = s->seq;
    for (int32_t i = 0; i < s->batch; i++)
        if (fdw_plan_request(m, i, s->block.counts[i], fault) < 0)
            return -1;
    if (s->extra_size > 0 && dialect == FDW_COMPACT) {
        if (s->extra_size > FDW_MOST_EXTRA)
            return fdw_refuse(fault, FDW_SECTIONS, -1, s->extra_size, FDW_MOST_EXTRA);
        m->extra = fdz_padded(m->at.size);
        m->claimed = m->extra + s->extra_size;
    }
    return 0;
}

/* Write a planned step into m->claimed bytes of zeroed memory. */
static inline int fdw_write_step(const fdw_message *m, const fdw_step *s, const fdw_draft *d)
{
    const fdw_geometry *at = &m->at;
    const fdw_block *b = &s->block;
    int64_t row = 0;
    if (fdw_write_header(m, d) < 0 || (m->extra > 0 && fdw_put(d, m->extra, s->extra, s->extra_size) < 0))
        return -1;
    for (int32_t i = 0; i < s->batch; i++) {
        const int32_t count = b->counts[i];
        const int64_t ids = fdw_place(&at->ids, i, row);
        const int64_t scores = fdw_place(&at->scores, i, row);
        const int64_t ranks = fdw_place(&at->ranks, i, row);
        if (at->counts >= 0) {
            if (fdw_put_word(d, at->counts + 4 * (int64_t)i, count) < 0)
                return -1;
        } else if (count < 0) {
            for (int32_t k = 0; k < m->cols; k++)
                if (fdw_put_word(d, ids + 4 * (int64_t)k, count) < 0)
                    return -1;
        }
        for (int32_t j = 0; j < count; j++, row++) {
            const int64_t cell = ids + at->ids.pitch * j;
            if (fdw_put_row(d, cell, b->ids + row * s->cols, s->cols) < 0)
                return -1;
            if (b->scores == NULL)
                continue;
            if (fdw_put_row(d, scores + at->scores.pitch * j, b->scores + row * s->cols, s->cols) < 0
                || fdw_put_word(d, ranks + at->ranks.pitch * j, b->ranks[row]) < 0)
                return -1;
            for (int32_t k = s->cols; k < m->cols; k++) /* their scores, 0.0, are there already */
                if (fdw_put_word(d, cell + 4 * (int64_t)k, FDW_FILLER_ID) < 0)
                    return -1;
        }
    }
    return 0;
}

#endif

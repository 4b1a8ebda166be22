/* SPDX-License-Identifier: Apache-2.0
 *
 * FastDeploy's save and get ops, restated from docs/wire-protocol.md for CPU tensors: what their loops and their one
 * system call cost, without Paddle around them.
 *
 * Like the originals, each has a static message, zero at first and then reused, sends all of it, narrows by a C
 * cast and checks nothing: a yardstick for inputs known to be good.  Packed dialect; GPU layout.
 */
#ifndef FD_POSTPROC_STOCK_H
#define FD_POSTPROC_STOCK_H

#include <stdint.h>

#include "fd_postproc/headers/gather.h"
#include "fd_postproc/headers/pack.h"
#include "fd_postproc/headers/sysv.h"

enum { STK_BATCH = 512, STK_COLUMNS = 21, STK_DRAFT = 6, STK_SPEC_BATCH = 256, STK_PREEMPTED = -9 };

typedef struct {
    long mtype;
    int32_t words[2 + STK_BATCH];
} stk_plain_message;

typedef struct {
    long mtype;
    int32_t words[2 + STK_BATCH * STK_COLUMNS];
    float scores[STK_BATCH * STK_COLUMNS];
    int32_t ranks[STK_BATCH];
} stk_topk_message;

typedef struct {
    long mtype;
    int32_t words[2 + STK_SPEC_BATCH + STK_SPEC_BATCH * STK_DRAFT];
} stk_spec_message;

typedef struct {
    int32_t tokens[STK_DRAFT * STK_COLUMNS];
    float scores[STK_DRAFT * STK_COLUMNS];
    int32_t ranks[STK_DRAFT];
} stk_slot;

typedef struct {
    long mtype;
    int32_t words[3 + STK_BATCH];
    stk_slot slots[STK_BATCH];
} stk_spec_topk_message;

#define STK_SEND(msqid, m) fds_put_wait(msqid, &(m), (int64_t)(sizeof(m) - sizeof(long)), 0, -1)

static inline int stk_save_output(int msqid, const fdp_source *in)
{
    static stk_plain_message m;
    m.mtype = 1;
    m.words[0] = in->stop_flag;
    m.words[1] = in->batch;
    for (int32_t i = 0; i < in->batch; i++)
        m.words[2 + i] = in->preempted[i] == 1 ? STK_PREEMPTED : (int32_t)in->tokens[i];
    return STK_SEND(msqid, m);
}

static inline int stk_save_output_topk(int msqid, const fdp_source *in)
{
    static stk_topk_message m;
    m.mtype = 1;
    m.words[0] = in->stop_flag;
    m.words[1] = in->batch | in->cols << 16;
    for (int32_t i = 0; i < in->batch; i++) {
        for (int32_t k = 0; k < in->cols; k++) {
            const int64_t from = (int64_t)i * in->cols + k;
            if (in->preempted[i] == 1)
                m.words[2 + from] = STK_PREEMPTED;
            else
                m.words[2 + from] = (int32_t)(k == 0 ? in->tokens[i] : in->ids[from]);
            m.scores[from] = in->scores[from];
        }
        m.ranks[i] = (int32_t)in->ranks[i];
    }
    return STK_SEND(msqid, m);
}

static inline int stk_speculate_save_output(int msqid, const fdp_source *in)
{
    static stk_spec_message m;
    int32_t *counts = m.words + 2, *tokens = counts + STK_SPEC_BATCH;
    m.mtype = 1;
    m.words[0] = in->stop_flag;
    m.words[1] = in->batch;
    for (int32_t i = 0; i < STK_SPEC_BATCH; i++) {
        if (i >= in->batch)
            counts[i] = 0;
        else if (in->preempted[i] == 1)
            counts[i] = STK_PREEMPTED;
        else
            counts[i] = in->decoded[i] < in->prompts[i] ? 0 : in->counts[i]; /* skip_prefill */
        for (int32_t j = 0; j < STK_DRAFT; j++)
            tokens[STK_DRAFT * i + j] = i < in->batch ? (int32_t)in->tokens[(int64_t)i * in->width + j] : 0;
    }
    return STK_SEND(msqid, m);
}

static inline int stk_speculate_save_output_topk(int msqid, const fdp_source *in)
{
    static stk_spec_topk_message m;
    m.mtype = 1;
    m.words[0] = in->stop_flag;
    m.words[1] = in->flag | in->cols << 8;
    m.words[2] = in->batch;
    for (int32_t i = 0; i < in->batch; i++) {
        const int32_t n = in->decoded[i] < in->prompts[i] ? 0 : in->counts[i];
        stk_slot *slot = &m.slots[i];
        m.words[3 + i] = in->preempted[i] == 1 ? STK_PREEMPTED : n;
        for (int32_t j = 0; j < n; j++) {
            const int64_t row = (int64_t)in->offsets[i] + j;
            for (int32_t k = 0; k < in->cols; k++) {
                const int64_t from = row * in->cols + k;
                const int64_t id = k == 0 ? in->tokens[(int64_t)i * in->width + j] : in->ids[from];
                slot->tokens[STK_COLUMNS * j + k] = (int32_t)id;
                slot->scores[STK_COLUMNS * j + k] = in->scores[from];
            }
            slot->ranks[j] = (int32_t)in->ranks[row];
        }
    }
    return STK_SEND(msqid, m);
}

/* ---- Get ops: one message into the caller's int64 and float32 tensors ---- */

#define STK_TAKE(msqid, m, wait) fds_wait(msqid, &(m), (int64_t)(sizeof(m) - sizeof(long)), (wait) ? -1 : 0)

static inline void stk_widen(const int32_t *from, int32_t n, int64_t *to)
{
    for (int32_t k = 0; k < n; k++)
        to[k] = from[k];
}

static inline int64_t stk_get_output(int msqid, const fdw_tensors *to, int wait)
{
    static stk_plain_message m;
    const int64_t got = STK_TAKE(msqid, m, wait);
    if (got >= 0)
        stk_widen(m.words, 2 + m.words[1], to->tokens);
    return got;
}

static inline int64_t stk_get_output_topk(int msqid, const fdw_tensors *to, int wait)
{
    static stk_topk_message m;
    const int64_t got = STK_TAKE(msqid, m, wait);
    if (got < 0)
        return got;
    const int32_t batch = m.words[1] & 0xFFFF, cols = m.words[1] >> 16;
    stk_widen(m.words, 2, to->tokens);
    for (int32_t i = 0; i < batch; i++) {
        for (int32_t k = 0; k < cols; k++) {
            const int32_t at = cols * i + k;
            to->tokens[2 + at] = m.words[2 + at];
            to->scores[at] = m.scores[at];
        }
        to->ranks[i] = m.ranks[i];
    }
    return got;
}

static inline int64_t stk_speculate_get_output(int msqid, const fdw_tensors *to, int wait)
{
    static stk_spec_message m;
    const int64_t got = STK_TAKE(msqid, m, wait);
    if (got >= 0) /* all of it, live or not */
        stk_widen(m.words, 2 + STK_SPEC_BATCH * (1 + STK_DRAFT), to->tokens);
    return got;
}

static inline int64_t stk_speculate_get_output_topk(int msqid, const fdw_tensors *to, int wait)
{
    static stk_spec_topk_message m;
    const int64_t got = STK_TAKE(msqid, m, wait);
    if (got < 0)
        return got;
    const int32_t batch = m.words[2], cols = m.words[1] >> 8;
    int64_t *tokens = to->tokens + 3 + STK_BATCH;
    stk_widen(m.words, 3, to->tokens);
    for (int32_t i = 0; i < batch; i++) {
        const stk_slot *slot = &m.slots[i];
        to->tokens[3 + i] = m.words[3 + i];
        for (int32_t j = 0; j < m.words[3 + i]; j++) {
            const int32_t row = STK_COLUMNS * (STK_DRAFT * i + j);
            for (int32_t k = 0; k < cols; k++) {
                tokens[row + k] = slot->tokens[STK_COLUMNS * j + k];
                to->scores[row + k] = slot->scores[STK_COLUMNS * j + k];
            }
            to->ranks[STK_DRAFT * i + j] = slot->ranks[j];
        }
    }
    return got;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing: from the tensors that FastDeploy's save ops are given to a message.
 *
 * Two passes over the requests: fdp_plan checks every number that decides where something is read or written
 * and finds the message's length; fdp_write writes it.  request.h defines what a request contributes, and
 * only there do the six ops differ.  Such a number is read once, and kept from one pass to the other: the
 * tensors may change in between (a copy from a device into them may be in flight).  Plain C: no system call,
 * no allocation, no Python.
 *
 * docs/wire-protocol.md describes what an op writes, byte for byte; where FastDeploy's op reads or writes out
 * of bounds, this one refuses.
 */
#ifndef FD_POSTPROC_PACK_H
#define FD_POSTPROC_PACK_H

#include "fd_postproc/headers/write.h"
#include "fd_postproc/headers/request.h" /* which needs the integer types */

static inline int fdp_channel(int op)
{
    switch (op) {
    case FDP_SAVE_OUTPUT: return FDW_PLAIN;
    case FDP_SAVE_OUTPUT_TOPK: return FDW_TOPK;
    case FDP_SPECULATE: case FDP_FIRST: return FDW_SPEC;
    default: return FDW_SPEC_TOPK;
    }
}

/* The tensors passed to a save op; NULL where the op has no such tensor. */
typedef struct {
    int32_t op;
    int32_t batch;
    int32_t cols;           /* columns of a logprob row; 1 without logprobs */
    int32_t stop_flag;
    int32_t flag;
    int32_t depth;          /* tokens that a slot can hold */
    int32_t skip_prefill;   /* FDP_SPECULATE, FDP_FIRST: requests in chunked prefill send nothing */
    int64_t width;          /* columns of `tokens` */
    int64_t rows;           /* logprob rows there are */
    const int64_t *tokens;  /* [batch][width] sampled tokens */
    const int64_t *ids;     /* [rows][cols] */
    const float *scores;    /* [rows][cols] */
    const int64_t *ranks;   /* [rows] */
    const int32_t *counts;  /* [batch] accepted tokens */
    const int32_t *offsets; /* [batch] first logprob row of each request */
    const int32_t *decoded; /* [batch] seq_lens_decoder */
    const int64_t *prompts; /* [batch] prompt_lens */
    const int32_t *preempted; /* [batch] 1: preempted */
    const int64_t *steps;   /* [batch] step_idx */
} fdp_source;

static inline int64_t fdp_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline fdp_terms fdp_terms_of(const fdp_source *s)
{
    const fdp_terms terms = {s->op, s->skip_prefill, s->depth, s->width, s->rows};
    return terms;
}

/* What was decided about a request. */
typedef struct {
    fdp_request request;
    int64_t token;          /* the one that decided, if fdp_one_token */
} fdp_settled;

/* What the tensors say about request i. */
#define FDP_ONCE(number) __atomic_load_n(&(number), __ATOMIC_RELAXED)
static inline fdp_given fdp_read(const fdp_source *s, int32_t i)
{
    fdp_given g;
    g.token = fdp_one_token(s->op) ? FDP_ONCE(s->tokens[i * s->width]) : 0;
    g.count = s->counts != NULL ? FDP_ONCE(s->counts[i]) : 0;
    g.in_prefill = s->decoded != NULL && FDP_ONCE(s->decoded[i]) < FDP_ONCE(s->prompts[i]);
    g.preempted = s->preempted != NULL && FDP_ONCE(s->preempted[i]) == 1;
    g.first = s->offsets != NULL ? FDP_ONCE(s->offsets[i]) : 0;
    g.step = s->steps != NULL ? FDP_ONCE(s->steps[i]) : 0;
    return g;
}

/* The same as fdw_plan, for a save op. */
static inline int fdp_plan_message(fdw_message *m, const fdp_source *s, const fdw_layout *layout, int dialect,
                                   int32_t rows, fdp_fault *fault)
{
    const int channel = fdp_channel(s->op);
    fdw_fault wire;
    if (fdw_plan(m, layout, channel, dialect, s->batch, rows, s->cols, &wire) < 0)
        return fdp_refuse(fault, wire.field == FDW_BATCH ? FDP_BATCH : FDP_COLUMNS, 0, wire.value, wire.bound);
    m->stop_flag = s->stop_flag;
    m->flag = channel == FDW_SPEC_TOPK ? s->flag : 0;
    return 0;
}

/* Check the tensors against each other and against the layout, and plan the message: *m gets its header, its
 * length (m->claimed) and its rows; settled[batch], which has room for the layout's requests, what was
 * decided. */
static inline int fdp_plan(fdw_message *m, const fdp_source *s, const fdw_layout *layout, int dialect,
                           fdp_settled *settled, fdp_fault *fault)
{
    const fdp_terms terms = fdp_terms_of(s);
    fdw_fault wire;
    int64_t rows = 0;
    if (fdp_plan_message(m, s, layout, dialect, 0, fault) < 0)
        return -1;
    for (int32_t i = 0; i < s->batch; i++) {
        const fdp_given g = fdp_read(s, i);
        const fdp_request r = fdp_decide(&terms, i, &g);
        if (fdp_check(&terms, i, &g, &r, fault) < 0)
            return -1;
        settled[i].request = r;
        settled[i].token = g.token;
        if (fdw_plan_request(m, i, r.count, &wire) < 0)
            return fdp_refuse(fault, FDP_TOO_MANY, i, wire.value, wire.bound);
        rows += r.count > 0 ? r.count : 0;
    }
    m->rows = (int32_t)rows;
    return dialect == FDW_COMPACT ? fdp_plan_message(m, s, layout, dialect, m->rows, fault) : 0;
}

/* Narrow n numbers into a message; see fdw_narrow. */
static inline int64_t fdp_narrow(const fdw_draft *d, int64_t offset, const int64_t *from, int64_t n)
{
    uint8_t *to = fdw_room(d, offset, 4 * n);
    return to == NULL ? 0 : fdw_narrow(to, from, n);
}

/* The same for one number: whether it did not fit. */
static inline int fdp_narrow_one(const fdw_draft *d, int64_t offset, int64_t value)
{
    return fdw_put_word(d, offset, (int32_t)value) < 0 || value != (int32_t)value;
}

static inline int fdp_fill_words(const fdw_draft *d, int64_t offset, int32_t word, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        if (fdw_put_word(d, offset + 4 * k, word) < 0)
            return -1;
    return 0;
}

/* One token of a request with logprobs: its ids (column 0 is there), scores and rank.  `live`: it will
 * be read, so its numbers have to fit. */
static inline int fdp_write_scored(const fdw_message *m, const fdp_source *s, int64_t row, int32_t code,
                                   int live, int64_t ids, int64_t scores, int64_t rank, const fdw_draft *d,
                                   fdp_fault *fault)
{
    const int64_t cols = s->cols, first = row * cols;
    int64_t bad, number;
    if (code != 0) {
        if (fdp_fill_words(d, ids, code, m->cols) < 0)
            return -1;
    } else if (m->cols > 1) {
        bad = fdp_narrow(d, ids + 4, s->ids + first + 1, cols - 1);
        if (bad >= 0 && live)
            return fdp_refuse(fault, FDP_ID_WIDE, first + 1 + bad, s->ids[first + 1 + bad], 0);
        if (fdp_fill_words(d, ids + 4 * cols, FDW_FILLER_ID, m->cols - cols) < 0)
            return -1;
    }
    if (fdw_put_row(d, scores, s->scores + first, cols) < 0
        || fdp_fill_words(d, scores + 4 * cols, 0, m->cols - cols) < 0)
        return -1;
    number = s->ranks[row];
    if (fdp_narrow_one(d, rank, number) && live)
        return fdp_refuse(fault, FDP_RANK_WIDE, row, number, 0);
    return 0;
}

/* Logprobs of n tokens, from row `first` of the tensors to row `row` of a compact frame, without the sampled
 * token in column 0.  0 if every number fits 32 bits. */
static inline int64_t fdp_copy_rows(const fdw_message *m, const fdp_source *s, int64_t first, int64_t row,
                                    int64_t n, const fdw_draft *d)
{
    const int64_t cols = s->cols;
    int64_t bad = -1;
    if (n <= 0)
        return 0;
    for (int64_t j = 0; cols > 1 && bad < 0 && j < n; j++)
        bad = fdp_narrow(d, m->at.ids.base + 4 * (cols * (row + j) + 1), s->ids + cols * (first + j) + 1,
                         cols - 1);
    return bad >= 0
           || fdw_put(d, m->at.scores.base + 4 * cols * row, s->scores + cols * first, 4 * cols * n) < 0
           || fdp_narrow(d, m->at.ranks.base + 4 * row, s->ranks + first, n) >= 0;
}

/* A compact frame of tokens that all have logprobs: what is contiguous in the tensors is copied at once.  -1
 * if a number does not fit, or it is not such a frame: then fdp_write does the same token by token. */
static inline int fdp_write_frame(const fdw_message *m, const fdp_source *s, const fdp_settled *settled,
                                  const fdw_draft *d)
{
    const fdp_source given = *s; /* which no write into the frame can change */
    const int one = fdp_one_token(given.op);
    const int64_t pitch = 4 * (int64_t)s->cols, rows = m->rows;
    uint8_t *counts = fdw_room(d, m->at.counts, 4 * (int64_t)s->batch);
    uint8_t *ids = fdw_room(d, m->at.ids.base, pitch * rows);
    int64_t row = 0, wide = 0;
    int64_t run = 0, run_first = 0; /* rows `run` to `row` of the frame: the tensors' from `run_first` on */
    if (m->dialect != FDW_COMPACT || !fdw_has_logprobs(m->channel) || counts == NULL || ids == NULL)
        return -1;
    for (int32_t i = 0; i < given.batch; i++) {
        const int64_t *tokens = one ? &settled[i].token : given.tokens + i * given.width;
        const fdp_request r = settled[i].request;
        memcpy(counts + 4 * (int64_t)i, &r.count, sizeof r.count);
        if (r.count <= 0)
            continue;
        if (r.scored != r.count || r.count > rows - row)
            return -1;
        if (r.first - run_first != row - run) {
            wide |= fdp_copy_rows(m, s, run_first, run, row - run, d);
            run = row;
            run_first = r.first;
        }
        for (int32_t j = 0; j < r.count; j++, row++) {
            const int64_t token = tokens[j];
            const int32_t word = (int32_t)token;
            wide |= token ^ word;
            memcpy(ids + pitch * row, &word, sizeof word);
        }
    }
    wide |= fdp_copy_rows(m, s, run_first, run, row - run, d);
    return wide == 0 && row == rows ? 0 : -1;
}

/* Write a planned message.  0, or -1 with the reason in *fault: a number that does not fit 32 bits. */
static inline int fdp_write(const fdw_message *m, const fdp_source *s, const fdp_settled *settled,
                            const fdw_draft *d, fdp_fault *fault)
{
    const fdw_geometry *at = &m->at;
    const int one = fdp_one_token(s->op);
    const int has_logprobs = fdw_has_logprobs(m->channel);
    int64_t row = 0;
    if (fdw_write_header(m, d) < 0)
        return -1;
    if (fdp_write_frame(m, s, settled, d) == 0)
        return 0;
    for (int32_t i = 0; i < s->batch; i++) {
        const int64_t *tokens = one ? &settled[i].token : s->tokens + i * s->width;
        const fdp_request r = settled[i].request;
        int64_t ids, scores, ranks, cells, live;
        live = r.count > 0 ? r.count : 0;
        ids = fdw_place(&at->ids, i, row);
        scores = fdw_place(&at->scores, i, row);
        ranks = fdw_place(&at->ranks, i, row);
        row += live;
        if (at->counts >= 0 && fdw_put_word(d, at->counts + 4 * (int64_t)i, r.count) < 0)
            return -1;
        cells = m->dialect == FDW_COMPACT ? live : fdp_min(fdp_min(r.filled, s->width), at->depth);
        for (int64_t j = 0; j < cells; j++) {
            const int64_t id = ids + at->ids.pitch * j;
            const int64_t score = scores + at->scores.pitch * j;
            const int64_t rank = ranks + at->ranks.pitch * j;
            const int64_t token = tokens[j];
            const int is_read = j < live || at->counts < 0;
            if (id + 4 * (int64_t)m->cols > d->size)
                break; /* after the last live slot: not sent */
            if (r.code == 0 && fdp_narrow_one(d, id, token) && is_read)
                return fdp_refuse(fault, FDP_TOKEN_WIDE, i * s->width + j, token, 0);
            if (r.code != 0 && !has_logprobs && fdw_put_word(d, id, r.code) < 0)
                return -1;
            if (!has_logprobs)
                continue;
            if (j < r.scored) {
                if (fdp_write_scored(m, s, r.first + j, r.code, is_read, id, score, rank, d, fault) < 0)
                    return -1;
            } else if (fdp_fill_words(d, id + 4, 0, m->cols - 1) < 0
                       || fdp_fill_words(d, score, 0, m->cols) < 0 || fdw_put_word(d, rank, 0) < 0) {
                return -1;
            }
        }
        /* Tokens that the tensor is too narrow to hold (FastDeploy sends what follows it). */
        if (s->op == FDP_SPECULATE && m->dialect != FDW_COMPACT)
            for (int64_t j = cells; j < at->depth; j++)
                if (ids + 4 * (j + 1) <= d->size && fdw_put_word(d, ids + 4 * j, 0) < 0)
                    return -1;
    }
    /* FastDeploy clears the counts of unused slots. */
    if (s->op == FDP_SPECULATE && m->dialect != FDW_COMPACT)
        return fdp_fill_words(d, at->counts + 4 * (int64_t)s->batch, 0,
                              fdp_min(d->size - at->counts, at->ids.base - at->counts) / 4 - s->batch);
    return 0;
}

#endif

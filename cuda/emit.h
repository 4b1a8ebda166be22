/* SPDX-License-Identifier: Apache-2.0
 *
 * The words of the message, one after the other: ids, scores, ranks, counts, header.
 */
#ifndef FD_POSTPROC_CUDA_EMIT_H
#define FD_POSTPROC_CUDA_EMIT_H

#include "cuda/scan.h"

/* The last request whose rows begin at `row` or before: the one that it belongs to. */
FDP_FN int32_t fdk_owner(const fdk_request *requests, int32_t batch, int32_t row)
{
    int32_t low = 0, high = batch;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (requests[middle].start <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* What the last phase knows. */
typedef struct {
    const fdk_job *job;
    const fdk_request *requests;
    int32_t batch;
    int32_t rows;
    int32_t size; /* words */
} fdk_message;

/* The one place where a word is written: never behind the end of the message. */
FDP_FN void fdk_put(const fdk_message *m, int32_t at, int32_t word)
{
    if (at >= 0 && at < m->size && at < m->job->capacity)
        m->job->payload[at] = word;
}

/* A number of a tensor in 32 bits.  One that does not fit, and will be read, is reported to the host;
 * of several, any. */
FDP_FN int32_t fdk_narrow(const fdk_message *m, const fdk_array *from, int64_t row, int64_t col, int64_t cols,
                          int is_read, int reason)
{
    const int64_t value = fdk_integer(from, row, col);
    if (is_read && value != (int32_t)value)
        m->job->result->wide = (row * cols + col) * 256 + reason;
    return (int32_t)value;
}

/* One row of the message: a token of a request. */
typedef struct {
    int32_t request;
    int32_t j;          /* which of its tokens */
    int32_t start;      /* its first row among all rows written */
    int32_t code;       /* see fdp_request */
    int32_t scored;     /* has logprobs, those of row `first` of the tensors */
    int32_t is_read;    /* it will be read, so its numbers have to fit */
    int32_t first;
} fdk_row;

/* A row in 64 bits, as the host tells it to the device: from the lowest bit on `first`, 32; `request`, 16; `j`, 8. */
#define FDK_MOST_PLANNED_BATCH 65536
#define FDK_MOST_PLANNED_DEPTH 256
#define FDK_ROW_SCORED (1ULL << 56)
#define FDK_ROW_READ (1ULL << 57)
#define FDK_ROW_PREEMPTED (1ULL << 58)

FDP_FN fdk_row fdk_planned_row(uint64_t word, int32_t row)
{
    fdk_row t;
    t.first = (int32_t)(uint32_t)word;
    t.request = (int32_t)(word >> 32 & 0xFFFF);
    t.j = (int32_t)(word >> 48 & 0xFF);
    t.start = row - t.j;
    t.code = (word & FDK_ROW_PREEMPTED) != 0 ? FDP_PREEMPTED : 0;
    t.scored = (word & FDK_ROW_SCORED) != 0;
    t.is_read = (word & FDK_ROW_READ) != 0;
    return t;
}

FDP_FN fdk_row fdk_row_of(const fdk_message *m, int32_t row)
{
    const fdk_request *r;
    fdk_row t;
    if (m->job->plan != 0)
        return fdk_planned_row(m->job->plan[row], row);
    t.request = fdk_owner(m->requests, m->batch, row);
    r = &m->requests[t.request];
    t.start = r->start;
    t.j = row - r->start;
    t.code = r->code;
    t.scored = t.j < r->scored;
    t.is_read = fdk_is_read(m->job, r->count, t.j);
    t.first = r->first + t.j; /* if it is scored: checked, so it does not overflow */
    return t;
}

FDP_FN void fdk_write_id(const fdk_message *m, int32_t row, int32_t k)
{
    const fdk_job *job = m->job;
    const fdk_row t = fdk_row_of(m, row);
    int32_t word = 0;
    if (t.code != 0)
        word = t.code;
    else if (k == 0 && t.j < job->terms.width) /* else FastDeploy sends what follows the tensor */
        word = fdk_narrow(m, &job->tokens, t.request, t.j, job->terms.width, t.is_read, FDP_TOKEN_WIDE);
    else if (k > 0 && t.scored) /* filler: FDW_FILLER_ID */
        word = k < job->cols ? fdk_narrow(m, &job->ids, t.first, k, job->cols, t.is_read, FDP_ID_WIDE) : -1;
    fdk_put(m, fdk_place(&job->ids_at, m->batch, m->rows, t.request, t.start, t.j) + k, word);
}

FDP_FN void fdk_write_score(const fdk_message *m, int32_t row, int32_t k)
{
    const fdk_job *job = m->job;
    const fdk_row t = fdk_row_of(m, row);
    const int32_t bits = t.scored && k < job->cols ? fdk_bits(&job->scores, t.first, k) : 0;
    fdk_put(m, fdk_place(&job->scores_at, m->batch, m->rows, t.request, t.start, t.j) + k, bits);
}

FDP_FN void fdk_write_rank(const fdk_message *m, int32_t row)
{
    const fdk_job *job = m->job;
    const fdk_row t = fdk_row_of(m, row);
    const int32_t word = t.scored ? fdk_narrow(m, &job->ranks, t.first, 0, 1, t.is_read, FDP_RANK_WIDE) : 0;
    fdk_put(m, fdk_place(&job->ranks_at, m->batch, m->rows, t.request, t.start, t.j), word);
}

FDP_FN void fdk_write_header(const fdk_message *m, int32_t k)
{
    const fdk_job *job = m->job;
    int32_t word = job->header[k];
    if (k == job->stop_word && job->not_need_stop != 0 && *job->not_need_stop == 0)
        word = -word;
    if (k == job->batch_word)
        word += m->batch;
    if (k == job->rows_word)
        word = m->rows;
    if (k == job->bytes_word)
        word = 4 * m->size;
    fdk_put(m, k, word);
}

/* Counts that are sent. */
FDP_FN int32_t fdk_counts(const fdk_message *m)
{
    const int32_t before_ids = m->size < m->job->ids_at.base ? m->size : m->job->ids_at.base;
    return m->job->counts_at < 0 ? 0 : m->job->clear_counts ? before_ids - m->job->counts_at : m->batch;
}

FDP_FN void fdk_write_count(const fdk_message *m, int32_t i, int32_t count)
{
    fdk_put(m, m->job->counts_at + i, count);
}

/* Steps that the threads skip so that a warp fills whole lines: a warp begins with a multiple of 32, and so do the
 * words of a region that begin a line, counted from the ids, which do. */
FDP_FN int32_t fdk_skipped(const fdk_message *m, const fdk_region *region, int32_t step)
{
    const int32_t ids = fdk_place(&m->job->ids_at, m->batch, m->rows, 0, 0, 0);
    return (fdk_place(region, m->batch, m->rows, 0, 0, 0) - ids - step) & 31;
}

FDP_FN void fdk_write(const fdk_message *m, int32_t first, int32_t stride)
{
    const fdk_job *job = m->job;
    const int planned = job->plan != 0; /* then the host has written counts and header */
    const int32_t cells = m->rows * job->wire_cols;
    const int32_t scores = job->has_logprobs ? cells : 0, ranks = job->has_logprobs ? m->rows : 0;
    const int32_t scores_from = cells + fdk_skipped(m, &job->scores_at, cells);
    const int32_t ranks_from = scores_from + scores + fdk_skipped(m, &job->ranks_at, scores_from + scores);
    const int32_t counts_from = ranks_from + ranks, counts = planned ? 0 : fdk_counts(m);
    const int32_t header_from = counts_from + counts, header = planned ? 0 : job->header_words;
    for (int32_t k = first; k < header_from + header; k += stride) {
        if (k < cells) {
            fdk_write_id(m, k / job->wire_cols, k % job->wire_cols);
        } else if (k < ranks_from) {
            const int32_t at = k - scores_from;
            if (at >= 0 && at < scores)
                fdk_write_score(m, at / job->wire_cols, at % job->wire_cols);
        } else if (k < counts_from) {
            fdk_write_rank(m, k - ranks_from);
        } else if (k < header_from) {
            const int32_t i = k - counts_from;
            fdk_write_count(m, i, i < m->batch ? m->requests[i].count : 0);
        } else {
            fdk_write_header(m, k - header_from);
        }
    }
}

#endif

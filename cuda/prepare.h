/* SPDX-License-Identifier: Apache-2.0
 *
 * On the host, before a launch: from the wire's geometry to the numbers of a fdk_job.
 *
 * Offsets are defined once, in wire.h.  What depends on numbers that only the device knows is linear in them,
 * so that two geometries determine all others.
 */
#ifndef FD_POSTPROC_CUDA_PREPARE_H
#define FD_POSTPROC_CUDA_PREPARE_H

#include "fd_postproc/headers/pack.h"
#include "cuda/pack.h"

enum { FDK_THREADS = 256, FDK_MOST_BLOCKS = 64, FDK_LINE = 128, FDK_ARRAYS = 10 };

/* What a slot of the ring begins with: the kernel's result, and the message, with its mtype right before it,
 * where msgsnd expects it.  Where in the first line after FDK_LINES_AT the payload begins depends on the job:
 * its ids begin a line, so that each store of a warp fills one.  Written over the bus, half a line costs as
 * much as a whole one. */
enum { FDK_RESULT_AT = 0, FDK_LINES_AT = 128, FDK_MOST_PAYLOAD_AT = FDK_LINES_AT + FDK_LINE };
FDK_ASSERT(FDK_RESULT_AT + sizeof(fdk_result) + sizeof(long) <= FDK_LINES_AT, "room for the result and mtype");

/* The word at which the ids begin. */
static inline int32_t fdk_ids_begin(const fdk_job *job)
{
    return fdk_place(&job->ids_at, job->batch, 0, 0, 0, 0);
}

static inline int64_t fdk_payload_at(const fdk_job *job)
{
    return FDK_LINES_AT + (-4 * (int64_t)fdk_ids_begin(job) & (FDK_LINE - 1));
}

/* Shared memory that every device provides without a request for more. */
#define FDK_MOST_SHARED (48 * 1024)

/* Bytes of the longest message of a channel and dialect. */
static inline int64_t fdk_capacity(const fdw_layout *layout, int channel, int dialect)
{
    return dialect == FDW_COMPACT ? fdw_longest_frame(layout, channel)
                                  : fdw_geometry_of(layout, channel, FDW_LEGACY, 0).size;
}

/* Rows that a job can have at most. */
static inline int64_t fdk_most_rows(const fdk_job *job)
{
    return job->plan != NULL ? job->planned_rows : fdp_min(job->terms.width, job->terms.depth) * job->batch;
}

/* Blocks for a job: enough that no thread has more than a few words. */
static inline int32_t fdk_blocks(const fdk_job *job)
{
    const int64_t rows = fdk_most_rows(job);
    const int64_t words = rows * (job->has_logprobs ? 2 * (int64_t)job->wire_cols + 1 : 1);
    const int64_t blocks = (words + 2 * FDK_THREADS - 1) / (2 * FDK_THREADS);
    return (int32_t)(blocks < 1 ? 1 : fdp_min(blocks, FDK_MOST_BLOCKS));
}

static inline fdw_geometry fdk_geometry(const fdw_layout *layout, const fdw_message *m, int64_t batch, int64_t rows)
{
    return m->dialect == FDW_COMPACT ? fdw_geometry_of_frame(layout, m->channel, batch, rows, m->cols) : m->at;
}

static inline fdk_region fdk_region_of(const fdw_region *none, const fdw_region *request, const fdw_region *row)
{
    fdk_region r;
    r.base = (int32_t)(none->base / 4);
    r.per_request = (int32_t)((request->base - none->base) / 4);
    r.per_row = (int32_t)((row->base - none->base) / 4);
    r.slot = (int32_t)(none->slot / 4);
    r.dense = (int32_t)(none->dense / 4);
    r.pitch = (int32_t)(none->pitch / 4);
    return r;
}

static inline void fdk_header_of(const fdw_message *m, int32_t words[FDK_HEADER_WORDS])
{
    const fdw_draft draft = {(uint8_t *)words, 4 * FDK_HEADER_WORDS};
    memset(words, 0, 4 * FDK_HEADER_WORDS);
    fdw_write_header(m, &draft);
}

/* The first word in which the headers of two messages differ; -1: none. */
static inline int32_t fdk_differs(const int32_t header[FDK_HEADER_WORDS], const fdw_message *other)
{
    int32_t words[FDK_HEADER_WORDS];
    fdk_header_of(other, words);
    for (int32_t k = 0; k < FDK_HEADER_WORDS; k++)
        if (words[k] != header[k])
            return k;
    return -1;
}

/* The header, and the places in it of the numbers that change from call to call. */
static inline void fdk_prepare_header(fdk_job *job, const fdw_message *planned)
{
    fdw_message m = *planned, other;
    m.batch = m.rows = 0;
    m.claimed = 0;
    fdk_header_of(&m, job->header);
    other = m, other.stop_flag = ~m.stop_flag;
    job->stop_word = fdk_differs(job->header, &other);
    other = m, other.batch = 1;
    job->batch_word = fdk_differs(job->header, &other);
    other = m, other.rows = 1;
    job->rows_word = fdk_differs(job->header, &other);
    other = m, other.claimed = 4;
    job->bytes_word = fdk_differs(job->header, &other);
    other = m, other.seq = ~m.seq;
    job->seq_word = fdk_differs(job->header, &other);
    job->header_words = (int32_t)(m.at.header / 4);
}

/* Fill in a job, except for what lies on the device: the arrays, live_batch, not_need_stop, payload,
 * result and plan, which are set to NULL.
 *
 * Only the numbers in `s` are used.  `capacity` is the room at the payload, in bytes.  0, or -1 with the
 * reason in *fault: FDP_BATCH or FDP_COLUMNS. */
static inline int fdk_prepare(fdk_job *job, const fdp_source *s, const fdw_layout *layout, int dialect,
                              uint64_t seq, uint64_t sender, uint32_t service, int64_t capacity,
                              fdp_fault *fault)
{
    fdw_geometry none, request, row;
    fdw_message m;
    memset(job, 0, sizeof *job);
    if (fdp_plan_message(&m, s, layout, dialect, 0, fault) < 0)
        return -1;
    m.seq = seq;
    m.sender = sender;
    m.service = service;
    none = fdk_geometry(layout, &m, 0, 0);
    request = fdk_geometry(layout, &m, 1, 0);
    row = fdk_geometry(layout, &m, 0, 1);
    job->terms = fdp_terms_of(s);
    job->terms.rows = fdp_min(s->rows, INT32_MAX);
    job->batch = s->batch;
    job->cols = s->cols;
    job->wire_cols = m.cols;
    job->compact = dialect == FDW_COMPACT;
    job->has_logprobs = fdw_has_logprobs(m.channel);
    job->clear_counts = s->op == FDP_SPECULATE && !job->compact;
    job->counts_at = (int32_t)(none.counts < 0 ? -1 : none.counts / 4);
    job->capacity = (int32_t)(capacity / 4);
    job->ids_at = fdk_region_of(&none.ids, &request.ids, &row.ids);
    job->scores_at = fdk_region_of(&none.scores, &request.scores, &row.scores);
    job->ranks_at = fdk_region_of(&none.ranks, &request.ranks, &row.ranks);
    if (job->compact) {
        job->size = (int32_t)(none.size / 4);
        job->size_per_request = (int32_t)((request.size - none.size) / 4);
        job->size_per_row = (int32_t)((row.size - none.size) / 4);
    } else { /* see fdw_plan */
        job->size = (int32_t)((none.counts < 0 ? none.header : none.counts) / 4);
        job->size_per_request = none.counts < 0 ? 0 : 1;
    }
    fdk_prepare_header(job, &m);
    return 0;
}

#endif

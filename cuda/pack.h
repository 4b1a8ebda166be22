/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel body: a save op's tensors on a device -> one message.
 *
 * The C subset that gcc, nvcc and NVRTC compile: the tests run this very text on the CPU.  Under NVRTC
 * nothing but _request.h is included, because there are no standard headers.  What a message looks like is
 * in _wire.h; prepare.h turns its geometry into the numbers of a fdk_job, on the host.
 *
 * Every block works in FDK_PHASES phases with a barrier between two of them.  In the first three it finds out by
 * itself, from the counts, how many rows there are and where each request's begin; that takes less time than a
 * second launch would.  In the fourth one all threads of the grid share the words of the message, so that
 * a warp writes words that lie side by side.  In the last one it may tell that all it wrote has arrived.
 *
 * If all numbers that decide are in host memory, the host has decided (decide.h): it has written header and counts,
 * and a plan of the rows.  Then only the fourth phase and the last have something to do.
 *
 * All positions in a message are counted in words of 4 bytes.
 */
#ifndef FD_POSTPROC_CUDA_PACK_H
#define FD_POSTPROC_CUDA_PACK_H

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stddef.h>
#include <stdint.h>
#endif

#include "_request.h"

#ifdef __cplusplus
#define FDK_ASSERT(what, why) static_assert(what, why)
#else
#define FDK_ASSERT(what, why) _Static_assert(what, why)
#endif

/* Everything that this thread has written or seen written comes, for host and device, before what it writes next. */
#ifdef __CUDACC__
#define FDK_FENCE() __threadfence_system()
#else
#define FDK_FENCE() __atomic_thread_fence(__ATOMIC_RELEASE)
#endif

enum fdk_type { FDK_INT64, FDK_INT32, FDK_FLOAT32 };

/* Numbers that the kernel reads: device memory, or page-locked host memory by its device address. */
typedef struct {
    const void *data;   /* NULL: the op has no such tensor */
    int64_t row;        /* elements from one request, or one logprob row, to the next */
    int64_t col;        /* elements from one column to the next */
    int64_t type;       /* enum fdk_type */
} fdk_array;

/* fdw_region in words.  Its base grows with the batch and the rows of a compact frame. */
typedef struct {
    int32_t base;
    int32_t per_request;
    int32_t per_row;
    int32_t slot;
    int32_t dense;
    int32_t pitch;
} fdk_region;

#define FDK_HEADER_WORDS 16

/* What the kernel tells the thread that sends the message.  The host sets `length` to FDK_NOT_RUN and `wide` to 0
 * before each launch. */
#define FDK_NOT_RUN (-2)
#define FDK_REFUSED (-1)
typedef struct {
    int64_t length;     /* bytes of the message; FDK_REFUSED: `fault` says why, and nothing was written */
    int64_t wide;       /* not 0: a number that is sent does not fit 32 bits, so the message must not be
                           sent.  Its enum fdp_reason, plus 256 times its index; see fdp_fault. */
    fdp_fault fault;
    int32_t batch;
    int32_t rows;       /* rows written: of a compact frame, its rows */
    int64_t spare;
} fdk_result;
FDK_ASSERT(sizeof(fdk_result) == 64, "the same for every compiler");

/* The kernel's argument, by value. */
typedef struct {
    fdk_array tokens;       /* [batch][width] sampled tokens */
    fdk_array ids;          /* [rows][cols] */
    fdk_array scores;       /* [rows][cols] float32 */
    fdk_array ranks;        /* [rows] */
    fdk_array counts;       /* [batch] accepted tokens */
    fdk_array offsets;      /* [batch] first logprob row of each request */
    fdk_array decoded;      /* [batch] seq_lens_decoder */
    fdk_array prompts;      /* [batch] prompt_lens */
    fdk_array preempted;    /* [batch] 1: preempted */
    fdk_array steps;        /* [batch] step_idx */
    const int32_t *live_batch;      /* requests, up to `batch`, if only the device knows; else NULL */
    const uint8_t *not_need_stop;   /* 0: the stop word is sent negative; NULL: it is right as it is */
    int32_t *payload;       /* the message, without its mtype; best so that its ids begin a line of 128 bytes */
    fdk_result *result;
    const uint64_t *plan;   /* its rows (fdk_planned_row), if the host has decided; else NULL */
    int32_t *done;          /* one word a block, which gets `stamp` when all that the block wrote has arrived; or NULL */
    fdp_terms terms;
    int32_t batch;          /* requests in the tensors: at most what the message holds */
    int32_t cols;           /* columns of ids and scores; 1 without logprobs */
    int32_t wire_cols;      /* columns of a row in the message */
    int32_t compact;        /* 1: a compact frame */
    int32_t has_logprobs;
    int32_t clear_counts;   /* counts of slots that nobody uses are sent as 0 */
    int32_t counts_at;      /* -1: the token tells whether it is one */
    int32_t capacity;       /* words that there is room for */
    int32_t size, size_per_request, size_per_row; /* of a message without a live slot; of a frame */
    fdk_region ids_at, scores_at, ranks_at;
    int32_t header[FDK_HEADER_WORDS]; /* of a message with batch, rows and size 0 */
    int32_t header_words;
    int32_t stop_word;      /* indices in `header` */
    int32_t batch_word;     /* the batch is added to this one */
    int32_t rows_word, bytes_word; /* -1 without one */
    int32_t seq_word;       /* the first of two; -1 without one */
    int32_t planned_rows;   /* if the host has decided */
    int32_t planned_size;   /* words of the message, likewise */
    int32_t stamp;
} fdk_job;
FDK_ASSERT(sizeof(fdk_array) == 32 && sizeof(fdp_terms) == 32, "the same for every compiler");
FDK_ASSERT(sizeof(fdk_job) == 616, "the same for every compiler");


/* ---- Memory that the threads of a block share ----------------------------------------------------------- */

typedef struct {
    int32_t start;      /* first of its rows among all rows written */
    int32_t first;      /* logprob row of its first token */
    int32_t count, scored, code; /* see fdp_request */
} fdk_request;

/* What one thread, or a group of threads, found about its requests. */
typedef struct {
    int32_t rows;
    int32_t end;        /* words up to the end of the last live slot */
    int32_t bad;        /* first request that has to be refused; FDP_MOST: none */
} fdk_part;

#define FDK_GROUP 16 /* parts that one thread sums up: about the root of a block, so that no thread has many */

typedef struct {
    fdk_part *whole;
    fdk_part *groups;       /* [threads / FDK_GROUP] */
    fdk_part *parts;        /* [threads] */
    fdk_request *requests;  /* [batch + 1] */
} fdk_shared;

/* Bytes of shared memory; `threads` is a multiple of FDK_GROUP. */
FDP_FN int64_t fdk_shared_bytes(int64_t batch, int32_t threads)
{
    return (int64_t)sizeof(fdk_part) * (1 + threads / FDK_GROUP + threads)
           + (int64_t)sizeof(fdk_request) * (batch + 1);
}

FDP_FN fdk_shared fdk_divide(void *memory, int32_t threads)
{
    fdk_shared s;
    s.whole = (fdk_part *)memory;
    s.groups = s.whole + 1;
    s.parts = s.groups + threads / FDK_GROUP;
    s.requests = (fdk_request *)(s.parts + threads);
    return s;
}

FDP_FN fdk_part fdk_nothing(void)
{
    const fdk_part none = {0, 0, FDP_MOST};
    return none;
}

FDP_FN fdk_part fdk_join(fdk_part a, fdk_part b)
{
    const fdk_part both = {a.rows + b.rows, a.end > b.end ? a.end : b.end, a.bad < b.bad ? a.bad : b.bad};
    return both;
}

/* ---- Reading the tensors -------------------------------------------------------------------------------- */

FDP_FN int64_t fdk_integer(const fdk_array *from, int64_t row, int64_t col)
{
    const int64_t at = row * from->row + col * from->col;
    if (from->data == 0)
        return 0;
    return from->type == FDK_INT64 ? ((const int64_t *)from->data)[at] : ((const int32_t *)from->data)[at];
}

/* A score's bits: as an integer, because a float's may change on the way (NaN). */
FDP_FN int32_t fdk_bits(const fdk_array *from, int64_t row, int64_t col)
{
    return ((const int32_t *)from->data)[row * from->row + col * from->col];
}

FDP_FN int32_t fdk_clamped(int64_t value)
{
    return value > FDP_MOST ? FDP_MOST : value < FDP_LEAST ? FDP_LEAST : (int32_t)value;
}

FDP_FN fdp_given fdk_given(const fdk_job *job, int64_t i)
{
    fdp_given g;
    g.token = fdp_one_token(job->terms.op) ? fdk_integer(&job->tokens, i, 0) : 0;
    g.count = fdk_clamped(fdk_integer(&job->counts, i, 0));
    g.in_prefill = fdk_integer(&job->decoded, i, 0) < fdk_integer(&job->prompts, i, 0);
    g.preempted = fdk_integer(&job->preempted, i, 0) == 1;
    g.first = fdk_integer(&job->offsets, i, 0);
    g.step = fdk_integer(&job->steps, i, 0);
    return g;
}

FDP_FN int32_t fdk_batch(const fdk_job *job)
{
    return job->live_batch != 0 ? *job->live_batch : job->batch;
}

FDP_FN int fdk_batch_fits(const fdk_job *job)
{
    const int32_t batch = fdk_batch(job);
    return batch >= 0 && batch <= job->batch;
}

/* ---- Places in the message ------------------------------------------------------------------------------ */

/* The arithmetic is unsigned: one that does not fit is defined, too, and fdk_put takes it for none. */
FDP_FN int32_t fdk_place(const fdk_region *at, int32_t batch, int32_t rows, int32_t i, int32_t start, int32_t j)
{
    const uint32_t of_all = (uint32_t)at->base + (uint32_t)at->per_request * (uint32_t)batch
                            + (uint32_t)at->per_row * (uint32_t)rows;
    return (int32_t)(of_all + (uint32_t)at->slot * (uint32_t)i + (uint32_t)at->dense * (uint32_t)start
                     + (uint32_t)at->pitch * (uint32_t)j);
}

/* Rows that are written for a request: those that are read, and those that FastDeploy writes all the same. */
FDP_FN int32_t fdk_rows(const fdk_job *job, const fdp_request *r)
{
    if (job->compact)
        return r->count > 0 ? r->count : 0;
    if (job->terms.op == FDP_SPECULATE)
        return job->terms.depth;
    return r->filled > 0 ? r->filled : 0;
}

/* Whether token j of a request will be read: only its numbers have to fit. */
FDP_FN int fdk_is_read(const fdk_job *job, int32_t count, int32_t j)
{
    return j < count || job->counts_at < 0;
}

/* Where the last live word of request i ends in one of FastDeploy's messages. */
FDP_FN int32_t fdk_end(const fdk_job *job, int32_t i, int32_t count)
{
    const int32_t rows = job->counts_at < 0 ? 1 : count;
    const fdk_region *last = job->has_logprobs ? &job->ranks_at : &job->ids_at;
    return job->compact || rows <= 0 ? 0 : fdk_place(last, 0, 0, i, 0, rows - 1) + 1;
}

/* Words of the whole message. */
FDP_FN int32_t fdk_size(const fdk_job *job, int32_t batch, const fdk_part *whole)
{
    const int32_t least = job->size + job->size_per_request * batch + job->size_per_row * whole->rows;
    return whole->end > least ? whole->end : least;
}

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

/* ---- Phases 0 to 2: what each request contributes, and where -------------------------------------------- */

/* Requests of a thread: [first, past). */
FDP_FN void fdk_range(int32_t batch, int32_t thread, int32_t threads, int32_t *first, int32_t *past)
{
    const int32_t each = (batch + threads - 1) / threads;
    *first = thread * each < batch ? thread * each : batch;
    *past = *first + each < batch ? *first + each : batch;
}

FDP_FN void fdk_look(const fdk_job *job, const fdk_shared *s, int32_t thread, int32_t threads)
{
    fdk_part part = fdk_nothing();
    int32_t first, past;
    fdk_range(fdk_batch(job), thread, threads, &first, &past);
    for (int32_t i = first; i < past; i++) {
        const fdp_given g = fdk_given(job, i);
        const fdp_request r = fdp_decide(&job->terms, i, &g);
        fdk_request *to = &s->requests[i];
        fdp_fault fault;
        if (fdp_check(&job->terms, i, &g, &r, &fault) < 0) {
            part.bad = i;
            break;
        }
        to->start = part.rows; /* among this thread's, until fdk_settle */
        to->first = (int32_t)r.first;
        to->count = r.count;
        to->scored = r.scored;
        to->code = r.code;
        part.rows += fdk_rows(job, &r);
        if (fdk_end(job, i, r.count) > part.end)
            part.end = fdk_end(job, i, r.count);
    }
    s->parts[thread] = part;
}

FDP_FN void fdk_sum_up(const fdk_shared *s, int32_t thread, int32_t threads)
{
    fdk_part sum = fdk_nothing();
    if (thread >= threads / FDK_GROUP)
        return;
    for (int32_t k = 0; k < FDK_GROUP; k++)
        sum = fdk_join(sum, s->parts[thread * FDK_GROUP + k]);
    s->groups[thread] = sum;
}

FDP_FN void fdk_settle(const fdk_job *job, const fdk_shared *s, int32_t thread, int32_t threads)
{
    const int32_t group = thread / FDK_GROUP;
    fdk_part before = fdk_nothing();
    int32_t first, past;
    fdk_range(fdk_batch(job), thread, threads, &first, &past);
    for (int32_t k = 0; k < group; k++)
        before = fdk_join(before, s->groups[k]);
    for (int32_t k = group * FDK_GROUP; k < thread; k++)
        before = fdk_join(before, s->parts[k]);
    before.bad = fdk_join(before, s->parts[thread]).bad;
    if (before.bad == FDP_MOST) /* else nothing is written, and fdk_look has left some of them out */
        for (int32_t i = first; i < past; i++)
            s->requests[i].start += before.rows;
    if (thread == threads - 1)
        *s->whole = fdk_join(before, s->parts[thread]);
}

/* ---- Phase 3: writing ----------------------------------------------------------------------------------- */

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

/* A number of a tensor in 32 bits.  One that does not fit, and that somebody will read, is told to the host;
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
    int32_t is_read;    /* somebody will read it, so its numbers have to fit */
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

/* Why nothing was written. */
FDP_FN void fdk_refuse(const fdk_job *job, int32_t bad)
{
    fdp_fault fault;
    if (fdk_batch_fits(job)) {
        const fdp_given g = fdk_given(job, bad);
        const fdp_request r = fdp_decide(&job->terms, bad, &g);
        fdp_check(&job->terms, bad, &g, &r, &fault);
    } else {
        fdp_refuse(&fault, FDP_BATCH, 0, fdk_batch(job), job->batch);
    }
    job->result->fault = fault;
    job->result->length = FDK_REFUSED;
}

/* ---- The kernel ------------------------------------------------------------------------------------------ */

#define FDK_PHASES 5

/* What one thread does in one phase.  All threads of a block must have ended a phase before one begins the next;
 * blocks need not wait for each other.
 *
 * `shared` is fdk_shared_bytes(job->batch, threads) bytes, aligned to 4, for each block; none if the host has
 * decided.  `threads` is a multiple of FDK_GROUP.
 */
FDP_FN void fdk_phase(const fdk_job *job, int phase, void *shared, int32_t block, int32_t thread, int32_t blocks,
                      int32_t threads)
{
    const fdk_shared s = fdk_divide(shared, threads);
    const int planned = job->plan != 0;
    const int fits = planned || fdk_batch_fits(job);
    fdk_message m;
    if (phase == 0 && fits && !planned)
        fdk_look(job, &s, thread, threads);
    if (phase == 1 && fits && !planned)
        fdk_sum_up(&s, thread, threads);
    if (phase == 2 && fits && !planned)
        fdk_settle(job, &s, thread, threads);
    if (phase == 4 && thread == 0 && job->done != 0) {
        FDK_FENCE();
        *(volatile int32_t *)&job->done[block] = job->stamp;
    }
    if (phase != 3)
        return;
    if (!fits || (!planned && s.whole->bad != FDP_MOST)) {
        if (block == 0 && thread == 0)
            fdk_refuse(job, fits ? s.whole->bad : 0);
        return;
    }
    m.job = job;
    m.requests = s.requests;
    m.batch = planned ? job->batch : fdk_batch(job);
    m.rows = planned ? job->planned_rows : s.whole->rows;
    m.size = planned ? job->planned_size : fdk_size(job, m.batch, s.whole);
    fdk_write(&m, block * threads + thread, blocks * threads);
    if (block == 0 && thread == 0) {
        job->result->batch = m.batch;
        job->result->rows = m.rows;
        job->result->length = 4 * (int64_t)m.size;
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel's argument, and what it says: the numbers of the tensors, and where they go in the message.
 *
 * The C subset that gcc, nvcc and NVRTC compile: the tests run this very text on the CPU, and that of scan.h,
 * emit.h and pack.h.  Under NVRTC nothing but headers/request.h is included, because there are no standard
 * headers.  What a message looks like is in headers/wire.h; prepare.h turns its geometry into the numbers of a
 * fdk_job, on the host.
 *
 * All positions in a message are counted in words of 4 bytes.
 */
#ifndef FD_POSTPROC_CUDA_JOB_H
#define FD_POSTPROC_CUDA_JOB_H

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

#include "fd_postproc/headers/request.h"

#ifdef __cplusplus
#define FDK_ASSERT(what, why) static_assert(what, why)
#else
#define FDK_ASSERT(what, why) _Static_assert(what, why)
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
    fdp_terms terms;
    int32_t batch;          /* requests in the tensors: at most what the message holds */
    int32_t cols;           /* columns of ids and scores; 1 without logprobs */
    int32_t wire_cols;      /* columns of a row in the message */
    int32_t compact;        /* 1: a compact frame */
    int32_t has_logprobs;
    int32_t clear_counts;   /* counts of unused slots are sent as 0 */
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
} fdk_job;
FDK_ASSERT(sizeof(fdk_array) == 32 && sizeof(fdp_terms) == 32, "the same for every compiler");
FDK_ASSERT(sizeof(fdk_job) == 608, "the same for every compiler");

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

#endif

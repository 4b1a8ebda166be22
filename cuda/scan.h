/* SPDX-License-Identifier: Apache-2.0
 *
 * How many rows there are, and where each request's begin: an exclusive prefix sum over the requests.
 *
 * Each block does it by itself, which takes less time than a second launch would, in three phases: every thread
 * decides about its requests and adds up what they contribute (fdk_look), every sixteenth adds up its group
 * (fdk_reduce), and every one adds what comes before its own (fdk_exclusive_scan).
 */
#ifndef FD_POSTPROC_CUDA_SCAN_H
#define FD_POSTPROC_CUDA_SCAN_H

#include "cuda/job.h"

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

FDP_FN fdk_part fdk_combine(fdk_part a, fdk_part b)
{
    const fdk_part both = {a.rows + b.rows, a.end > b.end ? a.end : b.end, a.bad < b.bad ? a.bad : b.bad};
    return both;
}

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
        to->start = part.rows; /* among this thread's, until fdk_exclusive_scan */
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

FDP_FN void fdk_reduce(const fdk_shared *s, int32_t thread, int32_t threads)
{
    fdk_part sum = fdk_nothing();
    if (thread >= threads / FDK_GROUP)
        return;
    for (int32_t k = 0; k < FDK_GROUP; k++)
        sum = fdk_combine(sum, s->parts[thread * FDK_GROUP + k]);
    s->groups[thread] = sum;
}

FDP_FN void fdk_exclusive_scan(const fdk_job *job, const fdk_shared *s, int32_t thread, int32_t threads)
{
    const int32_t group = thread / FDK_GROUP;
    fdk_part before = fdk_nothing();
    int32_t first, past;
    fdk_range(fdk_batch(job), thread, threads, &first, &past);
    for (int32_t k = 0; k < group; k++)
        before = fdk_combine(before, s->groups[k]);
    for (int32_t k = group * FDK_GROUP; k < thread; k++)
        before = fdk_combine(before, s->parts[k]);
    before.bad = fdk_combine(before, s->parts[thread]).bad;
    if (before.bad == FDP_MOST) /* else nothing is written, and fdk_look has left some of them out */
        for (int32_t i = first; i < past; i++)
            s->requests[i].start += before.rows;
    if (thread == threads - 1)
        *s->whole = fdk_combine(before, s->parts[thread]);
}

#endif

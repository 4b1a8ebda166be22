/* SPDX-License-Identifier: Apache-2.0
 *
 * On the host, before a launch, if every number that decides what is sent is in host memory: does the work of
 * the kernel's first phases.
 *
 * The kernel would read those numbers over the bus, all of them in every block.  Instead it gets one word per
 * row, which about two warps read; and what can be refused is refused at once.  The rules are the kernel's
 * own.
 */
#ifndef FD_POSTPROC_CUDA_DECIDE_H
#define FD_POSTPROC_CUDA_DECIDE_H

#include "cuda/prepare.h"

enum { FDK_FIRST_DECIDING = 4 }; /* counts and what follows: tokens, ids, scores and ranks are only sent */

/* Whether the host can decide.  `on_host` says for each array of a job whether it is in host memory. */
static inline int fdk_decidable(const fdk_job *job, const uint8_t on_host[FDK_ARRAYS])
{
    const fdk_array *arrays = &job->tokens;
    if (job->live_batch != NULL || job->not_need_stop != NULL || job->batch > FDK_MOST_PLANNED_BATCH
        || job->terms.depth > FDK_MOST_PLANNED_DEPTH)
        return 0;
    if (fdp_one_token(job->terms.op) && job->compact && !on_host[0])
        return 0; /* a token that is a code has no row */
    for (int k = FDK_FIRST_DECIDING; k < FDK_ARRAYS; k++)
        if (arrays[k].data != NULL && !on_host[k])
            return 0;
    return 1;
}

/* Most bytes of a plan. */
static inline int64_t fdk_plan_bytes(const fdk_job *job)
{
    return (int64_t)sizeof(uint64_t) * job->batch * job->terms.depth;
}

static inline uint64_t fdk_planned(const fdk_job *job, const fdp_request *r, int32_t i, int32_t j)
{
    const int scored = j < r->scored;
    return (uint64_t)(scored ? (uint32_t)(r->first + j) : 0) | (uint64_t)i << 32 | (uint64_t)j << 48
           | (scored ? FDK_ROW_SCORED : 0) | (fdk_is_read(job, r->count, j) ? FDK_ROW_READ : 0)
           | (r->code != 0 ? FDK_ROW_PREEMPTED : 0);
}

/* Decide: write the plan, and counts and header into `payload`, all in host memory.
 *
 * The job's arrays are those in host memory; sampled tokens that are not there count as tokens, not as
 * codes.  0, or -1 with the reason in *fault. */
static inline int fdk_decide(fdk_job *job, int tokens_on_host, int32_t *payload, uint64_t *plan, fdp_fault *fault)
{
    fdk_job host = *job;
    fdk_part whole = fdk_nothing();
    fdk_message m;
    host.payload = payload;
    if (!tokens_on_host)
        host.tokens.data = NULL; /* the kernel refuses one that does not fit */
    m.job = &host;
    m.requests = NULL;
    m.batch = job->batch;
    m.size = job->capacity; /* until it is known: counts come before it */
    for (int32_t i = 0; i < job->batch; i++) {
        const fdp_given g = fdk_given(&host, i);
        const fdp_request r = fdp_decide(&job->terms, i, &g);
        int32_t rows, end;
        if (fdp_check(&job->terms, i, &g, &r, fault) < 0)
            return -1;
        end = fdk_end(job, i, r.count);
        rows = fdk_rows(job, &r);
        for (int32_t j = 0; j < rows; j++)
            plan[whole.rows + j] = fdk_planned(job, &r, i, j);
        whole.rows += rows;
        if (end > whole.end)
            whole.end = end;
        if (job->counts_at >= 0)
            fdk_write_count(&m, i, r.count);
    }
    m.rows = whole.rows;
    m.size = fdk_size(job, job->batch, &whole);
    for (int32_t i = job->batch; i < fdk_counts(&m); i++)
        fdk_write_count(&m, i, 0);
    for (int32_t k = 0; k < job->header_words; k++)
        fdk_write_header(&m, k);
    job->planned_rows = m.rows;
    job->planned_size = m.size;
    return 0;
}

#endif

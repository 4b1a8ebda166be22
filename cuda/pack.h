/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel body: a save op's tensors on a device -> one message.
 *
 * Every block works in FDK_PHASES phases with a barrier between two of them.  In the first three it finds out by
 * itself, from the counts, how many rows there are and where each request's begin (scan.h).  In the last one
 * all threads of the grid share the words of the message, so that a warp writes words that lie side by side
 * (emit.h).
 *
 * If all numbers that decide are in host memory, the host has decided (decide.h): it has written header and counts,
 * and a plan of the rows.  Then only the last phase has something to do.
 */
#ifndef FD_POSTPROC_CUDA_PACK_H
#define FD_POSTPROC_CUDA_PACK_H

#include "cuda/emit.h"

/* Words of the whole message. */
FDP_FN int32_t fdk_size(const fdk_job *job, int32_t batch, const fdk_part *whole)
{
    const int32_t least = job->size + job->size_per_request * batch + job->size_per_row * whole->rows;
    return whole->end > least ? whole->end : least;
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

#define FDK_PHASES 4

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
        fdk_reduce(&s, thread, threads);
    if (phase == 2 && fits && !planned)
        fdk_exclusive_scan(job, &s, thread, threads);
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

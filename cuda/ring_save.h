/* SPDX-License-Identifier: Apache-2.0
 *
 * What callers do with the ring (ring.h): start it, save, wait, take errors, stop it.
 */
#ifndef FD_POSTPROC_RING_SAVE_H
#define FD_POSTPROC_RING_SAVE_H

#include <signal.h>
#include <string.h>

#include "cuda/ring_sender.h"

#define FDR_LEAVE_NS 200000000 /* the time that a thread gets to end */

/* 0, or an errno value. */
static inline int fdr_start(fdr_ring *r, const fdv_driver *driver, int n)
{
    pthread_condattr_t attributes;
    sigset_t all, before;
    int status;
    memset(r, 0, sizeof *r);
    r->driver = driver;
    r->n = n;
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&r->work, &attributes);
    pthread_cond_init(&r->progress, &attributes);
    pthread_condattr_destroy(&attributes);
    /* Signals are for the interpreter: none is delivered to this thread, and none interrupts it. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    status = pthread_create(&r->thread, NULL, fdr_main, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    r->running = status == 0;
    return status;
}

/* Under the lock: wait until something has moved, at most until `deadline`.  0, or -1 once it has passed. */
static inline int fdr_wait(fdr_ring *r, int64_t deadline)
{
    struct timespec t;
    t.tv_sec = (time_t)(deadline / 1000000000);
    t.tv_nsec = (long)(deadline % 1000000000);
    return pthread_cond_timedwait(&r->progress, &r->lock, &t) == ETIMEDOUT ? -1 : 0;
}

/* Wait until all saves so far that are to be sent are, at most until `deadline` (monotonic ns).  1: they are. */
static inline int fdr_drain(fdr_ring *r, int64_t deadline)
{
    uint64_t goal;
    int done;
    pthread_mutex_lock(&r->lock);
    goal = r->owed;
    while (r->finished < goal && fdr_wait(r, deadline) == 0)
        ;
    done = r->finished >= goal;
    pthread_mutex_unlock(&r->lock);
    return done;
}

/* Under the lock: messages that are to be sent, and are not. */
static inline int64_t fdr_left(const fdr_ring *r)
{
    return r->owed > r->finished ? (int64_t)(r->owed - r->finished) : 0;
}

/* Accept no more saves, send the existing ones until `deadline`, and end the thread.  A thread that waits for
 * the driver cannot be ended, but sends nothing any more.  Returns the number of saves that were not sent. */
static inline int64_t fdr_stop(fdr_ring *r, int64_t deadline)
{
    int64_t left, until;
    int ended;
    pthread_mutex_lock(&r->lock);
    r->stopping = 1;
    pthread_cond_broadcast(&r->work);
    while (r->finished < r->owed && fdr_wait(r, deadline) == 0)
        ;
    left = fdr_left(r);
    __atomic_store_n(&r->abandoned, r->finished < r->issued, __ATOMIC_RELAXED);
    until = fds_now() + FDR_LEAVE_NS;
    while (!r->ended && fdr_wait(r, until) == 0)
        ;
    ended = r->ended;
    left = fdr_left(r);
    pthread_mutex_unlock(&r->lock);
    if (ended && r->running) {
        pthread_join(r->thread, NULL);
        r->running = 0;
    }
    return left;
}

enum fdr_answer {
    FDR_FAILED = -1,    /* *error says why, and nothing was saved */
    FDR_SAVED = 0,
    FDR_WAITING = 1,    /* all buffers are still in use after a slice of time; call again */
    FDR_BROKEN = 2,     /* r->failure says why */
    FDR_STOPPED = 3,
    FDR_UNFIT = 4,      /* job->fault says why, and nothing was saved */
    FDR_CAPTURED = 5,   /* the stream is being captured; nothing was saved */
    FDR_GROWING = 6,    /* as FDR_WAITING, but for another thread that makes buffers */
};

/* Whether the host decides a job; on_host says for each of its arrays whether it is in host memory. */
static inline int fdr_decides(const fdr_job *job, uint8_t on_host[FDK_ARRAYS])
{
    for (int k = 0; k < FDK_ARRAYS; k++)
        on_host[k] = job->sizes[k] >= 0;
    return fdk_decidable(&job->kernel, on_host);
}

/* Maximum number of requests of a job, for which the kernel's shared memory has room; -1: it needs none. */
static inline int64_t fdr_most_requests(const fdr_job *job)
{
    uint8_t on_host[FDK_ARRAYS];
    if (fdr_decides(job, on_host))
        return -1;
    return (FDK_MOST_SHARED - fdk_shared_bytes(0, FDK_THREADS)) / (int64_t)sizeof(fdk_request);
}

/* Under the lock: decide what the host can decide, and copy what the kernel reads from host memory into the
 * slot. 0, or -1 with the reason in job->fault. */
static inline int fdr_fill(fdr_slot *slot, fdr_job *job, fdk_job *kernel)
{
    int64_t end = fdr_message_room(job);
    fdk_array *arrays = &kernel->tokens;
    uint8_t on_host[FDK_ARRAYS];
    fdv_address at;
    if (fdr_decides(job, on_host)) {
        int32_t *payload = (int32_t *)(slot->memory + slot->payload_at);
        if (fdk_decide(kernel, on_host[0], payload, (uint64_t *)(slot->memory + end), &job->fault) < 0)
            return -1;
        at = slot->address + (fdv_address)end;
        memcpy(&kernel->plan, &at, sizeof at);
        end += fdr_aligned(fdk_plan_bytes(kernel));
        for (int k = FDK_FIRST_DECIDING; k < FDK_ARRAYS; k++)
            arrays[k].data = NULL;
    }
    for (int k = 0; k < FDK_ARRAYS; k++) {
        if (!on_host[k] || arrays[k].data == NULL)
            continue;
        at = slot->address + (fdv_address)end;
        memcpy(slot->memory + end, arrays[k].data, (size_t)job->sizes[k]);
        memcpy(&arrays[k].data, &at, sizeof at);
        end += fdr_aligned(job->sizes[k]);
    }
    return 0;
}

/* Under the lock: where the kernel writes. */
static inline void fdr_aim(const fdr_slot *slot, fdk_job *kernel)
{
    fdk_result *outcome = (fdk_result *)(slot->memory + FDK_RESULT_AT);
    fdv_address at = slot->address + FDK_RESULT_AT, payload = slot->address + (fdv_address)slot->payload_at;
    outcome->length = FDK_NOT_RUN;
    outcome->wide = 0;
    memcpy(&kernel->result, &at, sizeof at);
    memcpy(&kernel->payload, &payload, sizeof payload);
}

static inline int fdr_breaks(fdr_ring *r, fdr_error *error, fdv_result result)
{
    fdr_failed(error, result, "cuEventRecord");
    fdr_break(r);
    r->failure = *error;
    return -1;
}

/* Under the lock and in the current context: fill the next slot, launch, record. */
static inline int fdr_launch(fdr_ring *r, fdr_job *job, fdr_error *error)
{
    const fdv_driver *driver = r->driver;
    const int index = (int)(r->issued % (uint64_t)r->n);
    fdr_slot *slot = &r->slots[index];
    fdk_job kernel = job->kernel; /* the job's own stays as it is: it may have to be saved later */
    void *arguments[] = {&kernel};
    fdv_result result;
    fdr_take_buffer(r, slot);
    slot->memory = r->pool->memory + index * r->pool->each;
    slot->address = r->pool->address + (fdv_address)(index * r->pool->each);
    slot->payload_at = fdk_payload_at(&kernel);
    slot->kept = job->kept;
    if (job->kept != NULL) /* a message may have gaps, which would differ from the CPU's */
        memset(slot->memory + FDK_LINES_AT, 0, (size_t)(fdr_message_room(job) - FDK_LINES_AT));
    if (fdr_fill(slot, job, &kernel) < 0)
        return FDR_UNFIT;
    fdr_aim(slot, &kernel);
    slot->lane = job->lane;
    slot->seq_word = kernel.seq_word;
    slot->gpu = job->gpu;
    slot->event = job->gpu->events[index];
    slot->stream = job->stream;
    slot->recorded = 0;
    result = driver->LaunchKernel(
        job->gpu->kernel, (unsigned)fdk_blocks(&kernel), 1, 1, FDK_THREADS, 1, 1,
        kernel.plan != NULL ? 0 : (unsigned)fdk_shared_bytes(kernel.batch, FDK_THREADS), slot->stream, arguments,
        NULL);
    if (result != 0)
        return fdr_failed(error, result, "cuLaunchKernel");
    result = fdr_record(driver, slot);
    if (fdv_is_capture(result)) /* begun by another thread in the meantime: the sender thread tries again */
        return FDR_SAVED;
    if (result != 0) /* the kernel has been launched, and its end can no longer be seen */
        return fdr_breaks(r, error, result);
    return FDR_SAVED;
}

/* Under the lock: wait, for a slice of time at most, until a job can be launched.  FDR_SAVED: it can. */
static inline int fdr_await(fdr_ring *r, const fdr_job *job, int64_t slice, fdr_error *error)
{
    const int64_t began = fds_now();
    int64_t since = began;
    for (;;) {
        const int full = r->issued - r->finished >= (uint64_t)r->n;
        const int lack = fdr_lacks(r, job);
        int late;
        if (r->stopping)
            return FDR_STOPPED;
        if (r->broken)
            return FDR_BROKEN;
        if (!full && lack == 0)
            return FDR_SAVED;
        if (!full && !r->growing) {
            if (fdr_supply(r, job, lack, error) < 0)
                return FDR_FAILED;
            continue;
        }
        late = fdr_wait(r, began + slice) < 0;
        if (full)
            fdc_add(&r->held_ns, fds_now() - since);
        since = fds_now();
        if (late)
            return full ? FDR_WAITING : FDR_GROWING;
    }
}

/* The same in the current context, which is the job's. */
static inline int fdr_save_here(fdr_ring *r, fdr_job *job, uint64_t *ticket, fdr_error *error, int64_t slice)
{
    int capturing = 0, answer;
    const fdv_result result = r->driver->StreamIsCapturing(job->stream, &capturing);
    if (result != 0)
        return fdr_failed(error, result, "cuStreamIsCapturing");
    if (capturing)
        return FDR_CAPTURED;
    pthread_mutex_lock(&r->lock);
    answer = fdr_await(r, job, slice, error);
    if (answer == FDR_SAVED)
        answer = fdr_launch(r, job, error);
    if (answer == FDR_SAVED) {
        *ticket = r->issued++;
        if (job->kept == NULL)
            __atomic_store_n(&r->owed, r->issued, __ATOMIC_RELEASE);
        pthread_cond_signal(&r->work);
    }
    pthread_mutex_unlock(&r->lock);
    return answer;
}

/* Save: enum fdr_answer.  FDR_SAVED: *ticket is its number. */
static inline int fdr_save(fdr_ring *r, fdr_job *job, uint64_t *ticket, fdr_error *error, int64_t slice)
{
    const fdv_driver *driver = r->driver;
    const fdv_context wanted = job->gpu->context;
    fdv_context current = NULL;
    fdv_result result;
    int answer;
    memset(error, 0, sizeof *error);
    result = driver->CtxGetCurrent(&current);
    if (result != 0)
        return fdr_failed(error, result, "cuCtxGetCurrent");
    if (current != wanted && (result = driver->CtxPushCurrent(wanted)) != 0)
        return fdr_failed(error, result, "cuCtxPushCurrent");
    answer = fdr_save_here(r, job, ticket, error, slice);
    if (current != wanted)
        driver->CtxPopCurrent(&current);
    return answer;
}

/* Take the oldest error, if there is one: 1.  *more: with the last one, others that were only counted. */
static inline int fdr_take_error(fdr_ring *r, fdr_error *error, int64_t *more)
{
    int found;
    pthread_mutex_lock(&r->lock);
    found = r->n_errors > 0;
    if (found) {
        *error = r->errors[0];
        r->n_errors--;
        memmove(r->errors, r->errors + 1, (size_t)r->n_errors * sizeof r->errors[0]);
    }
    *more = 0;
    if (r->n_errors == 0) {
        *more = r->more_errors;
        r->more_errors = 0;
    }
    pthread_mutex_unlock(&r->lock);
    return found;
}

#endif

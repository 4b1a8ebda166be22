/* SPDX-License-Identifier: Apache-2.0
 *
 * What callers do with the ring (ring.h): start it, save, wait, take errors, stop it.
 */
#ifndef FD_POSTPROC_RING_SAVE_H
#define FD_POSTPROC_RING_SAVE_H

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ring_sender.h"

#define FDR_ALIGNMENT 64       /* of each host tensor's copy */
#define FDR_LEAVE_NS 200000000 /* a thread that is to end has so long for it */

/* 0, or an errno value. */
static inline int fdr_start(fdr_ring *r, const fdv_driver *driver, int n)
{
    pthread_condattr_t attributes;
    sigset_t all, before;
    int status;
    memset(r, 0, sizeof *r);
    r->driver = driver;
    r->n = n;
    for (int k = 0; k < FDR_MOST_SLOTS; k++)
        r->slots[k].event_ordinal = -1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&r->work, &attributes);
    pthread_cond_init(&r->progress, &attributes);
    pthread_condattr_destroy(&attributes);
    /* Signals are the interpreter's: none is delivered to this thread, none interrupts it. */
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

/* Wait until all saves so far are sent, at most until `deadline` (monotonic ns).  1: they are. */
static inline int fdr_drain(fdr_ring *r, int64_t deadline)
{
    uint64_t goal;
    int done;
    pthread_mutex_lock(&r->lock);
    goal = r->issued;
    while (r->finished < goal && fdr_wait(r, deadline) == 0)
        ;
    done = r->finished >= goal;
    pthread_mutex_unlock(&r->lock);
    return done;
}

/* Take no more saves, send what there is until `deadline`, and end the thread.  One that waits for the driver
 * cannot be ended; it sends nothing any more.  Saves that were not sent. */
static inline int64_t fdr_stop(fdr_ring *r, int64_t deadline)
{
    int64_t left, until;
    int ended;
    pthread_mutex_lock(&r->lock);
    r->stopping = 1;
    pthread_cond_broadcast(&r->work);
    while (r->finished < r->issued && fdr_wait(r, deadline) == 0)
        ;
    left = (int64_t)(r->issued - r->finished);
    __atomic_store_n(&r->abandoned, left > 0, __ATOMIC_RELAXED);
    until = fds_now() + FDR_LEAVE_NS;
    while (!r->ended && fdr_wait(r, until) == 0)
        ;
    ended = r->ended;
    left = (int64_t)(r->issued - r->finished);
    pthread_mutex_unlock(&r->lock);
    if (ended && r->running) {
        pthread_join(r->thread, NULL);
        r->running = 0;
    }
    return left;
}

static inline int fdr_failed(fdr_error *error, fdv_result result, const char *call)
{
    error->kind = FDR_DRIVER;
    error->status = result;
    error->call = call;
    return -1;
}

/* Pinned memory for a slot, at least `size` bytes; what it had is given back. */
static inline int fdr_reserve(const fdv_driver *driver, fdr_slot *slot, int64_t size, fdr_error *error)
{
    fdv_result result;
    void *fresh = NULL;
    if (slot->memory != NULL) {
        uint8_t *old = slot->memory;
        slot->memory = NULL;
        slot->size = 0;
        result = driver->MemFreeHost(old);
        if (result != 0)
            return fdr_failed(error, result, "cuMemFreeHost");
    }
    result = driver->MemHostAlloc(&fresh, (size_t)size, FDV_HOST_PORTABLE | FDV_HOST_MAPPED);
    if (result != 0)
        return fdr_failed(error, result, "cuMemHostAlloc");
    result = driver->MemHostGetDevicePointer(&slot->address, fresh, 0);
    if (result != 0) {
        driver->MemFreeHost(fresh);
        return fdr_failed(error, result, "cuMemHostGetDevicePointer");
    }
    memset(fresh, 0, (size_t)size);
    slot->memory = (uint8_t *)fresh;
    slot->size = size;
    return 0;
}

static inline int64_t fdr_aligned(int64_t size)
{
    return (size + FDR_ALIGNMENT - 1) / FDR_ALIGNMENT * FDR_ALIGNMENT;
}

/* An event of the job's device for a slot, in the current context. */
static inline int fdr_make_event(const fdv_driver *driver, fdr_slot *slot, int ordinal, fdr_error *error)
{
    fdv_result result;
    if (slot->event_ordinal >= 0) {
        slot->event_ordinal = -1;
        result = driver->EventDestroy(slot->event);
        if (result != 0)
            return fdr_failed(error, result, "cuEventDestroy");
    }
    result = driver->EventCreate(&slot->event, FDV_EVENT_BLOCKING | FDV_EVENT_NO_TIMING);
    if (result != 0)
        return fdr_failed(error, result, "cuEventCreate");
    slot->event_ordinal = ordinal;
    return 0;
}

/* Copy the host tensors, launch, record.  In the current context. */
static inline int fdr_launch(fdr_ring *r, fdr_slot *slot, fdr_job *job, fdr_error *error)
{
    const fdv_driver *driver = r->driver;
    void *arguments[] = {&job->kernel};
    int64_t end = fdr_aligned(FDK_PAYLOAD_AT + job->lane->capacity), need = end;
    fdk_result *told;
    fdv_address at;
    fdv_result result;
    for (int k = 0; k < job->n_inputs; k++)
        need += fdr_aligned(job->inputs[k].size);
    if (slot->size < need && fdr_reserve(driver, slot, need, error) < 0)
        return -1;
    if (slot->event_ordinal != job->gpu->ordinal
        && fdr_make_event(driver, slot, job->gpu->ordinal, error) < 0)
        return -1;
    for (int k = 0; k < job->n_inputs; k++) {
        const fdr_input *input = &job->inputs[k];
        at = slot->address + (fdv_address)end;
        memcpy(slot->memory + end, input->from, (size_t)input->size);
        memcpy(input->field, &at, sizeof at);
        end += fdr_aligned(input->size);
    }
    at = slot->address + FDK_PAYLOAD_AT;
    memcpy(&job->kernel.payload, &at, sizeof at);
    at = slot->address + FDK_RESULT_AT;
    memcpy(&job->kernel.result, &at, sizeof at);
    told = (fdk_result *)(slot->memory + FDK_RESULT_AT);
    told->length = FDK_NOT_RUN;
    told->wide = 0;
    slot->lane = job->lane;
    slot->seq_word = job->kernel.seq_word;
    result = driver->LaunchKernel(job->gpu->kernel, (unsigned)fdk_blocks(&job->kernel), 1, 1, FDK_THREADS, 1, 1,
                                  (unsigned)fdk_shared_bytes(job->kernel.batch, FDK_THREADS), job->stream,
                                  arguments, NULL);
    if (result != 0)
        return fdr_failed(error, result, "cuLaunchKernel");
    result = driver->EventRecord(slot->event, job->stream);
    if (result != 0) { /* the kernel is on its way, and nobody will know when it is done */
        fdr_failed(error, result, "cuEventRecord");
        fdr_break(r);
        r->failure = *error;
        return -1;
    }
    return 0;
}

enum fdr_answer { FDR_FAILED = -1, FDR_SAVED = 0, FDR_WAITING = 1, FDR_BROKEN = 2, FDR_STOPPED = 3 };

/* Save.  FDR_SAVED: *ticket is its number.  FDR_WAITING: all buffers are still in use after a slice of time;
 * call again.  FDR_BROKEN: r->failure says why.  FDR_FAILED: *error says why, and nothing was saved. */
static inline int fdr_save(fdr_ring *r, fdr_job *job, uint64_t *ticket, fdr_error *error, int64_t slice)
{
    const fdv_driver *driver = r->driver;
    fdv_context current = NULL;
    fdv_result result;
    int answer = FDR_SAVED;
    pthread_mutex_lock(&r->lock);
    if (r->issued - r->finished >= (uint64_t)r->n && !r->broken && !r->stopping) {
        const int64_t began = fds_now();
        while (r->issued - r->finished >= (uint64_t)r->n && !r->broken && fdr_wait(r, began + slice) == 0)
            ;
        fdc_add(&r->held_ns, fds_now() - began);
    }
    if (r->stopping)
        answer = FDR_STOPPED;
    else if (r->broken)
        answer = FDR_BROKEN;
    else if (r->issued - r->finished >= (uint64_t)r->n)
        answer = FDR_WAITING;
    if (answer != FDR_SAVED) {
        pthread_mutex_unlock(&r->lock);
        return answer;
    }
    memset(error, 0, sizeof *error);
    result = driver->CtxGetCurrent(&current);
    if (result != 0) {
        answer = fdr_failed(error, result, "cuCtxGetCurrent");
    } else if (current != job->gpu->context && (result = driver->CtxPushCurrent(job->gpu->context)) != 0) {
        answer = fdr_failed(error, result, "cuCtxPushCurrent");
    } else {
        answer = fdr_launch(r, &r->slots[r->issued % (uint64_t)r->n], job, error);
        if (current != job->gpu->context)
            driver->CtxPopCurrent(&current);
    }
    if (answer == FDR_SAVED) {
        *ticket = r->issued;
        __atomic_store_n(&r->issued, r->issued + 1, __ATOMIC_RELEASE);
        pthread_cond_signal(&r->work);
    }
    pthread_mutex_unlock(&r->lock);
    return answer;
}

/* Take the oldest error, if there is one: 1.  *more: others that were only counted. */
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
    *more = r->more_errors;
    if (r->n_errors == 0)
        r->more_errors = 0;
    pthread_mutex_unlock(&r->lock);
    return found;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and events of the ring (ring.h).
 *
 * Buffers are made for all slots at once, because the driver takes long for it and may wait for the device.
 * That happens outside the ring's lock, while others keep using the existing ones.  Freeing waits for the
 * device, too, so the sender thread does it when nothing has been saved for a while.
 */
#ifndef FD_POSTPROC_RING_MEMORY_H
#define FD_POSTPROC_RING_MEMORY_H

#include <stdlib.h>
#include <string.h>

#include "cuda/ring.h"

#define FDR_ALIGNMENT 64        /* of each host tensor's copy */
#define FDR_BUFFER_STEP 16384   /* sizes of buffers are multiples of it: batches that grow need no new ones */

static inline int64_t fdr_aligned(int64_t size)
{
    return (size + FDR_ALIGNMENT - 1) / FDR_ALIGNMENT * FDR_ALIGNMENT;
}

static inline int fdr_failed(fdr_error *error, fdv_result result, const char *call)
{
    error->kind = FDR_DRIVER;
    error->driver = result;
    error->call = call;
    return -1;
}

/* Bytes of a job's buffer, without what the kernel reads there. */
static inline int64_t fdr_message_room(const fdr_job *job)
{
    return fdr_aligned(FDK_MOST_PAYLOAD_AT + job->lane->queue.capacity);
}

/* Bytes of a job's buffer. */
static inline int64_t fdr_room(const fdr_job *job)
{
    int64_t inputs = 0;
    const int64_t plan = fdr_aligned(fdk_plan_bytes(&job->kernel));
    for (int k = 0; k < FDK_ARRAYS; k++)
        inputs += job->sizes[k] > 0 ? fdr_aligned(job->sizes[k]) : 0;
    return fdr_message_room(job) + plan + inputs;
}

/* What keeps a job from being launched now: 0, or which of these has to be made. */
enum fdr_lack { FDR_LACKS_BUFFERS = 1, FDR_LACKS_EVENTS };

static inline int fdr_lacks(const fdr_ring *r, const fdr_job *job)
{
    if (r->pool == NULL || r->pool->each < fdr_room(job))
        return FDR_LACKS_BUFFERS;
    return job->gpu->n_events < r->n ? FDR_LACKS_EVENTS : 0;
}

/* Pinned memory of so many bytes. */
static inline fdv_result fdr_allocate(const fdv_driver *driver, fdr_pool *pool, size_t size, const char **call)
{
    fdv_result result;
    void *memory = NULL;
    *call = "cuMemHostAlloc";
    result = driver->MemHostAlloc(&memory, size, FDV_HOST_PORTABLE | FDV_HOST_MAPPED);
    if (result != 0)
        return result;
    *call = "cuMemHostGetDevicePointer";
    result = driver->MemHostGetDevicePointer(&pool->address, memory, 0);
    if (result != 0) {
        driver->MemFreeHost(memory);
        return result;
    }
    memset(memory, 0, size); /* old content must not leak: a message may have gaps */
    pool->memory = (uint8_t *)memory;
    return 0;
}

/* A new pool in the current context; NULL with the reason in *error. */
static inline fdr_pool *fdr_new_pool(const fdr_ring *r, const fdr_job *job, fdr_error *error)
{
    const char *call = "calloc";
    fdr_pool *pool = (fdr_pool *)calloc(1, sizeof *pool);
    fdv_result result = FDV_OUT_OF_MEMORY;
    if (pool != NULL) {
        pool->context = job->gpu->context;
        pool->each = (fdr_room(job) + FDR_BUFFER_STEP - 1) / FDR_BUFFER_STEP * FDR_BUFFER_STEP;
        result = fdr_allocate(r->driver, pool, (size_t)pool->each * (size_t)r->n, &call);
    }
    if (result == 0)
        return pool;
    free(pool);
    fdr_failed(error, result, call);
    return NULL;
}

/* Under the lock: new slots' buffers are of `fresh`; the old ones are freed when no slot has one any more. */
static inline void fdr_replace(fdr_ring *r, fdr_pool *fresh)
{
    if (r->pool != NULL) {
        r->pool->next = r->retired;
        r->retired = r->pool;
    }
    r->pool = fresh;
}

/* Under the lock: the slot's buffer is one of the present pool. */
static inline void fdr_take_buffer(const fdr_ring *r, fdr_slot *slot)
{
    if (slot->pool == r->pool)
        return;
    if (slot->pool != NULL)
        slot->pool->users--;
    slot->pool = r->pool;
    slot->pool->users++;
}

/* Events for all slots in the current context; *made is how many there are, published to others under the
 * lock. */
static inline int fdr_make_events(const fdr_ring *r, fdr_gpu *gpu, int *made, fdr_error *error)
{
    while (*made < r->n) {
        const fdv_result result =
            r->driver->EventCreate(&gpu->events[*made], FDV_EVENT_BLOCKING | FDV_EVENT_NO_TIMING);
        if (result != 0)
            return fdr_failed(error, result, "cuEventCreate");
        (*made)++;
    }
    return 0;
}

/* Under the lock, which is released in the meantime: make what the job lacks, in the current context.  0, or
 * -1 with the reason in *error. */
static inline int fdr_supply(fdr_ring *r, const fdr_job *job, int lack, fdr_error *error)
{
    fdr_gpu *gpu = job->gpu;
    fdr_pool *fresh = NULL;
    fdv_result result, back;
    int mode, answer = 0, made = gpu->n_events;
    r->growing = 1;
    pthread_mutex_unlock(&r->lock);
    result = fdv_relax(r->driver, &mode);
    if (result != 0) {
        answer = fdr_failed(error, result, "cuThreadExchangeStreamCaptureMode");
    } else {
        if (lack == FDR_LACKS_EVENTS) {
            answer = fdr_make_events(r, gpu, &made, error);
        } else {
            fresh = fdr_new_pool(r, job, error);
            answer = fresh == NULL ? -1 : 0;
        }
        back = r->driver->ThreadExchangeCaptureMode(&mode);
        if (back != 0 && answer == 0)
            answer = fdr_failed(error, back, "cuThreadExchangeStreamCaptureMode");
    }
    pthread_mutex_lock(&r->lock);
    r->growing = 0;
    gpu->n_events = made;
    if (fresh != NULL)
        fdr_replace(r, fresh);
    pthread_cond_broadcast(&r->progress);
    return answer;
}

/* Under the lock, with nothing in flight: take a pool that no slot needs out of the list; NULL: there is
 * none. */
static inline fdr_pool *fdr_unused(fdr_ring *r)
{
    for (int k = 0; k < r->n; k++) { /* nothing is in flight: a slot with an old buffer gets a new one */
        fdr_slot *slot = &r->slots[k];
        for (const fdr_pool *old = r->retired; old != NULL; old = old->next) {
            if (slot->pool == old) {
                slot->pool->users--;
                slot->pool = NULL;
            }
        }
    }
    for (fdr_pool **p = &r->retired; *p != NULL; p = &(*p)->next)
        if ((*p)->users == 0) {
            fdr_pool *found = *p;
            *p = found->next;
            return found;
        }
    return NULL;
}

#endif

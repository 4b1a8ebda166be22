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
enum fdr_lack { FDR_LACKS_BUFFERS = 1, FDR_LACKS_DEVICE_BUFFERS, FDR_LACKS_EVENTS, FDR_LACKS_STREAM };

static inline int fdr_lacks(const fdr_ring *r, const fdr_job *job)
{
    if (r->pool == NULL || r->pool->each < fdr_room(job))
        return FDR_LACKS_BUFFERS;
    if (r->way == FDR_COPY && (job->gpu->pool == NULL || job->gpu->pool->each < fdr_message_room(job)))
        return FDR_LACKS_DEVICE_BUFFERS;
    if (job->gpu->n_events < r->n)
        return FDR_LACKS_EVENTS;
    return job->side && job->gpu->side == NULL ? FDR_LACKS_STREAM : 0;
}

/* Pinned memory for n buffers, or memory of the current context's device. */
static inline fdv_result fdr_allocate(const fdv_driver *driver, fdr_pool *pool, int on_device, size_t size,
                                      const char **call)
{
    fdv_result result;
    void *memory = NULL;
    if (on_device) {
        *call = "cuMemAlloc";
        result = driver->MemAlloc(&pool->address, size);
        if (result != 0)
            return result;
        *call = "cuMemsetD8"; /* old content must not leak: a message may have gaps */
        result = driver->MemsetD8(pool->address, 0, size);
        if (result != 0)
            driver->MemFree(pool->address);
        return result;
    }
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
    memset(memory, 0, size);
    pool->memory = (uint8_t *)memory;
    return 0;
}

/* A new pool in the current context; NULL with the reason in *error. */
static inline fdr_pool *fdr_new_pool(const fdr_ring *r, const fdr_job *job, int on_device, fdr_error *error)
{
    const int64_t need = on_device ? fdr_message_room(job) : fdr_room(job);
    const char *call = "calloc";
    fdr_pool *pool = (fdr_pool *)calloc(1, sizeof *pool);
    fdv_result result = FDV_OUT_OF_MEMORY;
    if (pool != NULL) {
        pool->context = job->gpu->context;
        pool->each = (need + FDR_BUFFER_STEP - 1) / FDR_BUFFER_STEP * FDR_BUFFER_STEP;
        result = fdr_allocate(r->driver, pool, on_device, (size_t)pool->each * (size_t)r->n, &call);
    }
    if (result == 0)
        return pool;
    free(pool);
    fdr_failed(error, result, call);
    return NULL;
}

/* Under the lock: replace *pool by `fresh`; the old buffers are freed when no slot has one any more. */
static inline void fdr_replace(fdr_ring *r, fdr_pool **pool, fdr_pool *fresh)
{
    if (*pool != NULL) {
        (*pool)->next = r->retired;
        r->retired = *pool;
    }
    *pool = fresh;
}

/* Under the lock: the slot's buffer is one of `pool`. */
static inline void fdr_take_from(fdr_pool **had, fdr_pool *pool)
{
    if (*had == pool)
        return;
    if (*had != NULL)
        (*had)->users--;
    *had = pool;
    pool->users++;
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
    fdv_stream side = NULL;
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
        } else if (lack == FDR_LACKS_STREAM) {
            result = r->driver->StreamCreate(&side, FDV_STREAM_NON_BLOCKING);
            if (result != 0)
                answer = fdr_failed(error, result, "cuStreamCreate");
        } else {
            fresh = fdr_new_pool(r, job, lack == FDR_LACKS_DEVICE_BUFFERS, error);
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
        fdr_replace(r, lack == FDR_LACKS_DEVICE_BUFFERS ? &gpu->pool : &r->pool, fresh);
    if (side != NULL)
        gpu->side = side;
    pthread_cond_broadcast(&r->progress);
    return answer;
}

/* Record an event on a stream: what has been queued there so far makes tensors complete.  0, or -1 with the
 * reason in *error. */
static inline int fdr_mark(const fdv_driver *driver, fdr_gpu *gpu, fdv_stream stream, fdr_error *error)
{
    fdv_context popped;
    fdv_result result = driver->CtxPushCurrent(gpu->context);
    const char *call = "cuEventCreate";
    int mode;
    if (result != 0)
        return fdr_failed(error, result, "cuCtxPushCurrent");
    if (gpu->ready == NULL) {
        result = fdv_relax(driver, &mode);
        if (result == 0) {
            result = driver->EventCreate(&gpu->ready, FDV_EVENT_BLOCKING | FDV_EVENT_NO_TIMING);
            driver->ThreadExchangeCaptureMode(&mode);
        }
    }
    if (result == 0) {
        call = "cuEventRecord";
        result = driver->EventRecord(gpu->ready, stream);
    }
    driver->CtxPopCurrent(&popped);
    return result == 0 ? 0 : fdr_failed(error, result, call);
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
            if (slot->device_pool == old) {
                slot->device_pool->users--;
                slot->device_pool = NULL;
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

/* Free a pool's memory, in the context in which it was made.  Returns the driver's answer. */
static inline fdv_result fdr_free_pool(const fdv_driver *driver, const fdr_pool *pool)
{
    return pool->memory != NULL ? driver->MemFreeHost(pool->memory) : driver->MemFree(pool->address);
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender thread of the ring (ring.h).
 */
#ifndef FD_POSTPROC_RING_SENDER_H
#define FD_POSTPROC_RING_SENDER_H

#include <string.h>

#include "fd_postproc/headers/lane.h"
#include "cuda/ring_memory.h"

#define FDR_CAPTURE_NS 1000000  /* and this often whether a capture is over */
#define FDR_IDLE_NS 500000000   /* after so long without a save, old buffers are freed */

/* Under the lock. */
static inline void fdr_keep_error(fdr_ring *r, const fdr_error *error)
{
    if (r->n_errors < FDR_MOST_ERRORS)
        r->errors[r->n_errors++] = *error;
    else
        r->more_errors++;
}

/* Send what was written into a slot to its queue, or keep it.  0, or -1 with the reason in *error. */
static inline int fdr_send(fdr_ring *r, const fdr_slot *slot, int64_t size, fdr_error *error)
{
    fdq_lane *queue = &slot->lane->queue;
    uint8_t *message = slot->memory + slot->payload_at - FDF_MTYPE_SIZE;
    fdf_sending sending;
    int status;
    if (slot->kept != NULL) {
        memcpy(slot->kept->payload, message + FDF_MTYPE_SIZE, (size_t)size);
        slot->kept->length = size;
        return 0;
    }
    if (slot->seq_word >= 0) /* here, so that the numbers are in the order of sending and have no gaps */
        memcpy(message + FDF_MTYPE_SIZE + 4 * slot->seq_word, &queue->seq, sizeof queue->seq);
    status = fdq_begin(queue, &sending, message, size);
    if (status == 0)
        do
            status = fdq_go_on(queue, &sending, -1);
        while (status == -EINTR || (status == -EAGAIN && !__atomic_load_n(&r->abandoned, __ATOMIC_RELAXED)));
    if (status == 0)
        return 0;
    error->kind = status == FDQ_TOO_BIG ? FDR_TOO_BIG : status == FDQ_LAYOUT ? FDR_LAYOUT : FDR_QUEUE;
    error->queue = -status;
    error->limits = queue->limits;
    return -1;
}

/* The bytes of a message, from the kernel's result; -1 if it must not be sent, with the reason in *error. */
static inline int64_t fdr_length(const fdr_slot *slot, fdr_error *error)
{
    const fdk_result *result = (const fdk_result *)(slot->memory + FDK_RESULT_AT);
    if (result->length == FDK_REFUSED) {
        error->kind = FDR_REFUSED;
        error->refused = result->fault;
        return -1;
    }
    if (result->wide != 0) {
        error->kind = FDR_WIDE;
        error->refused.reason = (int32_t)(result->wide % 256);
        error->refused.index = result->wide / 256;
        return -1;
    }
    if (result->length < 0 || result->length > slot->lane->queue.capacity) {
        error->kind = FDR_SIZE;
        error->claimed = result->length;
        error->capacity = slot->lane->queue.capacity;
        return -1;
    }
    return result->length;
}

static inline void fdr_count_lost(const fdr_slot *slot)
{
    fdc_add(&slot->lane->lost, slot->kept == NULL);
}

/* With the lock held; but others look at the number without it. */
static inline void fdr_count_finished(fdr_ring *r)
{
    __atomic_store_n(&r->finished, r->finished + 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&r->progress);
}

/* Saves up to the last one that is to be sent; finished saves; whether an event failed.  Read without the
 * lock. */
static inline uint64_t fdr_owed(const fdr_ring *r)
{
    return __atomic_load_n(&r->owed, __ATOMIC_ACQUIRE);
}

static inline uint64_t fdr_finished(const fdr_ring *r)
{
    return __atomic_load_n(&r->finished, __ATOMIC_ACQUIRE);
}

static inline int fdr_is_broken(const fdr_ring *r)
{
    return __atomic_load_n(&r->broken, __ATOMIC_ACQUIRE);
}

static inline void fdr_break(fdr_ring *r)
{
    __atomic_store_n(&r->broken, 1, __ATOMIC_RELEASE);
}

static inline void fdr_pause(int64_t ns)
{
    const struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

/* The event behind the kernel on its stream. */
static inline fdv_result fdr_record(const fdv_driver *driver, fdr_slot *slot)
{
    const fdv_result result = driver->EventRecord(slot->event, slot->stream);
    slot->recorded = result == 0;
    return result;
}

/* Make the slot's context current in this thread, and exempt the thread from what captures in others forbid.
 * */
static inline fdv_result fdr_move_to(const fdv_driver *driver, fdv_context context, fdv_context *current,
                                     const char **call)
{
    int mode;
    fdv_result result;
    if (*current == context)
        return 0;
    *call = "cuCtxSetCurrent";
    result = driver->CtxSetCurrent(context);
    if (result != 0)
        return result;
    *call = "cuThreadExchangeStreamCaptureMode";
    result = fdv_relax(driver, &mode);
    if (result == 0)
        *current = context;
    return result;
}

/* Wait until the message is in its buffer.  The driver's answer; *call is the call that gave it. */
static inline fdv_result fdr_arrive(const fdr_ring *r, fdr_slot *slot, fdv_context *current, const char **call)
{
    for (;;) {
        fdv_result result;
        result = fdr_move_to(r->driver, slot->gpu->context, current, call);
        if (result == 0 && !slot->recorded) {
            *call = "cuEventRecord";
            result = fdr_record(r->driver, slot);
        }
        if (result == 0) {
            *call = "cuEventSynchronize";
            result = r->driver->EventSynchronize(slot->event);
        }
        /* Not lost: during a capture the driver gives no answer. */
        if (!fdv_is_capture(result) || __atomic_load_n(&r->abandoned, __ATOMIC_RELAXED))
            return result;
        fdr_pause(FDR_CAPTURE_NS);
    }
}

/* Under the lock, released in the meantime: wait for a save.  Old buffers are freed after a while without
 * one. */
static inline void fdr_rest(fdr_ring *r, fdv_context *current)
{
    const char *call;
    while (r->finished == r->issued && !r->stopping) {
        fdr_pool *old;
        struct timespec t;
        const int64_t until = fds_now() + FDR_IDLE_NS;
        if (r->retired == NULL || r->broken) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        t.tv_sec = (time_t)(until / 1000000000);
        t.tv_nsec = (long)(until % 1000000000);
        if (pthread_cond_timedwait(&r->work, &r->lock, &t) != ETIMEDOUT || r->finished != r->issued || r->stopping)
            continue;
        old = fdr_unused(r);
        if (old == NULL)
            continue;
        pthread_mutex_unlock(&r->lock);
        if (fdr_move_to(r->driver, old->context, current, &call) == 0
            && r->driver->MemFreeHost(old->memory) == 0) {
            free(old);
            old = NULL;
        }
        pthread_mutex_lock(&r->lock);
        if (old != NULL) { /* tried again; if something is wrong with the driver, a save will fail as well */
            old->next = r->retired;
            r->retired = old;
        }
    }
}

static void *fdr_main(void *data)
{
    fdr_ring *r = (fdr_ring *)data;
    fdv_context current = NULL;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        fdr_slot *slot;
        fdr_error error;
        fdv_result result;
        int64_t length;
        int status = -1;
        fdr_rest(r, &current);
        if (r->finished == r->issued || r->abandoned)
            break;
        slot = &r->slots[r->finished % (uint64_t)r->n];
        memset(&error, 0, sizeof error);
        error.ticket = r->finished;
        if (r->broken) { /* counted, not waited for */
            fdr_count_lost(slot);
            fdr_count_finished(r);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        result = fdr_arrive(r, slot, &current, &error.call);
        pthread_mutex_lock(&r->lock);
        if (r->abandoned)
            break;
        if (result != 0) {
            error.kind = FDR_DRIVER;
            error.driver = result;
            fdr_break(r);
            r->failure = error;
            fdr_keep_error(r, &error);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        length = fdr_length(slot, &error);
        if (length >= 0)
            status = fdr_send(r, slot, length, &error);
        fdc_set(&slot->lane->queue.waiting_since, 0);
        pthread_mutex_lock(&r->lock);
        if (r->abandoned && status < 0)
            break;
        if (status < 0) {
            fdr_count_lost(slot);
            fdr_keep_error(r, &error);
        }
        fdr_count_finished(r);
    }
    r->ended = 1;
    pthread_cond_broadcast(&r->progress);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

#endif

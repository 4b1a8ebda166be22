/* SPDX-License-Identifier: Apache-2.0
 *
 * From the kernel to the queue: a ring of pinned buffers, and a thread that sends what the kernel wrote there.
 *
 * A save takes the next buffer, launches the kernel that writes the message into it, records an event and
 * returns.  The sender thread waits for the events one after another and gives each message to its queue, so
 * the order is that of the saves.  It blocks in the driver and in msgsnd and nowhere spins; it knows no Python
 * and takes no GIL, so it can neither hold up the interpreter nor be held up by it, and a process may end
 * while it waits.  What goes wrong in it is kept until a caller asks.
 *
 * A buffer belongs to the kernel until its event, then to the thread until its message is sent.  Everything
 * else is under one lock.
 */
#ifndef FD_POSTPROC_RING_H
#define FD_POSTPROC_RING_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_counter.h"
#include "_frames.h"
#include "_sysv.h"
#include "driver.h"
#include "prepare.h"

FDK_ASSERT(offsetof(fdk_job, tokens) == 0 && offsetof(fdk_job, steps) == 9 * sizeof(fdk_array),
           "ten arrays in the order of tensors.ROLES");

#define FDR_MOST_SLOTS 64
#define FDR_MOST_ERRORS 16          /* kept until somebody asks; more are only counted */
#define FDR_MOST_INPUTS 16          /* tensors of one save */
#define FDR_ALIGNMENT 64            /* of each host tensor's copy */
#define FDR_SLICE_NS 20000000       /* the sender thread looks this often whether it is to go on waiting */
#define FDR_LEAVE_NS 200000000      /* a thread that is to end has so long for it */

/* Where messages go, and what became of them.  Lives until its last message is sent. */
typedef struct {
    int msqid;
    int compact;
    int64_t stock_size;             /* most that FastDeploy's receiver takes */
    int64_t capacity;               /* payload bytes of the longest message or frame */
    uint64_t seq;                   /* of the next frame */
    int64_t frames, messages, bytes, fragments, waits, waited_ns;
    int64_t waiting_since;          /* monotonic ns at which the queue was found full; 0: it is not */
    int64_t lost;                   /* saves whose message was not sent */
} fdr_lane;

/* A device whose primary context this process uses, and the kernel in it. */
typedef struct {
    int ordinal;
    fdv_context context;
    fdv_function kernel;
} fdr_gpu;

enum fdr_kind {
    FDR_DRIVER,     /* a driver call failed: status is its result */
    FDR_QUEUE,      /* a queue call failed: status is its errno */
    FDR_TOO_BIG,    /* value bytes, but kernel.msgmax is index and the queue's msg_qbytes is bound */
    FDR_LAYOUT,     /* a piece of a frame may not be as long as it would have to be */
    FDR_REFUSED,    /* the kernel met a number that does not fit: status is an fdp_reason */
    FDR_WIDE,       /* likewise, but value is not known */
    FDR_SIZE,       /* the kernel claims value bytes, but bound is the most: a mistake of ours */
};

typedef struct {
    uint64_t ticket;    /* the save's number */
    int32_t kind;
    int32_t status;
    int64_t index, value, bound;
    const char *call;   /* of the driver */
} fdr_error;

/* Pinned memory: what the kernel tells (fdk_result), mtype and payload, where prepare.h has them, and behind
 * them copies of host tensors. */
typedef struct {
    uint8_t *memory;
    fdv_address address;            /* the same for the device */
    int64_t size;
    fdv_event event;
    int event_ordinal;              /* device of that event; -1: there is none */
    fdr_lane *lane;
    int32_t seq_word;               /* where a frame's number belongs; -1: nowhere */
} fdr_slot;

typedef struct {
    const fdv_driver *driver;
    pthread_mutex_t lock;
    pthread_cond_t work, progress;
    pthread_t thread;
    int running;                    /* the thread has been started and not joined */
    int stopping;                   /* no more saves; the thread ends when all is sent */
    int abandoned;                  /* the thread sends nothing more */
    int ended;                      /* it has nothing left to do but return */
    int broken;                     /* an event failed: nobody knows what the device still writes */
    fdr_error failure;              /* why it is broken */
    int n;
    fdr_slot slots[FDR_MOST_SLOTS];
    uint64_t issued;                /* saves so far; save t uses slots[t % n] */
    uint64_t finished;              /* of those, whose message is sent (or never will be) */
    int n_errors;
    int64_t more_errors;
    fdr_error errors[FDR_MOST_ERRORS];
    int64_t held, held_ns;          /* saves that waited for a buffer, and how long */
} fdr_ring;

/* A tensor in host memory, of which the device gets a copy. */
typedef struct {
    const void *from;
    int64_t size;
    void *field;                    /* the pointer in the kernel's argument */
} fdr_input;

/* One save. */
typedef struct {
    const fdr_gpu *gpu;
    fdv_stream stream;
    fdr_lane *lane;
    fdk_job kernel;                 /* its payload and result are filled in here */
    int n_inputs;
    fdr_input inputs[FDR_MOST_INPUTS];
} fdr_job;

/* ---- The sender thread ------------------------------------------------------------------------------ */

/* Under the lock. */
static inline void fdr_keep_error(fdr_ring *r, const fdr_error *error)
{
    if (r->n_errors < FDR_MOST_ERRORS)
        r->errors[r->n_errors++] = *error;
    else
        r->more_errors++;
}

/* Give what was written into a slot to its queue.  0, or -1 with the reason in *error. */
static inline int fdr_send(fdr_ring *r, const fdr_slot *slot, int64_t size, fdr_error *error)
{
    fdr_lane *lane = slot->lane;
    uint8_t *message = slot->memory + FDK_MTYPE_AT;
    fdf_sending sending;
    int64_t msgmax = 0, msg_qbytes = 0;
    int64_t limit = fds_limit(lane->msqid, &msgmax, &msg_qbytes);
    const long mtype = lane->compact ? FDW_MTYPE_COMPACT : FDW_MTYPE_STOCK;
    error->kind = FDR_TOO_BIG;
    error->value = size;
    error->index = msgmax;
    error->bound = msg_qbytes;
    if (limit < 0) {
        error->kind = FDR_QUEUE;
        error->status = (int32_t)-limit;
        return -1;
    }
    if (!lane->compact && size > limit)
        return -1;
    memcpy(message, &mtype, sizeof mtype);
    if (slot->seq_word >= 0) { /* here, so that the numbers are in the order of sending and have no holes */
        memcpy(message + FDF_MTYPE_SIZE + 4 * slot->seq_word, &lane->seq, sizeof lane->seq);
        lane->seq++; /* also if it fails half-way: a number is never used again */
    }
    if (fdf_cut(&sending, message, size, limit < lane->stock_size ? limit : lane->stock_size) < 0) {
        error->kind = lane->stock_size < limit ? FDR_LAYOUT : FDR_TOO_BIG;
        error->value = FDF_LEAST_LIMIT;
        return -1;
    }
    while (sending.next < sending.fragments) { /* the rules of Sender._send */
        int64_t piece = 0;
        void *next = fdf_piece(&sending, &piece);
        int status = fds_put(lane->msqid, next, piece);
        if (status == -EAGAIN) {
            const int64_t began = fds_now();
            if (lane->waiting_since == 0) {
                fdc_add(&lane->waits, 1);
                fdc_set(&lane->waiting_since, began);
            }
            status = fds_put_wait(lane->msqid, next, piece, lane->waiting_since, began + FDR_SLICE_NS);
            fdc_add(&lane->waited_ns, fds_now() - began);
        }
        if (status == -EAGAIN || status == -EINVAL) {
            limit = fds_limit(lane->msqid, &msgmax, &msg_qbytes);
            if (limit >= 0 && limit < piece) { /* lowered meanwhile */
                error->value = piece;
                error->index = msgmax;
                error->bound = msg_qbytes;
                return -1;
            }
        }
        if (status == -EINTR || (status == -EAGAIN && !__atomic_load_n(&r->abandoned, __ATOMIC_RELAXED)))
            continue;
        if (status < 0) {
            error->kind = FDR_QUEUE;
            error->status = -status;
            return -1;
        }
        fdc_set(&lane->waiting_since, 0);
        sending.next++;
        fdc_add(&lane->messages, 1);
        fdc_add(&lane->bytes, piece);
    }
    fdc_add(&lane->frames, 1);
    if (sending.fragments > 1)
        fdc_add(&lane->fragments, sending.fragments);
    return 0;
}

/* The bytes of a message, by what the kernel tells; -1 if it must not be sent, with the reason in *error. */
static inline int64_t fdr_length(const fdr_slot *slot, fdr_error *error)
{
    const fdk_result *result = (const fdk_result *)(slot->memory + FDK_RESULT_AT);
    if (result->length == FDK_REFUSED) {
        error->kind = FDR_REFUSED;
        error->status = result->fault.reason;
        error->index = result->fault.index;
        error->value = result->fault.value;
        error->bound = result->fault.bound;
        return -1;
    }
    if (result->wide != 0) {
        error->kind = FDR_WIDE;
        error->status = (int32_t)(result->wide % 256);
        error->index = result->wide / 256;
        return -1;
    }
    if (result->length < 0 || result->length > slot->lane->capacity) {
        error->kind = FDR_SIZE;
        error->value = result->length;
        error->bound = slot->lane->capacity;
        return -1;
    }
    return result->length;
}

/* With the lock held; but others look at the number without it. */
static inline void fdr_count_finished(fdr_ring *r)
{
    __atomic_store_n(&r->finished, r->finished + 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&r->progress);
}

/* Saves that are done with; asked without the lock. */
static inline uint64_t fdr_finished(const fdr_ring *r)
{
    return __atomic_load_n(&r->finished, __ATOMIC_ACQUIRE);
}

static void *fdr_main(void *data)
{
    fdr_ring *r = (fdr_ring *)data;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        fdr_slot *slot;
        fdr_error error;
        fdv_result result;
        int64_t length;
        int status = -1;
        while (r->finished == r->issued && !r->stopping)
            pthread_cond_wait(&r->work, &r->lock);
        if (r->finished == r->issued || r->abandoned)
            break;
        slot = &r->slots[r->finished % (uint64_t)r->n];
        memset(&error, 0, sizeof error);
        error.ticket = r->finished;
        if (r->broken) { /* counted, not waited for */
            fdc_add(&slot->lane->lost, 1);
            fdr_count_finished(r);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        result = r->driver->EventSynchronize(slot->event);
        pthread_mutex_lock(&r->lock);
        if (result != 0) {
            error.kind = FDR_DRIVER;
            error.status = result;
            error.call = "cuEventSynchronize";
            r->broken = 1;
            r->failure = error;
            fdr_keep_error(r, &error);
            continue;
        }
        if (r->abandoned)
            break;
        pthread_mutex_unlock(&r->lock);
        length = fdr_length(slot, &error);
        if (length >= 0)
            status = fdr_send(r, slot, length, &error);
        fdc_set(&slot->lane->waiting_since, 0);
        pthread_mutex_lock(&r->lock);
        if (r->abandoned && status < 0)
            break;
        if (status < 0) {
            fdc_add(&slot->lane->lost, 1);
            fdr_keep_error(r, &error);
        }
        fdr_count_finished(r);
    }
    r->ended = 1;
    pthread_cond_broadcast(&r->progress);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- The callers ------------------------------------------------------------------------------------ */

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
        r->broken = 1;
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
        *ticket = r->issued++;
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

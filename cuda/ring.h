/* SPDX-License-Identifier: Apache-2.0
 *
 * From the kernel to the queue: a ring of pinned buffers, and a thread that sends what the kernel wrote there.
 * This file has their parts; ring_sender.h is the thread, ring_save.h what callers do.
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
#include <stdint.h>

#include "driver.h"
#include "prepare.h"

FDK_ASSERT(offsetof(fdk_job, tokens) == 0 && offsetof(fdk_job, steps) == 9 * sizeof(fdk_array),
           "ten arrays in the order of tensors.ROLES");

#define FDR_MOST_SLOTS 64
#define FDR_MOST_ERRORS 16          /* kept until somebody asks; more are only counted */
#define FDR_MOST_INPUTS 16          /* tensors of one save */

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

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * From the kernel to the queue: a ring of pinned buffers, and a thread that sends what the kernel wrote
 * there.  This file defines their parts; ring_memory.h makes and frees the buffers, ring_sender.h is the
 * thread, and ring_save.h is what callers do.
 *
 * A save takes the next buffer, launches the kernel that writes the message into it over the bus, records an
 * event and returns.  The sender thread waits for the events one after another and gives each message to its queue, so
 * the order is that of the saves.  It blocks in the driver and in msgsnd and never spins; it uses no Python
 * and takes no GIL, so it can neither block the interpreter nor be blocked by it, and a process may exit
 * while it waits.  Its errors are kept until a caller asks for them.
 *
 * A buffer belongs to the kernel until its event, then to the thread until its message is sent.  Everything
 * else is under one lock.
 */
#ifndef FD_POSTPROC_RING_H
#define FD_POSTPROC_RING_H

#include <pthread.h>
#include <stdint.h>

#include "fd_postproc/headers/lane.h"
#include "cuda/decide.h"
#include "cuda/driver.h"

FDK_ASSERT(offsetof(fdk_job, tokens) == 0 && offsetof(fdk_job, steps) == (FDK_ARRAYS - 1) * sizeof(fdk_array),
           "ten arrays in the order of tensors.ROLES");

#define FDR_MOST_SLOTS 64
#define FDR_MOST_ERRORS 16          /* kept until they are read; more are only counted */

/* Where messages go, and counters of what happened to them.  Lives until its last message is sent. */
typedef struct {
    fdq_lane queue;
    int64_t lost;                   /* saves whose message was not sent */
} fdr_lane;

/* Buffers that were made at once, one for each slot. */
typedef struct fdr_pool {
    uint8_t *memory;                /* pinned */
    fdv_address address;            /* for the device */
    fdv_context context;            /* in which it was made */
    int64_t each;                   /* bytes of a buffer */
    int users;                      /* slots whose buffer is one of these */
    struct fdr_pool *next;          /* of those that are to be freed */
} fdr_pool;

/* A device whose primary context this process uses, the kernel in it, and what the ring has there. */
typedef struct {
    int ordinal;
    fdv_context context;
    fdv_function kernel;
    fdv_event events[FDR_MOST_SLOTS]; /* of each slot */
    int n_events;                   /* so many there are */
} fdr_gpu;

enum fdr_kind {
    FDR_DRIVER,     /* a driver call failed */
    FDR_QUEUE,      /* a queue call failed */
    FDR_TOO_BIG,    /* a message, or a piece of a frame, is longer than the limits allow */
    FDR_LAYOUT,     /* a piece of a frame may not be as long as it would have to be */
    FDR_REFUSED,    /* the kernel met a number that does not fit */
    FDR_WIDE,       /* likewise, but its value is not known */
    FDR_SIZE,       /* the kernel claims more bytes than there is room for: a mistake of ours */
};

typedef struct {
    uint64_t ticket;    /* the save's number */
    int32_t kind;       /* enum fdr_kind */
    fdv_result driver;  /* FDR_DRIVER: the result, and ... */
    const char *call;   /* ... whose it is */
    int32_t queue;      /* FDR_QUEUE: errno */
    fdq_limits limits;  /* FDR_TOO_BIG */
    fdp_fault refused;  /* FDR_REFUSED; FDR_WIDE, without its value */
    int64_t claimed, capacity; /* FDR_SIZE: bytes */
} fdr_error;

/* A message that is not sent, but kept to be compared with the CPU's. */
typedef struct {
    int64_t length;                 /* bytes; -1: there are none (yet), or the errors say why not */
    uint8_t payload[];              /* room for the longest message of the lane */
} fdr_kept;

/* A buffer: the kernel's result (fdk_result), mtype and payload at the places that prepare.h defines, and
 * after them what the kernel reads: copies of host tensors, or a plan. */
typedef struct {
    fdr_pool *pool;                 /* whose it is; NULL: it has none yet */
    uint8_t *memory;
    fdv_address address;            /* the same for the device */
    fdr_gpu *gpu;                   /* of the save under way, as all that follows */
    fdv_stream stream;
    fdv_event event;
    int recorded;                   /* 0: the event still has to be recorded */
    int64_t payload_at;
    fdr_lane *lane;
    int32_t seq_word;               /* where a frame's number belongs; -1: nowhere */
    fdr_kept *kept;                 /* see fdr_job */
} fdr_slot;

typedef struct {
    const fdv_driver *driver;
    pthread_mutex_t lock;
    pthread_cond_t work, progress;
    pthread_t thread;
    int running;                    /* the thread has been started and not joined */
    int stopping;                   /* no more saves; the thread ends when everything is sent */
    int abandoned;                  /* the thread sends nothing more */
    int ended;                      /* it has nothing left to do but return */
    int broken;                     /* an event failed: the device may still write */
    fdr_error failure;              /* why it is broken */
    int n;
    fdr_slot slots[FDR_MOST_SLOTS];
    fdr_pool *pool;                 /* what slots get their buffers from */
    fdr_pool *retired;              /* buffers that were too small */
    int growing;                    /* some thread makes a new pool */
    uint64_t issued;                /* saves so far; save t uses slots[t % n] */
    uint64_t owed;                  /* up to the last one that is to be sent */
    uint64_t finished;              /* of those, whose message is sent (or never will be) */
    int n_errors;
    int64_t more_errors;
    fdr_error errors[FDR_MOST_ERRORS];
    int64_t held, held_ns;          /* saves that waited for a buffer, and how long */
} fdr_ring;

/* One save.  Of arrays in host memory, the kernel's argument has host addresses until it is launched. */
typedef struct {
    fdr_gpu *gpu;
    fdv_stream stream;
    fdr_lane *lane;
    fdk_job kernel;                 /* its payload, result and plan are filled in here */
    int64_t sizes[FDK_ARRAYS];      /* bytes of each array that is in host memory; else -1 */
    fdp_fault fault;                /* why it was refused at once */
    fdr_kept *kept;                 /* NULL: the message is sent; else it goes there, and gaps in it are 0 */
} fdr_job;

#endif

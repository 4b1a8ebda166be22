/* SPDX-License-Identifier: Apache-2.0
 *
 * The one rule of sending: a message, or a frame in pieces, goes into a queue that may be full or removed, or
 * whose limit may have changed a moment ago.
 *
 * Two callers add what is theirs after each slice of waiting: Sender (core/queue/sender.pxi) checks for
 * signals, and the sender thread of the CUDA ring (cuda/ring_sender.h) whether it must give up.  No Python.
 */
#ifndef FD_POSTPROC_LANE_H
#define FD_POSTPROC_LANE_H

#include "fd_postproc/headers/counter.h"
#include "fd_postproc/headers/frames.h"
#include "fd_postproc/headers/sysv.h"

#define FDQ_SLICE_NS 20000000 /* longest wait for room before the caller is asked whether to continue */
#define FDQ_READ_NS 1000000000 /* and for which a limit counts that has to be read from a file */

/* What the kernel allows one message to have, when it was last asked; and bytes of one that it does not allow. */
typedef struct {
    int64_t limit;      /* bytes; 0: not asked yet */
    int64_t msgmax;     /* kernel.msgmax */
    int64_t msg_qbytes; /* what the queue may hold */
    int64_t asked_at;   /* monotonic ns */
    int64_t size;
} fdq_limits;

/* A queue that steps are sent to, and counters of what happened to them. */
typedef struct {
    int msqid;
    int compact;            /* 1: compact frames, which may be cut */
    int checksum;           /* 1: they get one */
    int64_t stock_size;     /* payload bytes of FastDeploy's message: most that its receiver takes at once */
    int64_t capacity;       /* payload bytes of the longest message or frame */
    fdq_limits limits;
    uint64_t seq;           /* of the next frame */
    int64_t frames, messages, bytes, fragments, waits, waited_ns; /* counters: see Sender.stats */
    int64_t waiting_since;  /* monotonic ns at which the queue was found full; 0: it is not */
} fdq_lane;

/* Besides minus errno. */
enum {
    FDQ_TOO_BIG = -10001, /* lane->limits says how big, and what is allowed */
    FDQ_LAYOUT = -10002,  /* this layout's full message is shorter than a piece of a frame must be */
};

/* Ask for the limits as they are now.  0, FDQ_TOO_BIG if a message of `size` bytes is too long, or minus errno. */
static inline int fdq_ask(fdq_lane *lane, int64_t size)
{
    fdq_limits *limits = &lane->limits;
    limits->limit = fds_limit(lane->msqid, &limits->msgmax, &limits->msg_qbytes);
    limits->asked_at = fds_now();
    limits->size = size;
    return limits->limit < 0 ? (int)limits->limit : limits->limit < size ? FDQ_TOO_BIG : 0;
}

/* Cut a frame to the limit.  0, FDQ_TOO_BIG or FDQ_LAYOUT. */
static inline int fdq_cut(fdq_lane *lane, fdf_sending *sending, void *message, int64_t size)
{
    const int64_t limit = lane->limits.limit;
    if (fdf_cut(sending, message, size, limit < lane->stock_size ? limit : lane->stock_size) == 0)
        return 0;
    lane->limits.size = FDF_LEAST_LIMIT;
    return lane->stock_size < limit ? FDQ_LAYOUT : FDQ_TOO_BIG;
}

/* Begin to send what `message` holds: room for the mtype, then `size` bytes of payload.  A frame has
 * lane->seq.  0, FDQ_TOO_BIG, FDQ_LAYOUT, or minus errno; nothing was sent then.
 *
 * What fits the limit as it was needs no look: if it was lowered, fdq_go_on is refused, and looks. */
static inline int fdq_begin(fdq_lane *lane, fdf_sending *sending, void *message, int64_t size)
{
    const long mtype = lane->compact ? FDW_MTYPE_COMPACT : FDW_MTYPE_STOCK;
    const fdq_limits *known = &lane->limits;
    const int lasts =
        lane->compact && fds_reads_msgmax() && known->limit > 0; /* what is longer is cut to it */
    int status;
    sending->sealed = 0;
    sending->asked = size > known->limit && !(lasts && fds_now() < known->asked_at + FDQ_READ_NS);
    status = sending->asked ? fdq_ask(lane, size) : 0;
    if (status < 0 && !(status == FDQ_TOO_BIG && lane->compact))
        return status;
    memcpy(message, &mtype, sizeof mtype);
    status = fdq_cut(lane, sending, message, size);
    if (status == 0 && lane->compact)
        lane->seq++; /* also if it fails half-way: a number is never used again */
    return status;
}

/* Give a frame its checksum, if it is to have one and has none yet. */
static inline void fdq_seal(const fdq_lane *lane, fdf_sending *sending)
{
    if (lane->compact && lane->checksum && !sending->sealed) {
        fdw_seal(sending->message + FDF_MTYPE_SIZE, sending->size);
        sending->sealed = 1;
    }
}

/* Continue: 0 once everything is sent.  -EAGAIN: the queue was full for a slice of time, or until the
 * deadline; -EINTR: a signal came.  Then call again with the same `sending`, or give up: a receiver drops the
 * pieces that were sent.  FDQ_TOO_BIG: a limit was lowered below the next piece, other than the first of a frame
 * that has not waited, which is cut again.  Otherwise minus errno.
 *
 * deadline: monotonic ns; 0 does not wait, negative waits forever. */
static inline int fdq_go_on(fdq_lane *lane, fdf_sending *sending, int64_t deadline)
{
    fdq_seal(lane, sending);
    while (sending->next < sending->fragments) {
        int64_t size = 0;
        void *piece = fdf_piece(sending, &size);
        int status = fds_put(lane->msqid, piece, size);
        if (!sending->asked && sending->next == 0 && (status == -EAGAIN || status == -EINVAL)) {
            const int now = fdq_ask(lane, size);
            sending->asked = 1;
            if (now == FDQ_TOO_BIG && lane->compact
                && fdq_cut(lane, sending, sending->message, sending->size) == 0)
                continue;
            if (now < 0)
                return now;
        }
        if (status == -EAGAIN && deadline != 0) {
            const int64_t began = fds_now();
            int64_t until = began + FDQ_SLICE_NS;
            if (lane->waiting_since == 0) { /* otherwise the same wait continues */
                fdc_add(&lane->waits, 1);
                fdc_set(&lane->waiting_since, began);
            }
            if (0 < deadline && deadline < until)
                until = deadline;
            status = fds_put_wait(lane->msqid, piece, size, lane->waiting_since, until);
            fdc_add(&lane->waited_ns, fds_now() - began);
        }
        if (status == -EAGAIN || status == -EINVAL) {
            const int now = fdq_ask(lane, size);
            if (now < 0)
                return now;
        }
        if (status < 0)
            return status;
        fdc_set(&lane->waiting_since, 0);
        sending->next++;
        fdc_add(&lane->messages, 1);
        fdc_add(&lane->bytes, size);
    }
    fdc_add(&lane->frames, 1);
    if (sending->fragments > 1)
        fdc_add(&lane->fragments, sending->fragments);
    return 0;
}

#endif

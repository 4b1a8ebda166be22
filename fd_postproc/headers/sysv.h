/* SPDX-License-Identifier: Apache-2.0
 *
 * System V message queues, one small function per call.
 *
 * Each returns a count or minus errno, so that errno never has to be read across a return to Python (a
 * tracer or a signal handler may run in between and change it).  None of them takes the GIL; only fds_pages
 * allocates.
 */
#ifndef FD_POSTPROC_SYSV_H
#define FD_POSTPROC_SYSV_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <time.h>
#include <unistd.h>

#if !defined(MSG_COPY) || !defined(IPC_INFO)
#error "define _GNU_SOURCE first (Python.h does)"
#endif

/* kernel.msgmax of a new kernel; gVisor's msgrcv takes no longer buffer, either. */
#define FDS_MSGMAX 8192
/* Longest sleep between two polls of a queue while waiting with a deadline. */
#define FDS_NAP_NS 200000
/* A sender polls without sleeping for this long at first; and ten times more rarely after this long. */
#define FDS_SPIN_NS 50000
#define FDS_LONG_NS 1000000000

static inline int64_t fds_now(void) /* monotonic, ns */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Forks between the process that called fds_watch_forks() and this one. */
static int fds_forks;

static inline void fds_count_fork(void)
{
    fds_forks++;
}

static inline int fds_watch_forks(void)
{
    return pthread_atfork(NULL, NULL, fds_count_fork);
}

/* Take the first message of any type without waiting.  `message` holds a long mtype, then `capacity` bytes.
 * Payload bytes, -ENOMSG, or -E2BIG if the message is longer (it stays in the queue). */
static inline int64_t fds_take(int msqid, void *message, int64_t capacity)
{
    ssize_t n = msgrcv(msqid, message, (size_t)capacity, 0, IPC_NOWAIT);
    return n < 0 ? -errno : n;
}

/* The same, but a longer message is truncated to `capacity`: its tail is lost. */
static inline int64_t fds_take_cut(int msqid, void *message, int64_t capacity)
{
    ssize_t n = msgrcv(msqid, message, (size_t)capacity, 0, IPC_NOWAIT | MSG_NOERROR);
    return n < 0 ? -errno : n;
}

/* Room for a message of which only the maximum length is known: what is not written to takes no memory,
 * and none of it stays with the allocator.  NULL: no memory. */
static inline void *fds_pages(int64_t size)
{
    void *pages = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static inline void fds_give_back(void *pages, int64_t size)
{
    munmap(pages, (size_t)size);
}

/* Copy message number `index` and leave it in the queue.  -ENOSYS: the kernel was built without
 * CONFIG_CHECKPOINT_RESTORE.  -E2BIG: the message is longer than `capacity`; more than kernel.msgmax
 * as it is now is never copied. */
static inline int64_t fds_peek(int msqid, void *message, int64_t capacity, long index)
{
    ssize_t n = msgrcv(msqid, message, (size_t)capacity, index, IPC_NOWAIT | MSG_COPY);
    return n < 0 ? -errno : n;
}

/* Wait for a message.  deadline: monotonic ns, or negative to wait forever.
 * -EINTR after a signal: run its handlers and call again.  -ENOMSG once the deadline has passed. */
static inline int64_t fds_wait(int msqid, void *message, int64_t capacity, int64_t deadline)
{
    int64_t nap = 20000;
    if (deadline < 0) {
        ssize_t n = msgrcv(msqid, message, (size_t)capacity, 0, 0);
        return n < 0 ? -errno : n;
    }
    for (;;) { /* System V has no timed receive */
        int64_t n = fds_take(msqid, message, capacity), left;
        struct timespec t = {0, 0};
        if (n != -ENOMSG)
            return n;
        left = deadline - fds_now();
        if (left <= 0)
            return -ENOMSG;
        t.tv_nsec = (long)(left < nap ? left : nap);
        if (nanosleep(&t, NULL) < 0)
            return -errno;
        nap = 2 * nap < FDS_NAP_NS ? 2 * nap : FDS_NAP_NS;
    }
}

/* Let a thread of this process return from fds_wait with -EINTR, if it is in it by now.  System V has nothing else
 * that ends a wait and leaves the queue alone.  The signal is the highest real-time one that nothing handles; its
 * handler, which does nothing, stays, since a signal may still be on its way.  0 or minus errno. */
static void fds_do_nothing(int number)
{
    (void)number;
}

static inline int fds_interrupt(pthread_t thread)
{
    struct sigaction now;
    int number;
    for (number = SIGRTMAX; number >= SIGRTMIN; number--) {
        if (sigaction(number, NULL, &now) < 0 || now.sa_handler == fds_do_nothing)
            break;
        if (!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL) {
            struct sigaction ours = {0};
            ours.sa_handler = fds_do_nothing;
            ours.sa_flags = SA_ONSTACK; /* a program in Go would end: its stacks are small */
            if (sigaction(number, &ours, NULL) < 0)
                return -errno;
            break;
        }
    }
    return number < SIGRTMIN ? -EAGAIN : -pthread_kill(thread, number);
}

static inline void fds_nap(int milliseconds) /* less than 1000 */
{
    struct timespec t = {0, 1000000L * milliseconds};
    nanosleep(&t, NULL);
}

/* Put a message (mtype, then `size` bytes) into a queue.  0, or -EAGAIN: the queue is full. */
static inline int fds_put(int msqid, const void *message, int64_t size)
{
    return msgsnd(msqid, message, (size_t)size, IPC_NOWAIT) < 0 ? -errno : 0;
}

/* The same, waiting for room.  deadline: monotonic ns, or negative to wait forever, in one system call.
 * since: when the wait began; it may be spread over several calls.  -EINTR after a signal: nothing was sent;
 * run its handlers and call again.  -EAGAIN: the deadline passed. */
static inline int fds_put_wait(int msqid, const void *message, int64_t size, int64_t since, int64_t deadline)
{
    const int64_t began = fds_now();
    if (deadline < 0)
        return msgsnd(msqid, message, (size_t)size, 0) < 0 ? -errno : 0;
    for (;;) { /* System V has no timed send */
        int status = fds_put(msqid, message, size);
        int64_t now, left, nap;
        struct timespec t = {0, 0};
        if (status != -EAGAIN)
            return status;
        now = fds_now();
        left = deadline - now;
        if (left <= 0)
            return -EAGAIN;
        if (now - began < FDS_SPIN_NS) { /* an active reader makes room sooner than any sleep ends */
            sched_yield();
            continue;
        }
        nap = now - since < FDS_LONG_NS ? FDS_NAP_NS : 10 * FDS_NAP_NS;
        if (nap > now - began)
            nap = now - began;
        t.tv_nsec = (long)(left < nap ? left : nap);
        if (nanosleep(&t, NULL) < 0)
            return -errno;
    }
}

/* Whether a sandbox has refused IPC_INFO: then kernel.msgmax is read from a file, which takes longer. */
static int fds_refused;

static inline int fds_reads_msgmax(void)
{
    return __atomic_load_n(&fds_refused, __ATOMIC_RELAXED);
}

/* kernel.msgmax as it is now; a new kernel's where a sandbox hides the file, too. */
static inline int64_t fds_msgmax(void)
{
    struct msginfo info;
    char text[24] = "";
    ssize_t n = -1;
    int file;
    if (!fds_reads_msgmax()) {
        if (msgctl(0, IPC_INFO, (struct msqid_ds *)&info) >= 0)
            return info.msgmax;
        __atomic_store_n(&fds_refused, 1, __ATOMIC_RELAXED);
    }
    file = open("/proc/sys/kernel/msgmax", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        n = read(file, text, sizeof text - 1);
        close(file);
    }
    return n > 0 ? atoll(text) : FDS_MSGMAX;
}

/* Most bytes that one message to this queue may have: kernel.msgmax as it is now, and what the queue may
 * hold, which was fixed when it was made (a longer message waits forever, even on an empty queue). */
static inline int64_t fds_limit(int msqid, int64_t *msgmax, int64_t *msg_qbytes)
{
    struct msqid_ds q;
    if (msgctl(msqid, IPC_STAT, &q) < 0)
        return -errno;
    *msgmax = fds_msgmax();
    *msg_qbytes = (int64_t)q.msg_qbytes;
    return *msgmax < *msg_qbytes ? *msgmax : *msg_qbytes;
}

/* What the kernel knows about a queue. */
typedef struct {
    int64_t messages, bytes, max_bytes;
    int64_t last_sender, last_receiver; /* pids; 0: none yet, or of another PID namespace */
    int64_t received_at;                /* Unix time of the last receive; 0: never, or the queue was restored */
} fds_status;

static inline int fds_stat(int msqid, fds_status *out)
{
    struct msqid_ds q;
    if (msgctl(msqid, IPC_STAT, &q) < 0)
        return -errno;
    out->messages = (int64_t)q.msg_qnum;
    out->bytes = (int64_t)q.__msg_cbytes;
    out->max_bytes = (int64_t)q.msg_qbytes;
    out->last_sender = q.msg_lspid;
    out->last_receiver = q.msg_lrpid;
    out->received_at = q.msg_rtime;
    return 0;
}

#endif

# The C declarations of sysv.h that Cython code uses; the comments are there.
from libc.stdint cimport int64_t

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    pthread_t pthread_self()
    int pthread_equal(pthread_t a, pthread_t b)

cdef extern from "fd_postproc/headers/sysv.h" nogil:
    enum:
        EIDRM
        ENOMSG
        EINTR
        E2BIG
        EAGAIN
        EINVAL
        FDS_MSGMAX

    ctypedef struct fds_status:
        int64_t messages
        int64_t bytes
        int64_t max_bytes
        int64_t last_sender
        int64_t last_receiver
        int64_t received_at

    int fds_forks

    int64_t fds_now()
    int fds_watch_forks()
    int64_t fds_take(int msqid, void *message, int64_t capacity)
    int64_t fds_take_cut(int msqid, void *message, int64_t capacity)
    void *fds_pages(int64_t size)
    void fds_give_back(void *pages, int64_t size)
    int64_t fds_peek(int msqid, void *message, int64_t capacity, long index)
    int64_t fds_wait(int msqid, void *message, int64_t capacity, int64_t deadline)
    int fds_interrupt(pthread_t thread)
    void fds_nap(int milliseconds)
    int fds_put_wait(int msqid, const void *message, int64_t size, int64_t since, int64_t deadline)
    int fds_reads_msgmax()
    int64_t fds_msgmax()
    int64_t fds_limit(int msqid, int64_t *msgmax, int64_t *msg_qbytes)
    int fds_stat(int msqid, fds_status *out)

# Looks at a queue, which take nothing from it.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from posix.unistd cimport usleep
from fd_postproc.headers.sysv cimport E2BIG, EINVAL, ENOMSG, fds_peek, fds_stat, fds_status

# Most bytes allocated for a message whose length only the kernel knows.
cdef int64_t _LARGEST_MESSAGE = 64 << 20
# Time between two looks at who has read a queue.
cdef int _WATCH_US = 20_000


cdef object _refusal(int code, int msqid, str doing, str remedy):
    """The exception for an errno value, as of `queue_error`; of EINVAL only if the queue has gone."""
    cdef fds_status status
    if code != EINVAL or fds_stat(msqid, &status) < 0:
        return queue_error(code, doing, remedy)
    return QueueError(
        code, f"{doing}: {os.strerror(code)}, though the queue is there: this kernel or sandbox refuses what "
        "Linux allows; 'fd-postproc doctor' says what is hidden here")


def _last_sender_of(int msqid):
    """For `fd_postproc.ops.log_throttle`: the process that wrote to a queue last.  No other is examined."""
    cdef fds_status status
    cdef int code = fds_stat(msqid, &status)
    if code < 0:
        raise queue_error(-code, f"looking at queue msqid:{msqid}")
    return status.last_sender


def _watch_readers(int msqid, int32_t thread, double seconds, bint named=False):
    """For the flight recorder: sleep, and look at a queue 50 times a second.

    Returns the last other process that took a message; -1: it is in another PID namespace; 0: none did, or
    the queue is gone.  `named`: the kernel has named this process as a reader: 0 is another's, unless nobody
    has read the queue since a restored snapshot made it anew.  A reader that takes one now and then is the
    queue's last one only until the next step is received.  `thread` is the one of this process that receives:
    where it waited for the message, the kernel names it, not the process.
    """
    cdef fds_status status
    cdef int32_t own = os.getpid(), found = 0, last
    cdef int left = max(1, <int>(seconds * 1e6 / _WATCH_US))
    with nogil:
        while left > 0:
            usleep(_WATCH_US)
            if fds_stat(msqid, &status) == 0:
                last = <int32_t>status.last_receiver
                if last == 0:
                    last = -1 if named and status.received_at else own
                if last != own and last != thread:
                    found = last
            left -= 1
    return 0 if found > 0 and _is_here(found) else found


def peek(msqid, index=0):
    """Copy one message of a queue and leave it there.

    Parameters
    ----------
    msqid : int
    index : int, optional
        Place in the queue, 0 being the oldest.

    Returns
    -------
    (int, bytes) or None
        Message type and payload; None if the queue holds no such message.

    Raises
    ------
    QueueError
        With errno ENOSYS if the kernel cannot copy messages (it was built without
        CONFIG_CHECKPOINT_RESTORE), E2BIG if this message is longer than ``kernel.msgmax`` is now.
    """
    cdef int queue = checks.whole_number(msqid, "msqid", 0, (1 << 31) - 1)
    cdef long place = checks.whole_number(index, "index", 0, (1 << 63) - 1)
    cdef int64_t capacity = min(queues.kernel_limits().msgmax, _LARGEST_MESSAGE)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, sizeof(long) + capacity)
    cdef char *message = PyBytes_AS_STRING(out)
    cdef int64_t n = fds_peek(queue, message, capacity, place)
    if n == -ENOMSG:
        return None
    if n == -E2BIG:
        raise queues.peek_refused(msqid, index, capacity)
    if n < 0:
        raise queue_error(-n, f"looking at message {index} of queue msqid:{msqid}")
    return (<long *>message)[0], out[sizeof(long):sizeof(long) + n]

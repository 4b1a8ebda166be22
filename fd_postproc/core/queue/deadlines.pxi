# Until when a call waits.
from libc.stdint cimport int64_t
from fd_postproc.headers.sysv cimport fds_now


cdef int64_t _deadline(timeout) except -2:
    """Seconds, or None -> monotonic ns; 0 does not wait, -1 waits forever."""
    if timeout is None:
        return -1
    cdef double seconds = checks.seconds(timeout)
    return fds_now() + <int64_t>(min(seconds, 1e9) * 1e9) if seconds > 0 else 0

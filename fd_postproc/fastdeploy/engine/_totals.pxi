# What the token thread has done and how long it took, counted in a tenth of a microsecond.
from libc.stdint cimport int64_t
from fd_postproc.headers.sysv cimport fds_now


cdef inline double _clock() noexcept:
    """time.monotonic()"""
    return 1e-9 * fds_now()


cdef class Totals:
    """Totals since the start.  One thread writes; any thread may read.

    A stage lasts from the end of the one before it: three readings of the clock are all that a step takes.

    Attributes
    ----------
    steps, results, malformed, stale, lost_steps, failed_requests : int
    receive_seconds, build_seconds, put_seconds : float
    clock : float
        ``time.monotonic()`` as of the last call.
    """

    cdef public int64_t steps, results, malformed, stale, lost_steps, failed_requests
    cdef public double receive_seconds, build_seconds, put_seconds
    cdef public double clock

    def __cinit__(self):
        self.clock = _clock()

    def begin(self):
        """Forget the time since the last stage."""
        self.clock = _clock()

    def end_receive(self):
        """Waiting for a message is over, whether or not one has come."""
        self.receive_seconds += self._lap()

    def end_build(self):
        """Results have been made."""
        self.build_seconds += self._lap()

    def end_put(self, Py_ssize_t results):
        """A step's results have been delivered."""
        self.put_seconds += self._lap()
        self.steps += 1
        self.results += results

    cdef inline double _lap(self) noexcept:
        cdef double before = self.clock
        self.clock = _clock()
        return self.clock - before

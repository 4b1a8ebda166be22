# What the token thread has done and how long it took, counted in a tenth of a microsecond.
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from fd_postproc._core cimport FlightRing, Step
from fd_postproc.headers.flight cimport FDB_BUSY, fdb_entry, fdb_set, fdb_step
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
    ring : FlightRing or None
        Gets an entry for each step.
    """

    cdef public int64_t steps, results, malformed, stale, lost_steps, failed_requests
    cdef public double receive_seconds, build_seconds, put_seconds
    cdef public double clock
    cdef public FlightRing ring
    cdef double received, built  # how long these stages of the step in hand took

    def __cinit__(self):
        self.clock = _clock()

    def begin(self):
        """Forget the time since the last stage."""
        self.clock = _clock()

    def end_receive(self):
        """Waiting for a message is over, whether or not one has come."""
        self.received = self._lap()
        self.receive_seconds += self.received
        if self.ring is not None and self.ring.is_ours():
            fdb_set(&self.ring.ring, FDB_BUSY, <uint64_t>(1e9 * self.clock))

    def end_build(self):
        """Results have been made."""
        self.built = self._lap()
        self.build_seconds += self.built

    def end_put(self, Py_ssize_t results, Step step=None):
        """A step's results have been delivered; without `step` there is no entry for it."""
        cdef double took = self._lap()
        self.put_seconds += took
        self.steps += 1
        self.results += results
        if self.ring is None or not self.ring.is_ours():
            return
        if step is None:
            fdb_set(&self.ring.ring, FDB_BUSY, 0)
        else:
            self._record(results, step, took)

    cdef void _record(self, Py_ssize_t results, Step step, double took) noexcept:
        cdef fdb_entry entry
        memset(&entry, 0, sizeof(entry))
        entry.body.step.length = <uint32_t>step.length
        entry.body.step.sender = <uint32_t>(step.sender ^ step.sender >> 32)
        entry.body.step.receive, entry.body.step.build = <float>self.received, <float>self.built
        entry.body.step.put = <float>took
        entry.body.step.results = <uint16_t>results
        fdb_step(&self.ring.ring, &step.raw, step.dialect_number, <int64_t>(1e9 * self.clock), &entry)

    cdef inline double _lap(self) noexcept:
        cdef double before = self.clock
        self.clock = _clock()
        return self.clock - before

# The stages of a step: how long they took, and its entry in the flight recorder, in a tenth of a microsecond.
cimport cython
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from fd_postproc._core cimport FlightRing, Step
from fd_postproc.headers.flight cimport FDB_BUSY, fdb_set, fdb_step, fdb_step_body
from fd_postproc.headers.sysv cimport fds_now


@cython.final
cdef class Stages:
    """Counts and times of the processing stages; one thread writes, any thread may read.

    A stage lasts from the end of the one before it.  When a step was received its Receiver has noted, so two
    more readings of the clock are all that it takes.

    Attributes
    ----------
    steps, results : int
    receive_seconds, build_seconds, put_seconds : float
    clock : float
        ``time.monotonic()`` when the last stage ended.
    ring : FlightRing or None
        Gets an entry for each step.
    """

    cdef readonly int64_t steps, results
    cdef public FlightRing ring
    cdef int64_t ended                         # monotonic ns: the last stage
    cdef int64_t receive_ns, build_ns, put_ns
    cdef int64_t received, built               # ns that these stages of the step in hand took

    def __cinit__(self):
        self.ended = fds_now()

    @property
    def receive_seconds(self):
        return 1e-9 * self.receive_ns

    @property
    def build_seconds(self):
        return 1e-9 * self.build_ns

    @property
    def put_seconds(self):
        return 1e-9 * self.put_ns

    @property
    def clock(self):
        return 1e-9 * self.ended

    def begin(self):
        """Restart the time of the current stage."""
        self.ended = fds_now()

    def end_receive(self, Step step=None):
        """End the wait for a message: at the arrival of `step`, or now without one."""
        if step is not None and step.received > self.ended:
            self._end_receive(step.received)
            return
        self._end_receive(fds_now())
        if self.ring is not None and self.ring.is_ours():
            fdb_set(&self.ring.ring, FDB_BUSY, self.ended)

    # Called in every step: plain functions, which the interpreter calls in half of the time.

    @cython.binding(False)
    @cython.always_allow_keywords(False)
    def end_build(self, Step step):
        """End the building of results, of `step`, or of None after `end_receive`."""
        if step is not None and step.received > self.ended:
            self._end_receive(step.received)
        self.built = self._lap(fds_now())
        self.build_ns += self.built

    @cython.binding(False)
    @cython.always_allow_keywords(False)
    def end_put(self, list results not None, Step step):
        """End the delivery of a step's results; None has no entry."""
        cdef int64_t took = self._lap(fds_now())
        cdef Py_ssize_t n = PyList_GET_SIZE(results)
        self.put_ns += took
        self.steps += 1
        self.results += n
        if self.ring is None or not self.ring.is_ours():
            return
        if step is None:
            fdb_set(&self.ring.ring, FDB_BUSY, 0)
        else:
            self._record(n, step, took)

    cdef inline void _record(self, Py_ssize_t results, Step step, int64_t took) noexcept:
        cdef fdb_step_body body
        body.length = <uint32_t>step.length
        body.sender = <uint32_t>(step.sender ^ step.sender >> 32)
        body.receive, body.build, body.put = 1e-9 * self.received, 1e-9 * self.built, 1e-9 * took
        body.results = <uint16_t>results
        fdb_step(&self.ring.ring, &step.raw, step.dialect_number, self.ended, &body)

    cdef inline void _end_receive(self, int64_t when) noexcept:
        self.received = self._lap(when)
        self.receive_ns += self.received

    cdef inline int64_t _lap(self, int64_t now) noexcept:
        cdef int64_t before = self.ended
        self.ended = now
        return now - before

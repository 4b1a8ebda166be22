# What other extensions of the package may use of `_core`: a Step's content, the recorder's ring.
from libc.stdint cimport int64_t, uint64_t
from fd_postproc.headers.flight cimport fdb_ring
from fd_postproc.headers.wire cimport fdw_step


cdef class Step:
    cdef fdw_step raw
    cdef int dialect_number
    cdef void *memory
    cdef int64_t length    # bytes of the message that it came in; 0: it came in none
    cdef uint64_t sender   # of a compact frame
    cdef int64_t received  # monotonic ns, if the Receiver was to note it; else 0
    cdef bytes extra       # the sections of one, to which raw.extra points; or None


cdef class FlightRing:
    cdef fdb_ring ring
    cdef Py_buffer view
    cdef bint is_held
    cdef int forks         # fds_forks of the process that writes

    cdef bint is_ours(self) noexcept

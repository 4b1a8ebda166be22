# The ring of buffers and the thread behind it; there is one per process.
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from fd_postproc.headers.counter cimport fdc_read
from fd_postproc.headers.pack cimport fdp_fault
from fd_postproc.headers.sysv cimport fds_forks, fds_now

cdef int64_t _SLICE_NS = 50_000_000  # a waiting call checks for signals this often
cdef dict _REASON_NAMES = _REASONS
cdef fdr_ring *_ring = NULL


def start(int slots):
    """Start the sender thread with this many buffers; does nothing if it runs.

    Raises
    ------
    CudaError
        If CUDA cannot be used here.
    """
    global _ring
    _require()
    if _ring != NULL:
        return
    cdef fdr_ring *ring = <fdr_ring *>calloc(1, sizeof(fdr_ring))
    if ring == NULL:
        raise MemoryError
    cdef int status = fdr_start(ring, &_driver, slots)
    if status != 0:
        free(ring)
        raise OSError(status, f"starting the sender thread: {os.strerror(status)}")
    _ring = ring


cdef bint _runs():
    return _ring != NULL and _forks == fds_forks


def finished():
    """int: finished saves: sent, or not to be sent any more."""
    return fdr_finished(_ring) if _runs() else 0


def pending():
    """int: saves that are not yet in their queue.  0 in a child of the process that made them."""
    if not _runs():
        return 0
    cdef uint64_t done = fdr_finished(_ring)  # first: it only grows
    cdef uint64_t owed = fdr_owed(_ring)
    return <int64_t>(owed - done) if owed > done else 0


def drain(int64_t deadline):
    """Wait until all saves so far are in their queues.

    Parameters
    ----------
    deadline : int
        Monotonic ns; negative: wait forever.  Signals run their handlers in the meantime.

    Returns
    -------
    bool
        Whether they are.
    """
    cdef int done = 0
    cdef int64_t until
    if not _runs():
        return True
    while True:
        until = fds_now() + _SLICE_NS
        if 0 <= deadline < until:
            until = deadline
        with nogil:
            done = fdr_drain(_ring, until)
        if done or 0 <= deadline <= fds_now():
            return bool(done)
        PyErr_CheckSignals()


def stop(int64_t wait_ns):
    """End the sender thread once everything is sent or the time is over.  No save is possible afterwards.

    Returns
    -------
    int
        Saves that were not sent.
    """
    cdef int64_t left
    if not _runs():
        return 0
    with nogil:
        left = fdr_stop(_ring, fds_now() + wait_ns)
    return left


def broken():
    """bool: whether the driver lost track of a save: no more saves, and no tensor may be released."""
    return _runs() and fdr_is_broken(_ring) != 0


def held():
    """(int, float): saves that waited because all buffers were in use, and for how many seconds."""
    if not _runs():
        return 0, 0.0
    return fdc_read(&_ring.held), fdc_read(&_ring.held_ns) * 1e-9


cdef object _refusal(const fdp_fault *fault):
    return Refusal(_REASON_NAMES[fault.reason], fault.index, fault.value, fault.bound)


cdef tuple _kind_and_details(const fdr_error *e):
    """As for `UnsentSave`."""
    if e.kind == FDR_DRIVER:
        return "driver", _failed((<bytes>e.call).decode(), e.driver)
    if e.kind == FDR_QUEUE:
        return "queue", e.queue
    if e.kind == FDR_TOO_BIG:
        return "too big", (e.limits.size, e.limits.msgmax, e.limits.msg_qbytes)
    if e.kind == FDR_LAYOUT:
        return "layout", None
    if e.kind == FDR_REFUSED:
        return "refused", _refusal(&e.refused)
    if e.kind == FDR_WIDE:
        return "refused", Refusal(_REASON_NAMES[e.refused.reason], e.refused.index, None, 0)
    return "size", (e.claimed, e.capacity)


def take_error():
    """The oldest error of the sender thread; it is removed.

    Returns
    -------
    UnsentSave or None
    """
    cdef fdr_error e
    cdef int64_t more = 0
    if not _runs() or not fdr_take_error(_ring, &e, &more):
        return None
    return UnsentSave(e.ticket, *_kind_and_details(&e), more)

# FlightRing: the ring of a flight recorder's file, written to; and its entries' check words.
cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from fd_postproc.headers.flight cimport (
    FDB_BUSY, FDB_DATA, FDB_ENTRY, FDB_FRAME, FDB_HEAD, FDB_KEY, FDB_QUEUE, FDB_TEXT, fdb_begin, fdb_check,
    fdb_entry, fdb_put, fdb_put_bytes, fdb_set,
)
from fd_postproc.headers.sysv cimport fds_forks, fds_limit, fds_now, fds_stat, fds_status


@cython.final
cdef class FlightRing:
    """Writes entries into memory that is mapped to a file; `fd_postproc.flight` has the file and the words.

    Nothing waits, fails or allocates.  In a child that was forked, nothing is written: one process writes.

    Parameters
    ----------
    memory : writable buffer
        At least a head and 64 entries, all 0 behind the head.  It stays in use until the ring is gone.
    """

    def __cinit__(self):
        self.is_held = False

    def __init__(self, memory):
        if self.is_held:
            raise RuntimeError("a FlightRing is initialised once")
        PyObject_GetBuffer(memory, &self.view, PyBUF_WRITABLE)
        self.is_held = True
        if self.view.len < FDB_HEAD + 64 * FDB_ENTRY:
            raise ValueError(f"{self.view.len} bytes, but a ring has at least {FDB_HEAD + 64 * FDB_ENTRY}")
        cdef bytes key = os.urandom(FDB_KEY)
        fdb_begin(&self.ring, self.view.buf, self.view.len, <const uint8_t *>PyBytes_AS_STRING(key))
        self.forks = fds_forks

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)

    def event(self, uint8_t kind, int32_t slot=-1, int64_t a=0, int64_t b=0, int64_t c=0, int64_t d=0,
              int64_t e=0, *, bytes text=None):
        """Write an entry of five numbers, and a text that belongs to it."""
        cdef fdb_entry entry
        if not self.is_ours():
            return
        memset(&entry, 0, sizeof(entry))
        entry.kind = kind
        entry.slot = <uint16_t>slot
        entry.time = fds_now()
        entry.body.numbers[0] = a
        entry.body.numbers[1] = b
        entry.body.numbers[2] = c
        entry.body.numbers[3] = d
        entry.body.numbers[4] = e
        fdb_put(&self.ring, &entry)
        if text is not None:
            fdb_put_bytes(&self.ring, FDB_TEXT, entry.time, <const uint8_t *>PyBytes_AS_STRING(text),
                          PyBytes_GET_SIZE(text))

    def frame(self, bytes payload not None, int64_t mtype):
        """Write a message."""
        self.event(FDB_FRAME, -1, mtype, PyBytes_GET_SIZE(payload))
        if self.is_ours():
            fdb_put_bytes(&self.ring, FDB_DATA, fds_now(), <const uint8_t *>PyBytes_AS_STRING(payload),
                          PyBytes_GET_SIZE(payload))

    def busy(self, bint is_busy):
        """Whether a step is in hand from now on."""
        if self.is_ours():
            fdb_set(&self.ring, FDB_BUSY, fds_now() if is_busy else 0)

    def queue(self, int msqid, uint16_t running, uint16_t transfers, uint32_t state, uint32_t ticks,
              int32_t reader=0):
        """Write how a queue is, and the limit of one message; its last sender, whose state is given.

        `reader` is another process that was seen to take a message before; -1: one of another PID namespace;
        0: none was.
        """
        cdef fdb_entry entry
        cdef fds_status status
        cdef int64_t limits[2]
        if not self.is_ours():
            return
        memset(&entry, 0, sizeof(entry))
        entry.kind = FDB_QUEUE
        entry.time = fds_now()
        entry.body.queue.running, entry.body.queue.transfers = running, transfers
        entry.body.queue.state, entry.body.queue.ticks = state, ticks
        entry.body.queue.code = fds_stat(msqid, &status)
        if entry.body.queue.code == 0:
            entry.body.queue.messages = <uint32_t>status.messages
            entry.body.queue.bytes = <uint32_t>status.bytes
            entry.body.queue.max_bytes = <uint32_t>status.max_bytes
            entry.body.queue.last_sender = <int32_t>status.last_sender
            entry.body.queue.last_receiver = <int32_t>status.last_receiver
            if reader != 0:
                entry.body.queue.last_receiver, entry.flags = max(reader, 0), 1
            else:
                entry.flags = status.last_receiver != 0 and not _is_here(status.last_receiver)
            if fds_limit(msqid, &limits[0], &limits[1]) >= 0:
                entry.body.queue.msgmax = <uint32_t>limits[0]
        fdb_put(&self.ring, &entry)

    cdef bint is_ours(self) noexcept:
        return self.ring.memory != NULL and self.forks == fds_forks


def _is_here(pid):
    """Whether that is this process; some kernels give the thread's."""
    return pid == os.getpid() or os.path.exists(f"/proc/self/task/{pid}")


def _check_words(bytes file not None, Py_ssize_t n):
    """bytes: of each of a flight recorder's first n entries, the check word that it should have, 4 bytes."""
    cdef uint64_t words[8]
    cdef uint32_t check
    cdef Py_ssize_t k
    if n < 0 or FDB_HEAD + n * FDB_ENTRY > len(file):
        raise ValueError(f"{len(file)} bytes hold no {n} entries")
    cdef bytes checks = PyBytes_FromStringAndSize(NULL, 4 * n)
    cdef char *to = PyBytes_AS_STRING(checks)
    cdef const char *at = PyBytes_AS_STRING(file) + FDB_HEAD
    with nogil:
        for k in range(n):
            memcpy(words, at + FDB_ENTRY * k, sizeof(words))
            check = fdb_check(words)
            memcpy(to + 4 * k, &check, sizeof(check))
    return checks

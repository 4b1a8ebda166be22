# Where messages go.
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset
from fd_postproc.headers.counter cimport fdc_read
from fd_postproc.headers.sysv cimport fds_msgmax, fds_now, fds_reads_msgmax
from fd_postproc.headers.wire cimport FDW_COMPACT, FDW_LEGACY, fdw_geometry_of, fdw_layout


@cython.final
@cython.no_gc
cdef class Lane:
    """Where messages of one channel, dialect and layout go: a queue, opened or made.

    Attributes
    ----------
    msqid, key : int
    channel, dialect : str
    layout : Layout
    """

    cdef readonly str channel
    cdef readonly str dialect
    cdef readonly object layout
    cdef readonly object key
    cdef int dialect_number
    cdef fdw_layout c_layout
    cdef fdr_lane lane
    cdef uint64_t sender
    cdef uint32_t service

    def __init__(self, str channel, *, str dialect, layout, mode, uint32_t service=0):
        cdef int number = _CHANNEL_NUMBERS[channel]
        self.channel = channel
        self.dialect = dialect
        self.dialect_number = _DIALECT_NUMBERS[dialect]
        self.layout = layout
        self.c_layout.max_batch, self.c_layout.top_k, self.c_layout.max_draft, self.c_layout.spec_batch = (
            layout.max_batch, layout.top_k, layout.max_draft, layout.spec_batch)
        self.key = queues.locate(channel)
        memset(&self.lane, 0, sizeof(self.lane))
        self.lane.queue.msqid = queues.open_queue(self.key, mode=mode, access=0o200)
        fds_msgmax()
        if fds_reads_msgmax():
            queues.report_limits()
        self.lane.queue.compact = self.dialect_number == FDW_COMPACT
        self.lane.queue.checksum = is_on(CHECKSUM)
        self.lane.queue.stock_size = fdw_geometry_of(&self.c_layout, number, FDW_LEGACY, 0).size
        self.lane.queue.capacity = fdk_capacity(&self.c_layout, number, self.dialect_number)
        self.sender = int.from_bytes(os.urandom(8), "little")
        self.service = service

    @property
    def msqid(self):
        return self.lane.queue.msqid

    @property
    def identity(self):
        """dict: what its frames say of their sender, as `_core._op_message` takes it."""
        return {"sender": self.sender, "service": self.service}

    @property
    def stats(self):
        """dict: as `fd_postproc.Sender.stats`, and ``lost``: saves whose message was not sent."""
        return {
            "frames": fdc_read(&self.lane.queue.frames),
            "messages": fdc_read(&self.lane.queue.messages),
            "bytes": fdc_read(&self.lane.queue.bytes),
            "fragments": fdc_read(&self.lane.queue.fragments),
            "waits": fdc_read(&self.lane.queue.waits),
            "wait_seconds": fdc_read(&self.lane.queue.waited_ns) * 1e-9,
            "lost": fdc_read(&self.lane.lost),
        }

    @property
    def waiting_seconds(self):
        """float: for how long its queue has been full; 0.0 if it is not, or in a child of the process."""
        cdef int64_t since = fdc_read(&self.lane.queue.waiting_since)
        return (fds_now() - since) * 1e-9 if since and _runs() else 0.0

# The plug-in's side of a Receiver: who sends, what is refused, whose frames are taken.
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t
from fd_postproc.headers.counter cimport fdc_read
from fd_postproc.headers.flight cimport FDB_BUSY, fdb_set
from fd_postproc.headers.sysv cimport fds_now, fds_stat, fds_status

# Time between two queries for the sender, if the last one was answered, and if not.
cdef int64_t _ASK_SENDER_NS = 100_000_000
cdef int64_t _ASK_AGAIN_NS = 1_000_000


@cython.final
cdef class Attendance:
    """For the plug-in: receives the steps of a Receiver, and notes when each came, and who sent it.

    It reports incomplete frames itself: the Receiver logs none.

    Parameters
    ----------
    receiver : Receiver
    service : int, optional
        Number of the service whose frames are received; 0: any.
    ring : FlightRing, optional
        Gets the time of every step that is in hand from now on.
    keeper : callable, optional
        Called with every step.
    """

    cdef readonly Receiver receiver
    cdef FlightRing ring
    cdef object keeper
    cdef public int64_t sender_due  # monotonic ns at which the sender may be queried again
    cdef readonly int64_t last_sender  # the process that sent the last step whose sender is known; or 0
    cdef readonly bint is_named  # whether the kernel has named this process as the queue's last reader

    def __init__(self, Receiver receiver not None, uint32_t service=0, FlightRing ring=None, keeper=None):
        self.receiver, self.ring, self.keeper = receiver, ring, keeper
        receiver.frames.service, receiver.warned = service, True

    @property
    def service(self):
        """Number of the service whose frames are received; 0: any."""
        return self.receiver.frames.service

    @property
    def open_frames(self):
        """How many frames have come in part, and how many fragments so far; any thread may ask."""
        return fdc_read(&self.receiver.frames.open), fdc_read(&self.receiver.frames.fragments)

    def receive(self, timeout=None):
        """The next step, as `Receiver.receive`; the kernel is asked for its sender now and then.

        The kernel knows only the last sender, so it is known while the queue is empty.
        """
        cdef fds_status status
        cdef Step step = self.receiver.receive(timeout)
        cdef int64_t now = fds_now()
        if step is None:
            return None
        step.received = now
        if self.ring is not None and self.ring.is_ours():
            fdb_set(&self.ring.ring, FDB_BUSY, now)
        if now >= self.sender_due:
            self.sender_due = now + _ASK_AGAIN_NS
            if fds_stat(self.receiver.msqid, &status) >= 0:
                self.is_named |= status.last_receiver != 0
                if status.messages == 0:
                    self.last_sender = status.last_sender
                    self.sender_due = now + _ASK_SENDER_NS
        if self.keeper is not None:
            self.keeper(step)
        return step

    def refused(self):
        """Type and payload of the message that the last call refused.

        None if another call is at work by now, or the message was too long for the buffer.
        """
        cdef Receiver receiver = self.receiver
        if receiver.busy or receiver.message == NULL or not 0 <= receiver.taken <= receiver.capacity:
            return None
        return receiver.message[0], PyBytes_FromStringAndSize(<char *>(receiver.message + 1), receiver.taken)

# Sender: from Steps, or from a save op's tensors, to a queue.
import inspect

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.string cimport memcpy, memset
from fd_postproc.headers.counter cimport fdc_add, fdc_read, fdc_set
from fd_postproc.headers.frames cimport FDF_LEAST_LIMIT, fdf_sending
from fd_postproc.headers.lane cimport FDQ_LAYOUT, FDQ_TOO_BIG, fdq_begin, fdq_go_on, fdq_lane, fdq_limits
from fd_postproc.headers.pack cimport (
    FDP_BATCH, FDP_COLUMNS, FDP_FIRST, FDP_FIRST_TOPK, FDP_ID_WIDE, FDP_NO_ROW, FDP_RANK_WIDE,
    FDP_SAVE_OUTPUT, FDP_SAVE_OUTPUT_TOPK, FDP_SPECULATE, FDP_SPECULATE_TOPK, FDP_TOKEN_WIDE,
    FDP_TOO_MANY, FDP_TOO_NARROW, fdp_fault, fdp_plan, fdp_settled, fdp_source, fdp_write,
)
from fd_postproc.headers.sysv cimport (
    EAGAIN, EINTR, fds_forks, fds_limit, fds_msgmax, fds_now, fds_reads_msgmax,
)
from fd_postproc.headers.wire cimport (
    FDW_COMPACT, FDW_LEGACY, fdw_draft, fdw_geometry_of, fdw_layout, fdw_longest_frame, fdw_message,
    fdw_write_step,
)

_OP_NUMBERS = {
    "save_output": FDP_SAVE_OUTPUT,
    "save_output_topk": FDP_SAVE_OUTPUT_TOPK,
    "speculate_save_output": FDP_SPECULATE,
    "speculate_save_output_topk": FDP_SPECULATE_TOPK,
    "mtp_save_first_token": FDP_FIRST,
    "mtp_save_first_token_with_topk": FDP_FIRST_TOPK,
}
LEAST_LIMIT = FDF_LEAST_LIMIT  # bytes that one message must be able to hold for compact frames to get through
_REASONS = {
    FDP_TOO_MANY: "too many", FDP_TOO_NARROW: "too narrow", FDP_NO_ROW: "no row",
    FDP_TOKEN_WIDE: "token wide", FDP_ID_WIDE: "id wide", FDP_RANK_WIDE: "rank wide",
    FDP_BATCH: "batch", FDP_COLUMNS: "columns",
}


cdef uintptr_t _address(dict inputs, str role) except? 0:
    """Address of a role's numbers; 0 if the op has no such tensor."""
    value = inputs.get(role)
    return 0 if value is None else (<HostInput?>value).address


cdef int _fill_source(fdp_source *s, str op, dict inputs, int32_t batch, int32_t cols, int64_t width,
                      int64_t rows, int32_t stop_flag, int32_t flag, bint skip_prefill) except -1:
    """Describe what was passed to a save op, all but the depth of a slot."""
    memset(s, 0, sizeof(fdp_source))
    s.op = _OP_NUMBERS[op]
    s.batch = batch
    s.cols = cols
    s.width = width
    s.rows = rows
    s.stop_flag = stop_flag
    s.flag = flag
    s.skip_prefill = skip_prefill
    s.tokens = <const int64_t *>_address(inputs, "tokens")
    s.ids = <const int64_t *>_address(inputs, "ids")
    s.scores = <const float *>_address(inputs, "scores")
    s.ranks = <const int64_t *>_address(inputs, "ranks")
    s.counts = <const int32_t *>_address(inputs, "counts")
    s.offsets = <const int32_t *>_address(inputs, "offsets")
    s.decoded = <const int32_t *>_address(inputs, "decoded")
    s.prompts = <const int64_t *>_address(inputs, "prompts")
    s.preempted = <const int32_t *>_address(inputs, "preempted")
    s.steps = <const int64_t *>_address(inputs, "steps")
    return 0


def _sender_arguments(
    channel, queue_id=None, *, key=None, path=None, ftok="custom", layout=GPU,
    dialect="packed", mode=0o600,
):
    """What `inspect.signature` finds of `Sender`: an extension type has no signature of its own."""


@cython.final
cdef class Sender:
    """Sends steps to a System V message queue.

    The queue is opened, or created with mode 0600 if there is none, and outlives the Sender.

    One thread at a time may use a Sender; a second one gets `SenderBusy`.

    Parameters
    ----------
    channel : {"plain", "topk", "spec", "spec_topk"}
    queue_id, key, path, ftok, layout, mode
        As for `Receiver`.
    dialect : {"packed", "legacy", "compact"}, optional
        ``"packed"`` and ``"legacy"`` are understood by FastDeploy's own receivers of the same age, but the
        whole message must fit the kernel's limits.  ``"compact"`` needs an fd_postproc receiver; what does
        not fit one message is sent in several, and each step has a checksum, unless
        ``FD_POSTPROC_CHECKSUM=0`` is in the environment when the Sender is made.

    Attributes
    ----------
    channel, dialect : str
    layout : Layout
        As given.
    key, msqid : int
        As of `Receiver`.

    Raises
    ------
    QueueError
        If the queue cannot be opened.
    TypeError, ValueError
        If an argument is of another kind, or out of range; the text names it.
    """

    cdef readonly str channel
    cdef readonly str dialect
    cdef readonly object layout
    cdef readonly object key
    cdef int channel_number
    cdef int dialect_number
    cdef fdw_layout c_layout
    cdef bint busy
    cdef bint closed
    cdef fdq_lane lane       # the queue, and the counters
    cdef uint8_t *message    # mtype, then `room` bytes; used by one thread at a time
    cdef int64_t room        # that of the longest frame, until one with sections is longer
    cdef fdp_settled *settled  # of a save op's requests; made for the first one
    cdef fdf_sending sending
    cdef uint64_t sender     # distinguishes the frames of several senders
    cdef public uint32_t _service  # for `fd_postproc.ops`: number of the service that frames name; 0: none
    cdef int forks           # fds_forks when it took that number

    __signature__ = inspect.signature(_sender_arguments)

    def __cinit__(self):
        self.message = NULL

    def __init__(self, channel, queue_id=None, *, key=None, path=None, ftok="custom", layout=GPU,
                 dialect="packed", mode=0o600):
        if self.message != NULL:
            raise RuntimeError("a Sender is initialised once")
        self.channel_number = _channel_number(channel)
        self.channel = channel
        self.dialect_number = _dialect_number(dialect)
        self.dialect = dialect
        self.c_layout = _c_layout(layout)
        self.layout = layout
        self.lane.checksum = _checksums()
        self.key = queues.locate(channel, queue_id, key=key, path=path, ftok=ftok)
        self.lane.msqid = queues.open_queue(self.key, mode=mode, access=0o200)
        fds_msgmax()
        if fds_reads_msgmax():
            queues.report_limits()
        self.lane.compact = self.dialect_number == FDW_COMPACT
        self.lane.stock_size = fdw_geometry_of(&self.c_layout, self.channel_number, FDW_LEGACY, 0).size
        self.lane.capacity = max(self.lane.stock_size, fdw_longest_frame(&self.c_layout, self.channel_number))
        self._begin()
        self.room = self.lane.capacity
        self.message = <uint8_t *>PyMem_RawCalloc(1, sizeof(long) + self.room)
        if self.message == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.message)
        PyMem_RawFree(self.settled)

    cdef int _begin(self) except -1:
        """Choose a number that no other sender has."""
        self.sender = int.from_bytes(os.urandom(8), "little")
        self.lane.seq = 0
        self.lane.waiting_since = 0  # the wait of another thread goes on in the parent
        self.forks = fds_forks
        self.busy = False  # a fork leaves only the calling thread
        return 0

    @property
    def stats(self):
        """dict: counters since construction.

        frames : steps sent; messages, bytes : what they were sent in; fragments : messages that were a piece
        of a frame; waits, wait_seconds : how often a call waited for room, and how long.
        """
        return {
            "frames": fdc_read(&self.lane.frames),
            "messages": fdc_read(&self.lane.messages),
            "bytes": fdc_read(&self.lane.bytes),
            "fragments": fdc_read(&self.lane.fragments),
            "waits": fdc_read(&self.lane.waits),
            "wait_seconds": fdc_read(&self.lane.waited_ns) * 1e-9,
        }

    @property
    def msqid(self):
        """int: the kernel's number of the queue."""
        return self.lane.msqid

    @property
    def limit(self):
        """int: bytes that one message may have now: the smallest of kernel.msgmax, what the queue may hold
        (``msg_qbytes``, fixed when it was made) and a full message of FastDeploy's."""
        cdef int64_t msgmax = 0, msg_qbytes = 0
        cdef int64_t limit = fds_limit(self.lane.msqid, &msgmax, &msg_qbytes)
        if limit < 0:
            raise queue_error(-limit, self._where())
        return min(limit, self.lane.stock_size)

    @property
    def waiting_seconds(self):
        """float: how long the current call has been waiting for room; 0.0 if it does not wait."""
        cdef int64_t since = fdc_read(&self.lane.waiting_since)
        return (fds_now() - since) * 1e-9 if since and self.forks == fds_forks else 0.0

    cdef str _where(self):
        return f"sending to queue msqid:{self.lane.msqid} ({self.channel}, key {queues.key_text(self.key)})"

    cdef int _enter(self) except -1:
        if self.closed or self.message == NULL:
            raise SenderClosed(
                f"the Sender is closed (queue msqid:{self.msqid}, {self.channel}): make another one")
        if self.forks != fds_forks:  # a child of the process that made it: the frames of the two must not mix
            self._begin()
        if self.busy:
            raise SenderBusy(
                f"this Sender (queue msqid:{self.lane.msqid}) is in use by another call; "
                "one thread at a time may use it: make a second Sender")
        self.busy = True
        return 0

    cdef int _make_room(self, int64_t size) except -1:
        cdef uint8_t *message = <uint8_t *>PyMem_RawRealloc(self.message, sizeof(long) + size)
        if message == NULL:
            raise MemoryError
        self.message, self.room = message, size
        return 0

    cdef int64_t _write(self, Step one) except -1:
        """Write a step into self.message; bytes of its payload."""
        cdef fdw_message m
        cdef fdw_draft draft
        if one.raw.channel != self.channel_number:
            raise ValueError(f"a step of channel {one.channel!r} was given to a Sender of {self.channel!r}")
        _plan_step(&m, &self.c_layout, one, self.dialect_number)
        if m.claimed > self.room:
            self._make_room(m.claimed)
        m.seq = self.lane.seq
        m.sender, m.service = self.sender, self._service
        draft.data = self.message + sizeof(long)
        draft.size = m.claimed
        memset(draft.data, 0, m.claimed)
        if fdw_write_step(&m, &one.raw, &draft) < 0:
            raise AssertionError("a planned message did not fit its own length")
        return m.claimed

    cdef int _send(self, int64_t size, int64_t deadline) except -1:
        """Send the payload of `size` bytes in self.message.  deadline: see deadline_of."""
        cdef int status = fdq_begin(&self.lane, &self.sending, self.message, size)
        if status == 0:
            status = self._put(deadline)
            while status == -EINTR or (status == -EAGAIN and not 0 <= deadline <= fds_now()):
                status = self._put(deadline)
        return self._settle(status)

    cdef int _settle(self, int status) except -1:
        """Raise what a status of `headers/lane.h` means."""
        cdef const fdq_limits *limits = &self.lane.limits
        if status == 0:
            return 0
        if status == FDQ_TOO_BIG:
            raise too_big(self._where(), self.dialect, limits.size, limits.msgmax, limits.msg_qbytes)
        if status == FDQ_LAYOUT:
            raise ValueError(
                f"{self._where()}: a piece of a frame must not be longer than FastDeploy's message, and "
                f"the {self.lane.stock_size} bytes of this layout's message are too few for a piece")
        if status == -EAGAIN:
            raise queue_error(EAGAIN, f"{self._where()}: it stayed full for the whole timeout")
        raise _refusal(-status, self.lane.msqid, self._where(), None)

    # No line tracing: see Receiver._wait.
    @cython.linetrace(False)
    @cython.profile(False)
    cdef int _put(self, int64_t deadline) except? -1:
        """fdq_go_on without the GIL; after -EINTR and -EAGAIN the signal handlers have run."""
        cdef int status
        with nogil:
            status = fdq_go_on(&self.lane, &self.sending, deadline)
        if status == -EINTR or status == -EAGAIN:
            PyErr_CheckSignals()
            if self.forks != fds_forks:  # a handler forked, and this is the child
                raise QueueError(
                    EINTR, f"{self._where()}: a signal handler forked in the middle of it; the parent "
                    "process sends this step")
        return status

    def send(self, step, timeout=None):
        """Send one step.

        Parameters
        ----------
        step : Step
            Of this Sender's channel.
        timeout : float or None
            Seconds to wait while the queue is full, without the GIL; None waits forever; 0 does not wait.
            System V has no send with a time limit, and a blocking send would not notice a lowered limit: the
            queue is polled with sleeps of at most 0.2 ms, and of 2 ms after the first second.

        Raises
        ------
        MessageTooBig
            If a packed or legacy message is longer than the kernel or the queue allows.  Compact frames are
            split to fit, unless not even 136 bytes are allowed.  Also if, while this call waits, a limit is
            lowered below the next message or piece: that step is lost.
        QueueTimeout
            If the queue stayed full.  The step was not sent; if some pieces of it had been sent, the
            receiver will drop and count them.
        QueueRemoved, QueuePermission, QueueError
            If the kernel refuses.  The step was not sent.  Also in the child, if a signal handler forks while
            this call waits: the parent sends the step.
        TypeError
            If it is not a Step.
        ValueError
            If the layout cannot carry the step; its kind `SenderClosed` if the Sender is closed.
        SenderBusy
            If another thread is in a call of this Sender.

        Notes
        -----
        A signal that arrives while waiting runs its Python handlers; unless one of them raises, the wait
        continues.
        """
        cdef Step one = _a_step(step)
        cdef int64_t deadline = _deadline(timeout)
        self._enter()
        try:
            self._send(self._write(one), deadline)
        finally:
            fdc_set(&self.lane.waiting_since, 0)
            self.busy = False

    def send_arrays(self, counts, ids, scores=None, ranks=None, *, flag=3, stop_flag=1, timeout=None,
                    masks=None, weight_version=None, as_recorded=False):
        """Send a step made of arrays: ``send(Step.from_arrays(...))``."""
        self.send(Step.from_arrays(self.channel, counts, ids, scores, ranks, flag=flag, stop_flag=stop_flag,
                                   masks=masks, weight_version=weight_version, as_recorded=as_recorded),
                  timeout)

    def _save(self, str op, dict inputs, int32_t batch, int32_t cols, int64_t width, int64_t rows, *,
              int32_t stop_flag, int32_t flag, bint skip_prefill):
        """For `fd_postproc.ops`: send what was passed to a save op.

        `inputs` holds a HostInput for each role; the caller has checked that their sizes match.
        None, or a Refusal if a number in them does not fit; then nothing was sent.
        """
        cdef fdp_source s
        cdef fdp_fault fault
        cdef fdw_message m
        cdef fdw_draft draft
        cdef int status
        _fill_source(&s, op, inputs, batch, cols, width, rows, stop_flag, flag, skip_prefill)
        s.depth = fdw_geometry_of(&self.c_layout, self.channel_number, FDW_LEGACY, 0).depth
        self._enter()
        try:
            if self.settled == NULL:
                self.settled = <fdp_settled *>PyMem_RawMalloc(
                    max(self.c_layout.max_batch, self.c_layout.spec_batch) * sizeof(fdp_settled))
                if self.settled == NULL:
                    raise MemoryError
            fault.reason = -1
            with nogil:
                status = fdp_plan(&m, &s, &self.c_layout, self.dialect_number, self.settled, &fault)
                if status == 0:
                    m.seq = self.lane.seq
                    m.sender = self.sender
                    m.service = self._service
                    draft.data = self.message + sizeof(long)
                    draft.size = m.claimed
                    status = fdp_write(&m, &s, self.settled, &draft, &fault)
            if status < 0:
                if fault.reason < 0:
                    raise AssertionError("a planned message did not fit its own length")
                return Refusal(_REASONS[fault.reason], fault.index, fault.value, fault.bound)
            self._send(m.claimed, -1)
        finally:
            fdc_set(&self.lane.waiting_since, 0)
            self.busy = False

    def close(self):
        """Stop using this Sender.  The queue and its messages stay."""
        self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        state = " closed" if self.closed else ""
        return (
            f"<Sender {self.channel} {self.dialect}{state}: queue msqid:{self.lane.msqid}, "
            f"key {queues.key_text(self.key)}, {fdc_read(&self.lane.frames)} sent>")

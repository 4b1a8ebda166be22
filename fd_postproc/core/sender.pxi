# Sender: from Steps, or from a save op's tensors, to a queue.

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
        ``"packed"`` and ``"legacy"`` are understood by FastDeploy's own receivers of that age, but a message
        must fit the kernel's limits whole.  ``"compact"`` needs an fd_postproc receiver; what does not fit
        one message goes in several.

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
    cdef readonly int msqid
    cdef readonly object key
    cdef int channel_number
    cdef int dialect_number
    cdef fdw_layout c_layout
    cdef bint busy
    cdef bint closed
    cdef int64_t capacity    # payload bytes of the longest message or frame
    cdef int64_t stock_size  # most that FastDeploy's receiver takes
    cdef uint8_t *message    # mtype, then capacity bytes; used by one thread at a time
    cdef fdp_settled *settled  # of a save op's requests; made for the first one
    cdef fdf_sending sending
    cdef uint64_t sender     # tells the frames of several senders apart
    cdef int forks           # fds_forks when it took that number
    cdef uint64_t seq
    cdef int64_t waiting_since   # monotonic ns at which the queue was found full; 0: not waiting
    cdef int64_t n_frames, n_messages, n_bytes, n_fragments, n_waits, waited_ns

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
        self.key = queues.locate(channel, queue_id, key=key, path=path, ftok=ftok)
        self.msqid = queues.open_queue(self.key, mode=mode, access=0o200)
        self.stock_size = fdw_geometry_of(&self.c_layout, self.channel_number, FDW_LEGACY, 0).size
        self.capacity = max(self.stock_size, fdw_longest_frame(&self.c_layout, self.channel_number))
        self._begin()
        self.message = <uint8_t *>PyMem_RawCalloc(1, sizeof(long) + self.capacity)
        if self.message == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.message)
        PyMem_RawFree(self.settled)

    cdef int _begin(self) except -1:
        """Take a number that no other sender has."""
        self.sender = int.from_bytes(os.urandom(8), "little")
        self.seq = 0
        self.forks = fds_forks
        self.busy = False  # a fork leaves only the calling thread
        return 0

    @property
    def stats(self):
        """dict: counters since construction.

        frames : steps sent; messages, bytes : what that took; fragments : messages that were a piece of a
        frame; waits, wait_seconds : how often a call waited for room, and how long.
        """
        return {
            "frames": fdc_read(&self.n_frames),
            "messages": fdc_read(&self.n_messages),
            "bytes": fdc_read(&self.n_bytes),
            "fragments": fdc_read(&self.n_fragments),
            "waits": fdc_read(&self.n_waits),
            "wait_seconds": fdc_read(&self.waited_ns) * 1e-9,
        }

    @property
    def limit(self):
        """int: bytes that one message may have now: the least of kernel.msgmax, what the queue may hold
        (``msg_qbytes``, fixed when it was made) and a full message of FastDeploy's."""
        cdef int64_t msgmax = 0, msg_qbytes = 0
        return min(self._limit(&msgmax, &msg_qbytes), self.stock_size)

    @property
    def waiting_seconds(self):
        """float: how long the call that is under way has waited for room; 0.0 if it does not."""
        cdef int64_t since = fdc_read(&self.waiting_since)
        return (fds_now() - since) * 1e-9 if since else 0.0

    cdef int64_t _limit(self, int64_t *msgmax, int64_t *msg_qbytes) except -1:
        cdef int64_t limit = fds_limit(self.msqid, msgmax, msg_qbytes)
        if limit < 0:
            raise queue_error(-limit, self._where())
        return limit

    cdef str _where(self):
        return f"sending to queue {self.msqid} ({self.channel}, key {queues.key_text(self.key)})"

    cdef int _enter(self) except -1:
        if self.closed or self.message == NULL:
            raise ValueError("the Sender is closed")
        if self.forks != fds_forks:  # a child of the process that made it: the frames of the two must not mix
            self._begin()
        if self.busy:
            raise SenderBusy(
                f"this Sender (queue {self.msqid}) is in use by another call; "
                "one thread at a time may use it: make a second Sender")
        self.busy = True
        return 0

    cdef int _too_big(self, int64_t size, int64_t msgmax, int64_t msg_qbytes) except -1:
        raise too_big(self._where(), self.dialect, size, msgmax, msg_qbytes)

    cdef int _send(self, const fdw_message *m, int64_t deadline) except -1:
        """Send what was written into self.message; m.claimed is its length.  deadline: see _deadline."""
        cdef int64_t msgmax = 0, msg_qbytes = 0
        cdef int64_t limit = self._limit(&msgmax, &msg_qbytes)
        cdef bint compact = m.dialect == FDW_COMPACT
        if not compact and m.claimed > limit:
            self._too_big(m.claimed, msgmax, msg_qbytes)
        (<long *>self.message)[0] = FDW_MTYPE_COMPACT if compact else FDW_MTYPE_STOCK
        if fdf_cut(&self.sending, self.message, m.claimed, min(limit, self.stock_size)) < 0:
            if self.stock_size < limit:
                raise ValueError(
                    f"{self._where()}: a piece of a frame may be no longer than FastDeploy's message, and "
                    f"the {self.stock_size} bytes of this layout are too few for one")
            self._too_big(FDF_LEAST_LIMIT, msgmax, msg_qbytes)
        if compact:
            self.seq += 1  # also if it fails half-way: a number is never used again
        cdef int status
        cdef int64_t size
        while True:
            status = self._put(deadline)
            if status == 0:
                break
            if status == -EAGAIN or status == -EINVAL:
                size = fdf_piece_size(&self.sending)
                if self._limit(&msgmax, &msg_qbytes) < size:  # lowered meanwhile
                    self._too_big(size, msgmax, msg_qbytes)
                if status == -EAGAIN and 0 <= deadline <= fds_now():
                    raise queue_error(EAGAIN, f"{self._where()}: it stayed full for the whole timeout")
            elif status != -EINTR:
                raise queue_error(-status, self._where())
        fdc_add(&self.n_frames, 1)
        if self.sending.fragments > 1:
            fdc_add(&self.n_fragments, self.sending.fragments)
        return 0

    # No line tracing: see Receiver._wait.
    @cython.linetrace(False)
    @cython.profile(False)
    cdef int _put(self, int64_t deadline) except? -1:
        """Send what is left of self.sending, without the GIL.

        0, or minus errno; then self.sending.next is the piece to go on with.  After -EINTR and -EAGAIN the
        handlers of signals have run.
        """
        cdef int status = 0
        cdef int64_t size = 0, until, began
        cdef void *message
        with nogil:
            while self.sending.next < self.sending.fragments:
                message = fdf_piece(&self.sending, &size)
                status = fds_put(self.msqid, message, size)
                if status == -EAGAIN and deadline != 0:
                    began = fds_now()
                    if self.waiting_since == 0:  # else a signal or a slice's end interrupted the same wait
                        fdc_add(&self.n_waits, 1)
                        fdc_set(&self.waiting_since, began)
                    until = began + _SLICE_NS
                    if 0 < deadline < until:
                        until = deadline
                    status = fds_put_wait(self.msqid, message, size, self.waiting_since, until)
                    fdc_add(&self.waited_ns, fds_now() - began)
                if status < 0:
                    break
                fdc_set(&self.waiting_since, 0)
                self.sending.next += 1
                fdc_add(&self.n_messages, 1)
                fdc_add(&self.n_bytes, size)
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
            Seconds to wait while the queue is full, without the GIL; None waits for ever; 0 does not wait.
            System V has no send with a time limit, and one without would not notice a lowered limit: the
            queue is tried with sleeps of at most 0.2 ms in between, 2 ms after the first second.

        Raises
        ------
        MessageTooBig
            If a packed or legacy message is longer than the kernel or the queue allows.  Compact frames are
            cut to fit, unless not even 136 bytes are allowed.  Also if a limit is lowered, while this call
            waits, below the message or piece that is to go next: that step is lost.
        QueueTimeout
            If the queue stayed full.  The step was not sent; if some pieces of it went out before, the
            receiver will drop and count them.
        QueueRemoved, QueuePermission, QueueError
            If the kernel refuses.  The step was not sent.  Also in the child, if a signal handler forks while
            this call waits: the parent sends the step.
        TypeError
            If it is no Step.
        ValueError
            If the layout cannot carry the step, or the Sender is closed.
        SenderBusy
            If another thread is in a call of this Sender.

        Notes
        -----
        A signal that arrives while waiting runs its Python handlers; unless one of them raises, the wait
        goes on.
        """
        cdef Step one = _a_step(step)
        cdef fdw_message m
        cdef fdw_draft draft
        if one.at.channel != self.channel_number:
            raise ValueError(f"a step of channel {one.channel!r} was given to a Sender of {self.channel!r}")
        cdef int64_t deadline = _deadline(timeout)
        self._enter()
        try:
            _plan_step(&m, &self.c_layout, one, self.dialect_number)
            m.seq = self.seq
            m.sender = self.sender
            draft.data = self.message + sizeof(long)
            draft.size = m.claimed
            memset(draft.data, 0, m.claimed)
            if fdw_write_step(&m, &one.at, &draft) < 0:
                raise AssertionError("a planned message did not fit its own length")
            self._send(&m, deadline)
        finally:
            fdc_set(&self.waiting_since, 0)
            self.busy = False

    def send_arrays(self, counts, ids, scores=None, ranks=None, *, flag=3, stop_flag=1, timeout=None):
        """Send a step made of arrays: ``send(Step.from_arrays(...))``."""
        self.send(Step.from_arrays(self.channel, counts, ids, scores, ranks, flag=flag, stop_flag=stop_flag),
                  timeout)

    def _save(self, str op, dict inputs, int32_t batch, int32_t cols, int64_t width, int64_t rows, *,
              int32_t stop_flag, int32_t flag, bint skip_prefill):
        """For `fd_postproc.ops`: send what a save op was given.

        `inputs` holds a HostInput for each role; the caller has checked that their sizes fit each other.
        None, or (reason, index, value, bound) if a number in them does not fit; then nothing was sent.
        The reasons are explained at enum fdp_reason in request.h.
        """
        cdef fdp_source s
        cdef fdp_fault fault
        cdef fdw_message m
        cdef fdw_draft draft
        cdef int status
        memset(&s, 0, sizeof(s))
        s.op = _OP_NUMBERS[op]
        s.batch = batch
        s.cols = cols
        s.width = width
        s.rows = rows
        s.stop_flag = stop_flag
        s.flag = flag
        s.skip_prefill = skip_prefill
        s.depth = fdw_geometry_of(&self.c_layout, self.channel_number, FDW_LEGACY, 0).depth
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
                    m.seq = self.seq
                    m.sender = self.sender
                    draft.data = self.message + sizeof(long)
                    draft.size = m.claimed
                    status = fdp_write(&m, &s, self.settled, &draft, &fault)
            if status < 0:
                if fault.reason < 0:
                    raise AssertionError("a planned message did not fit its own length")
                return _REASONS[fault.reason], fault.index, fault.value, fault.bound
            self._send(&m, -1)
        finally:
            fdc_set(&self.waiting_since, 0)
            self.busy = False

    def close(self):
        """Use this Sender no more.  The queue and its messages stay."""
        self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        state = " closed" if self.closed else ""
        where = f"queue {self.msqid}, key {queues.key_text(self.key)}"
        return f"<Sender {self.channel} {self.dialect}{state}: {where}, {fdc_read(&self.n_frames)} steps>"

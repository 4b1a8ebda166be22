# Receiver: from a queue to Steps.
import inspect

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset
from fd_postproc.headers.counter cimport fdc_add, fdc_read, fdc_set
from fd_postproc.headers.frames cimport (
    FDF_MORE, FDF_NO_MEMORY, FDF_REFUSED, FDF_WHOLE, fdf_accept, fdf_assembly, fdf_begin, fdf_count_stalled,
    fdf_free,
)
from fd_postproc.headers.lane cimport FDQ_SLICE_NS
from fd_postproc.headers.sequences cimport FDN_MOST, fdn_begin, fdn_note, fdn_sender, fdn_sequences
from fd_postproc.headers.sysv cimport (
    E2BIG, EAGAIN, EIDRM, EINTR, EINVAL, ENOMSG, FDS_MSGMAX, fds_forks, fds_give_back, fds_interrupt, fds_nap,
    fds_now, fds_pages, fds_stat, fds_status, fds_take, fds_take_cut, fds_wait, pthread_equal, pthread_self,
    pthread_t,
)
from fd_postproc.headers.wire cimport (
    FDW_BATCH, FDW_CHECKSUM, FDW_FIELD_CHANNEL, FDW_LEGACY, FDW_MTYPE_COMPACT, FDW_MTYPE_STOCK, fdw_fault,
    fdw_fill, fdw_geometry_of, fdw_layout, fdw_message, fdw_open, fdw_refuse, fdw_tensors,
)

# What may happen to compact frames, beside being refused; each is a counter.
TROUBLES = ("incomplete", "missing", "doubled", "reordered")
# Times that close() tries to wake a thread, in a second: at first a millisecond after each other, then 20.
cdef int _WAKING = 145, _WAKING_FAST = 100
# _take_in's word for a message type that is neither FastDeploy's nor ours.
cdef int _WRONG_MTYPE = -3


def _receiver_arguments(
    channel, queue_id=None, *, key=None, path=None, ftok="custom", layout=GPU, mode=0o600,
):
    """What `inspect.signature` finds of `Receiver`: an extension type has no signature of its own."""


cdef dict _senders_of(const fdn_sequences *sequences):
    """What `Receiver.senders` says of them."""
    cdef int k
    cdef const fdn_sender *s
    found = {}
    for k in range(FDN_MOST):
        s = &sequences.senders[k]
        if fdc_read(&s.frames) > 0:
            found[<uint64_t>fdc_read(&s.sender)] = {
                "frames": fdc_read(&s.frames),
                "next": <uint64_t>fdc_read(&s.next),
                "missing": fdc_read(&s.missing),
                "doubled": fdc_read(&s.doubled),
                "reordered": fdc_read(&s.reordered),
            }
    return found


@cython.final
cdef class Receiver:
    """Receives steps from a System V message queue.

    The queue is opened, or created with mode 0600 if there is none.  It outlives the Receiver, as System V
    queues do: unread messages wait for the next Receiver, until `remove`.

    One thread at a time may use a Receiver; a second one gets `ReceiverBusy`.  A queue has one reader: each
    message reaches only one of several Receivers, or of a parent and the child that it forked.  A step that
    comes in fragments, as a compact frame above ``kernel.msgmax`` does, is lost then, which the first time is
    logged as a warning of the logger ``fd_postproc``, and counted as incomplete (`stats`).

    Parameters
    ----------
    channel : {"plain", "topk", "spec", "spec_topk"}
        What the messages are.
    queue_id : int, optional
        FastDeploy's number of the queue, normally a TCP port, at most 32 bits: a negative one names a queue,
        too, as in FastDeploy.  Default: the environment variable ``INFERENCE_MSG_QUEUE_ID``, else 1.
    key : int, optional
        System V key, as ``ipcs -q`` prints it or as a signed number; replaces queue_id, path and ftok.
    path : str, optional
        File whose inode the key is made of.  Default: ``/dev/shm``, but ``./`` for ``spec``, as in
        FastDeploy.
    ftok : {"custom", "libc"}
        How the key is made: FastDeploy's own rule, or libc's, which older builds used.
    layout : Layout, optional
        Geometry of the sender's build.
    mode : int, optional
        Permission bits of a queue that is created here: 0o600 (its owner alone) to 0o666 (everybody).

    Attributes
    ----------
    channel : str
    layout : Layout
        As given.
    closed : bool
        Whether `close` or `remove` was called.
    key : int
        The queue's key, a signed 32-bit number as in ``/proc/sysvipc/msg``.  Messages show it as ``ipcs -q``
        does: ``fd_postproc.queues.key_text(receiver.key)``.
    msqid : int
        The kernel's number of the queue, the other name that ``ipcs -q`` and ``ipcrm -q`` know it by.

    Raises
    ------
    QueueError
        If the queue cannot be opened.
    TypeError, ValueError
        If an argument is of another kind, or out of range; the text names it.
    """

    cdef readonly str channel
    cdef readonly object layout
    cdef readonly int msqid
    cdef readonly object key
    cdef pthread_t sleeper   # the thread that waits at the queue
    cdef int64_t sleeps      # whether it does so without a time limit, in one system call
    cdef int channel_number
    cdef fdw_layout c_layout
    cdef bint busy
    cdef readonly bint closed
    cdef bint removed
    cdef bint held           # `opened` is a message not yet returned, because memory was short
    cdef int forks           # fds_forks when the last call began
    cdef int64_t capacity    # payload bytes of the longest message of this channel and layout
    cdef int64_t offered     # of them, to msgrcv: all, or what a kernel takes that refuses so many
    cdef long *message       # mtype, then capacity bytes; used by one thread at a time
    cdef fdf_assembly frames  # what has arrived of compact frames that are in fragments
    cdef fdn_sequences sequences  # the numbers of those that are whole
    cdef bint verify         # their checksums
    cdef fdw_message opened  # the message that _take_in found good; points into message or frames
    cdef fdw_fault fault     # or why it was refused
    cdef int64_t told[4]     # see _news
    cdef bint warned         # whether an incomplete frame was logged, or its owner reports all of them
    cdef int64_t taken       # payload bytes of the last message
    cdef int64_t heard       # monotonic ns at which the last message of a frame came
    cdef int64_t n_messages, n_bytes, n_malformed, n_oversized, n_corrupt, n_waits, waited_ns

    __signature__ = inspect.signature(_receiver_arguments)

    def __cinit__(self):
        self.message = NULL

    def __init__(self, channel, queue_id=None, *, key=None, path=None, ftok="custom", layout=GPU, mode=0o600):
        if self.message != NULL:
            raise RuntimeError("a Receiver is initialised once")
        self.channel_number = _channel_number(channel)
        self.channel = channel
        self.c_layout = _c_layout(layout)
        self.layout = layout
        self.verify = _checksums()
        self.key = queues.locate(channel, queue_id, key=key, path=path, ftok=ftok)
        self.msqid = queues.open_queue(self.key, mode=mode)
        self.capacity = fdw_geometry_of(&self.c_layout, self.channel_number, FDW_LEGACY, 0).size
        self.offered = self.capacity
        self.forks = fds_forks
        self._forget_frames()
        self.message = <long *>PyMem_RawMalloc(sizeof(long) + self.capacity)
        if self.message == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.message)
        fdf_free(&self.frames)

    cdef int _forget_frames(self) except -1:
        """Start without open frames.  Memory of existing ones is not freed: it may be half-changed."""
        cdef fdf_assembly before = self.frames
        cdef uint64_t seed = int.from_bytes(os.urandom(8), "little")  # colliding senders cannot be chosen
        fdf_begin(&self.frames, &self.c_layout, self.channel_number, self.verify, seed)
        fdn_begin(&self.sequences)
        self.frames.fragments, self.frames.incomplete = before.fragments, before.incomplete
        self.frames.service, self.frames.numbered = before.service, before.numbered
        self.frames.foreign = before.foreign
        return 0

    @property
    def stats(self):
        """dict: counters since construction.

        messages, bytes : taken from the queue, good or bad; malformed, oversized : those of them that were
        refused because they are inconsistent, or longer than the layout allows; corrupt : those of the
        malformed ones whose checksum was wrong; foreign : those of them that were of another service, which
        uses the same queue; fragments : of compact frames; incomplete : compact
        frames that were never completed, also those of which no more has come for a second, seen when a call
        finds the queue empty; missing : compact frames that did not come between others of their
        sender, whatever the reason, incomplete and refused ones among them; doubled, reordered : compact
        frames whose number had come already, or that came after a later one; waits, wait_seconds : how often
        a call found the queue empty, and how long it then waited.

        Missing, doubled and reordered frames are only counted: what is whole is delivered, in the order of
        the queue.  `senders` has them sender by sender.
        """
        return {
            "messages": fdc_read(&self.n_messages),
            "bytes": fdc_read(&self.n_bytes),
            "malformed": fdc_read(&self.n_malformed),
            "oversized": fdc_read(&self.n_oversized),
            "corrupt": fdc_read(&self.n_corrupt),
            "foreign": fdc_read(&self.frames.foreign),
            "fragments": fdc_read(&self.frames.fragments),
            "incomplete": fdc_read(&self.frames.incomplete),
            "missing": fdc_read(&self.sequences.missing),
            "doubled": fdc_read(&self.sequences.doubled),
            "reordered": fdc_read(&self.sequences.reordered),
            "waits": fdc_read(&self.n_waits),
            "wait_seconds": fdc_read(&self.waited_ns) * 1e-9,
        }

    @property
    def senders(self):
        """dict: by sender number, the last 64 senders of compact frames that were whole.

        Each a dict: frames : those that came; next : the number that is due; missing, doubled, reordered : as
        in `stats`.  A sender is a `Sender`, or a process that calls save ops for one queue; it takes a random
        number when it is made and after a fork.
        """
        return _senders_of(&self.sequences)

    cdef int _enter(self) except -1:
        if self.closed or self.message == NULL:
            raise self._ended()
        if self.forks != fds_forks:
            self.forks = fds_forks
            if self.busy:  # another thread was at work and is gone: what it left is neither useful nor safe
                self.busy = self.held = False
                self._forget_frames()
        if self.busy:
            raise ReceiverBusy(
                f"this Receiver (queue msqid:{self.msqid}) is in use by another call; "
                "one thread at a time may use it: let that thread receive all steps, and hand them on; a "
                "second Receiver of the queue would take some of their fragments")
        self.busy = True
        return 0

    cdef object _ended(self):
        """The exception for a call of a Receiver that is closed, or was closed during the call."""
        return self._error(EIDRM) if self.removed and self.busy else ReceiverClosed(
            f"the Receiver is closed (queue msqid:{self.msqid}, {self.channel}): make another one")

    cdef str _where(self):
        return f"receiving from queue msqid:{self.msqid} ({self.channel}, key {queues.key_text(self.key)})"

    cdef object _error(self, int code):
        """The exception for an errno value."""
        remedy = "this Receiver's remove() removed it: make another" if self.removed else None
        return _refusal(code, self.msqid, self._where(), remedy)

    cdef bint _offers_less(self) noexcept:
        """Whether there is a smaller buffer to offer: gVisor refuses one of more than 8192 bytes (EINVAL).

        No message there is longer, and a compact frame is cut to that.
        """
        cdef fds_status status
        if self.offered <= FDS_MSGMAX or fds_stat(self.msqid, &status) < 0:
            return False
        self.offered = FDS_MSGMAX
        return True

    cdef int _take_in(self, int64_t size) noexcept nogil:
        """Count and open the message in self.message, of so many payload bytes.

        FDF_WHOLE: self.opened is it.  FDF_MORE: it was a fragment of a frame.  Otherwise it is refused:
        self.fault says why, or it is the message type (_WRONG_MTYPE), or memory is short.
        """
        cdef int status
        cdef long mtype = self.message[0]
        cdef const void *data = self.message + 1
        self.taken = size
        fdc_add(&self.n_messages, 1)
        fdc_add(&self.n_bytes, size)
        if mtype == FDW_MTYPE_COMPACT:
            self.heard = fds_now()
            status = fdf_accept(&self.frames, &self.c_layout, self.channel_number, data, size,
                                self.heard, &self.opened, &self.fault)
            if status == FDF_WHOLE:
                fdn_note(&self.sequences, self.opened.sender, self.opened.seq)
            elif status == FDF_REFUSED and self.fault.field == FDW_CHECKSUM:
                fdc_add(&self.n_corrupt, 1)
        elif mtype != FDW_MTYPE_STOCK:
            status = _WRONG_MTYPE
        elif fdw_open(&self.opened, &self.c_layout, self.channel_number, data, size, &self.fault) < 0:
            status = FDF_REFUSED
        else:
            status = FDF_WHOLE
        if status == FDF_REFUSED or status == _WRONG_MTYPE:
            fdc_add(&self.n_malformed, 1)
        return status

    # Line tracing must stay out of here: a tracer would run the signal's handler itself, between the
    # system call and the check, and swallow what it raises.
    @cython.linetrace(False)
    @cython.profile(False)
    cdef int64_t _wait(self, int64_t deadline, int *status) except? -1:
        """Wait for messages, without the GIL, until one is taken in that is more than a fragment of a frame.

        Its size, with *status as _take_in returns it; or minus errno.  After -EINTR, -ENOMSG and -EAGAIN the
        signal handlers have run.  -ENOMSG may come before the deadline: a signal between two naps
        interrupts neither, and has to be checked for.  -EAGAIN: for a slice of time, or until the deadline,
        only fragments have arrived.
        """
        cdef int64_t n, began, until = deadline, enough = 0
        if self.closed:
            raise self._ended()
        self.sleeper = pthread_self()
        fdc_set(&self.sleeps, deadline < 0)
        with nogil:
            while True:
                n = fds_take(self.msqid, self.message, self.offered)
                if n == -ENOMSG and self.frames.open > 0:
                    fdf_count_stalled(&self.frames, fds_now())
                if n == -ENOMSG and deadline != 0:
                    began = fds_now()
                    if deadline > began + FDQ_SLICE_NS:
                        until = began + FDQ_SLICE_NS
                    n = fds_wait(self.msqid, self.message, self.offered, until)
                    fdc_add(&self.waited_ns, fds_now() - began)
                if n < 0:
                    break
                status[0] = self._take_in(n)
                if status[0] != FDF_MORE:
                    break
                if enough == 0:
                    enough = self.heard + FDQ_SLICE_NS
                    if 0 < deadline < enough:
                        enough = deadline
                if self.heard >= enough:
                    n = -EAGAIN
                    break
            fdc_set(&self.sleeps, 0)  # before the GIL, which another thread may have for long
        if n == -EINTR or n == -ENOMSG or n == -EAGAIN:
            PyErr_CheckSignals()
        return n

    cdef int _next(self, int64_t deadline, bint once) except -3:
        """The next step's message, opened in self.opened: 1; -1 nothing arrived in time, -2 a signal (only if
        `once`).  deadline: monotonic ns; 0 do not wait, negative forever."""
        cdef int status = FDF_MORE
        cdef int64_t n = self._wait(0, &status)
        if n == -ENOMSG and deadline != 0:
            fdc_add(&self.n_waits, 1)
            n = self._wait(deadline, &status)
        while True:
            if n == -E2BIG:
                n = self._discard()
                if n >= 0:
                    status = self._take_in(n)
            if n >= 0:
                if status == FDF_WHOLE:
                    return 1
                if status != FDF_MORE:
                    self._refuse(status)
            elif n == -EINTR:
                if once:
                    return -2
            elif n == -ENOMSG or n == -EAGAIN:
                if deadline == 0 or 0 < deadline <= fds_now():
                    return -1
            elif n != -EINVAL or not self._offers_less():
                raise self._error(-n)
            n = self._wait(deadline, &status)

    cdef int _refuse(self, int status) except -1:
        if status == FDF_NO_MEMORY:
            raise MemoryError
        if status == _WRONG_MTYPE:
            raise _wrong_mtype(self.channel_number, self.message[0])
        raise _malformed(self.channel_number, &self.fault)

    cdef int64_t _discard(self) except? -1:
        """Take a message that is too long out of the queue, count it and raise.

        Another receiver may have been faster: then there is a good message instead, or none.  Returns its
        payload bytes, or -ENOMSG.
        """
        cdef fds_status status
        cdef int64_t size, room, n
        memset(&status, 0, sizeof(status))
        n = fds_stat(self.msqid, &status)
        if n < 0:
            raise self._error(-n)
        size = room = min(max(status.bytes, self.capacity + 1), _LARGEST_MESSAGE)
        cdef long *message = <long *>fds_pages(sizeof(long) + size)
        if message == NULL:
            raise MemoryError
        try:
            n = fds_take_cut(self.msqid, message, room)
            if n == -EINVAL and room > FDS_MSGMAX:  # see _offers_less
                room = FDS_MSGMAX
                n = fds_take_cut(self.msqid, message, room)
            if n == -ENOMSG:
                return n
            if n < 0:
                raise self._error(-n)
            if n <= self.offered and n < room:
                memcpy(self.message, message, sizeof(long) + n)
                return n
        finally:
            fds_give_back(message, sizeof(long) + size)
        fdc_add(&self.n_messages, 1)
        fdc_add(&self.n_bytes, n)
        fdc_add(&self.n_oversized, 1)
        raise _too_long(self.channel_number, n, self.capacity)

    def receive(self, timeout=None):
        """The next step.

        Parameters
        ----------
        timeout : float or None
            Seconds.  None waits forever: one blocking ``msgrcv`` without the GIL.  0 does not wait.
            Otherwise the queue is polled with sleeps of at most 0.2 ms, since System V has no receive with a
            time limit: it costs some CPU, and a step may be noticed that much later.  While only fragments
            of frames arrive, the time and signals are checked every 20 ms.

        Returns
        -------
        Step or None
            None if nothing arrived in time.

        Raises
        ------
        MalformedMessage
            If a message is inconsistent or longer than the layout allows.  It has been taken out of the queue
            and counted; the next call continues with the next one.
        QueueRemoved
            If the queue is gone.  `remove`, called from any thread, wakes a waiting one this way.
        QueuePermission, QueueError
            If the kernel refuses.
        ReceiverBusy
            If another thread is in a call of this Receiver.
        MemoryError
            If there is no memory for the step, which the next call returns, or for a fragment, which
            is lost and will be counted as incomplete.
        ReceiverClosed
            If the Receiver is closed, also by another thread while this one waits.

        Notes
        -----
        A signal that arrives while waiting runs its Python handlers; unless one of them raises, the wait
        continues.  Python runs handlers in the main thread only.  Without a timeout, a signal that arrives in
        the very instant before the wait begins is handled when the next message or signal arrives.
        """
        cdef int64_t deadline = _deadline(timeout)
        self._enter()
        try:
            self.held = self.held or self._next(deadline, False) >= 0
            if fdc_read(&self.frames.incomplete) > 0 and not self.warned:
                self.warned = True
                queues.log.warning("fd_postproc: %s: %s", self._where(), queues.INCOMPLETE)
            if not self.held:
                return None
            step = _gathered(&self.opened)
            self.held = False
            return step
        finally:
            self.busy = False

    def _receive_into(self, uintptr_t tokens, uintptr_t scores, uintptr_t ranks, int32_t columns, bint wait):
        """For `fd_postproc.ops`: receive one message into tensors whose sizes the caller has checked.

        Returns bits: 1, it was received (else nothing was there, or a signal ended the wait, and the tensors
        are untouched); 2, something has happened to frames since _news was called.
        """
        cdef fdw_tensors to
        cdef int status
        to.tokens = <int64_t *>tokens
        to.scores = <float *>scores
        to.ranks = <int64_t *>ranks
        self._enter()
        try:
            if not self.held and self._next(-1 if wait else 0, True) < 0:
                return 2 * self._has_news()
            self.held = False
            if self.opened.channel != self.channel_number:  # FastDeploy's tensors cannot represent it
                fdc_add(&self.n_malformed, 1)
                fdw_refuse(&self.fault, FDW_FIELD_CHANNEL, -1, self.opened.channel, self.channel_number)
                raise _malformed(self.channel_number, &self.fault)
            with nogil:
                status = fdw_fill(&self.opened, &self.c_layout, &to, columns)
            if status < 0:  # a frame may hold more requests than FastDeploy's tensors
                fdc_add(&self.n_malformed, 1)
                fdw_refuse(&self.fault, FDW_BATCH, -1, self.opened.batch, fdw_geometry_of(
                    &self.c_layout, self.channel_number, FDW_LEGACY, 0).slots)
                raise _malformed(self.channel_number, &self.fault)
            return 1 + 2 * self._has_news()
        finally:
            self.busy = False

    cdef bint _has_news(self) noexcept:
        return (
            self.frames.incomplete != self.told[0] or self.sequences.missing != self.told[1]
            or self.sequences.doubled != self.told[2] or self.sequences.reordered != self.told[3])

    def _news(self):
        """For `fd_postproc.ops`: what has happened to frames since the last call, as counted in `stats`."""
        cdef int64_t now
        cdef int k
        now_all = self.stats
        news = {}
        for k, name in enumerate(TROUBLES):
            now = now_all[name]
            news[name] = now - self.told[k]
            self.told[k] = now
        return news

    def close(self):
        """Stop using this Receiver; the queue and its messages stay.  A thread that waits is woken, and gets
        `ReceiverClosed`.

        Raises
        ------
        ReceiverBusy
            If a thread waits still, without a time limit, because it blocks signals, or every real-time
            signal of the process has a handler.  The Receiver is closed all the same: that call ends with
            the next message, which it returns, or when the queue is removed.

        Notes
        -----
        A thread that waits without a time limit is woken by a signal of its own: the highest
        real-time signal that nothing else in the process handles.
        """
        cdef int status
        self.closed = True
        status = self._wake()
        if status < 0:
            why = "blocks signals" if status == -EINTR else f"gets no signal ({os.strerror(-status)})"
            raise ReceiverBusy(
                f"the Receiver (queue msqid:{self.msqid}, {self.channel}) is closed, but a thread {why}, and "
                "waits still: its call ends with the next message, which it returns, or by remove()")

    cdef int _wake(self) except? -1:
        """Wake the thread that waits without a time limit, if one does: 0; -EINTR: it did not wake up in a
        second; or minus errno."""
        cdef int status, tries
        for tries in range(_WAKING):  # a signal just before the system call does not end it
            if not fdc_read(&self.sleeps) or self.forks != fds_forks:
                return 0
            if pthread_equal(self.sleeper, pthread_self()):
                return 0
            status = fds_interrupt(self.sleeper)
            if status < 0:
                return status
            with nogil:
                fds_nap(1 if tries < _WAKING_FAST else 20)
        return -EINTR

    def remove(self):
        """Remove the queue and its messages from the system, and close.  Waiting threads are woken."""
        self.removed = self.closed = True
        try:
            queues.remove_queue(self.msqid)
        finally:
            self._wake()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __iter__(self):
        """An endless iterator over steps.  `remove` ends it; `close` makes it raise `ReceiverClosed`."""
        return self

    def __next__(self):
        if self.removed:
            raise StopIteration
        try:
            return self.receive()
        except (queues.QueueRemoved, ReceiverClosed):
            if self.removed:
                raise StopIteration from None
            raise

    def __repr__(self):
        cdef fds_status status
        state = " closed" if self.closed else ""
        waiting = f", {status.messages} waiting" if fds_stat(self.msqid, &status) == 0 else ""
        return (
            f"<Receiver {self.channel}{state}: queue msqid:{self.msqid}, key {queues.key_text(self.key)}, "
            f"{fdc_read(&self.n_messages)} received{waiting}>")

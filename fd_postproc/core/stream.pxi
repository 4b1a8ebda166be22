# Steps that go through FastDeploy's ZeroMQ socket: what the sampler leaves -> a compact frame -> a Step.
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset
from fd_postproc.headers.counter cimport fdc_add, fdc_read
from fd_postproc.headers.pack cimport (
    fdp_channel, fdp_fault, fdp_plan, fdp_settled, fdp_source, fdp_write,
)
from fd_postproc.headers.sections cimport fdz_padded
from fd_postproc.headers.sequences cimport FDN_MOST, fdn_begin, fdn_note, fdn_sender, fdn_sequences
from fd_postproc.headers.stream cimport fdz_sampled, fdz_sort, fdz_write
from fd_postproc.headers.wire cimport (
    FDW_COMPACT, FDW_LEGACY, FDW_MOST_STREAMED, FDW_MOST_STREAMED_BATCH, FDW_PLAIN, FDW_POOLED_NAME,
    FDW_PROMPT_NAME, FDW_SPAN_NAME, FDW_SPEC_TOPK, FDW_TOKENS_NAME, FDW_TOPK, fdw_draft, fdw_fault,
    fdw_geometry_of, fdw_is_frame, fdw_layout, fdw_message, fdw_open_streamed, fdw_plan, fdw_seal,
)

# Names of the sections that only these frames have.
TOKENS, PROMPT, POOLED, SPAN = FDW_TOKENS_NAME, FDW_PROMPT_NAME, FDW_POOLED_NAME, FDW_SPAN_NAME

cdef enum:
    _NO_TOKEN_NOW = -1


@cython.final
cdef class Sampled:
    """A step as the sampler leaves it, sorted: what the body of a compact frame holds, and what not.

    Parameters
    ----------
    tokens : tensor of int64
        Of each slot, a token, or a code below 0.
    rows : tuple of tensor, or None
        Token ids (int64) and log-probabilities (float32) of shape (rows, columns), ranks (int64) of shape
        (rows,); of the first slots, which may be fewer than all.
    slots : int
        How many there are.
    begin, end : int
        The slots that the frame speaks of; others have no token in it.
    apart : collection of int
        Slots that the body is not to hold.

    Raises
    ------
    TypeError, ValueError
        If the tensors have another dtype, or do not fit each other.
    """

    cdef HostInput tokens, ids, scores, ranks  # kept: they own what `raw` points to
    cdef fdz_sampled raw
    cdef bytes counts
    cdef readonly list apart
    """list of int: slots with a token that the body does not hold."""
    cdef int64_t live

    def __init__(self, tokens, rows, Py_ssize_t slots, Py_ssize_t begin, Py_ssize_t end, apart):
        cdef Py_ssize_t k, slot
        cdef int32_t *counts
        cdef uint8_t *marks
        self.tokens = host_input(tokens, "tokens", "int64")
        if self.tokens.size != slots:
            raise ValueError(f"{self.tokens.size} tokens for {slots} slots")
        if not 0 <= begin <= end <= slots <= FDW_MOST_STREAMED_BATCH:
            raise ValueError(
                f"slots {begin} to {end} of a step of {slots}; a frame has at most {FDW_MOST_STREAMED_BATCH}")
        self.raw.tokens = <const int64_t *>self.tokens.address
        self.raw.cols = 1
        if rows is not None:
            self._take(*rows)
        self.counts = PyBytes_FromStringAndSize(NULL, 4 * slots)
        counts = <int32_t *>PyBytes_AS_STRING(self.counts)
        marks = <uint8_t *>PyMem_RawCalloc(slots + 1, 1)
        if marks == NULL:
            raise MemoryError
        try:
            for k in range(slots):
                counts[k] = _NO_TOKEN_NOW
            for slot in apart:
                if begin <= slot < end:
                    marks[slot] = 1
            with nogil:
                self.live = fdz_sort(&self.raw, begin, end, _NO_TOKEN_NOW, marks, counts)
            self.apart = [k for k in range(begin, end) if marks[k]]
        finally:
            PyMem_RawFree(marks)

    def _take(self, ids, scores, ranks):
        self.ids = host_input(ids, "ids", "int64")
        self.scores = host_input(scores, "scores", "float32")
        self.ranks = host_input(ranks, "ranks", "int64")
        shape = self.ids.shape
        if len(shape) != 2 or self.scores.shape != shape or self.ranks.size != shape[0] or shape[1] == 0:
            raise ValueError(
                f"log-probabilities of shapes {shape}, {self.scores.shape} and {self.ranks.size}")
        self.raw.ids = <const int64_t *>self.ids.address
        self.raw.scores = <const float *>self.scores.address
        self.raw.ranks = <const int64_t *>self.ranks.address
        self.raw.rows, self.raw.cols = shape

    def token(self, Py_ssize_t slot):
        """(int, bytes): a slot's token, and its row: int64 ids, float32 scores and int64 rank; or b""."""
        cdef Py_ssize_t cols = self.raw.cols, at = slot * cols
        if not 0 <= slot < self.tokens.size:
            raise IndexError(slot)
        if self.raw.ids == NULL or slot >= self.raw.rows:
            return self.raw.tokens[slot], b""
        return self.raw.tokens[slot], (
            (<const char *>(self.raw.ids + at))[:8 * cols] + (<const char *>(self.raw.scores + at))[:4 * cols]
            + (<const char *>(self.raw.ranks + slot))[:8])

    def frame(self, bytes extra not None, uint64_t sender, uint64_t number):
        """The compact frame, with these sections.

        Raises
        ------
        ValueError
            If it is longer than a frame may be.
        """
        cdef fdw_layout any
        cdef fdw_message m
        cdef fdw_draft draft
        cdef fdw_fault fault
        cdef int status
        cdef Py_ssize_t size = len(extra)
        any.max_batch = any.spec_batch = FDW_MOST_STREAMED_BATCH
        any.top_k, any.max_draft = max(self.raw.cols - 1, 0), 1
        status = fdw_plan(&m, &any, FDW_PLAIN if self.raw.ids == NULL else FDW_TOPK, FDW_COMPACT,
                          self.tokens.size, self.live, self.raw.cols, &fault)
        if status < 0:
            raise AssertionError("a step that was measured does not fit a frame")
        if size:
            m.extra = fdz_padded(m.at.size)
            m.claimed = m.extra + size
        if m.claimed > FDW_MOST_STREAMED:
            raise ValueError(
                f"a step of {m.claimed} bytes; a frame over ZeroMQ has {FDW_MOST_STREAMED} at most")
        m.sender, m.seq = sender, number
        cdef bytes made = PyBytes_FromStringAndSize(NULL, m.claimed)
        draft.data, draft.size = <uint8_t *>PyBytes_AS_STRING(made), m.claimed
        cdef const int32_t *counts = <const int32_t *>PyBytes_AS_STRING(self.counts)
        with nogil:
            status = fdz_write(&m, &self.raw, counts, &draft)
        if status < 0:
            raise AssertionError("a planned frame did not fit its own length")
        if size:
            memset(draft.data + m.at.size, 0, m.extra - m.at.size)
            memcpy(draft.data + m.extra, PyBytes_AS_STRING(extra), size)
        if _checksums():
            fdw_seal(draft.data, draft.size)
        return made


def _is_frame(content):
    """Whether an object that was received is a compact frame, of whatever version."""
    return isinstance(content, bytes) and fdw_is_frame(PyBytes_AS_STRING(content), len(content))


def _open_streamed(content, bint drafts, int32_t depth):
    """A compact frame that came through FastDeploy's socket.

    Parameters
    ----------
    content : bytes
    drafts : bool
        Whether it holds accepted tokens of speculative decoding.
    depth : int
        Of a request, at most.

    Returns
    -------
    (Step, dict of bytes to memoryview, int)
        Its body, its sections by name, which share the frame's memory, and its sender.

    Raises
    ------
    MalformedMessage
        If it does not add up.
    """
    cdef fdw_message m
    cdef fdw_fault fault
    cdef Py_buffer view
    cdef int channel = FDW_SPEC_TOPK if drafts else FDW_TOPK
    _get_bytes(content, &view)
    try:
        if fdw_open_streamed(&m, channel, depth, view.buf, view.len, _checksums(), &fault) < 0:
            raise _malformed(channel, &fault)
        begin, m.extra = m.extra, 0  # what is behind the body is not copied
        found = {name: inside for name, _, inside in _divided(content, begin)} if begin else {}
        step = _gathered(&m)
        return step, found, m.sender
    finally:
        PyBuffer_Release(&view)


@cython.final
cdef class Sequences:
    """The numbers of the frames of each sender, counted as a `Receiver` counts those of its queue."""

    cdef fdn_sequences all

    def __cinit__(self):
        fdn_begin(&self.all)

    def note(self, uint64_t sender, uint64_t number):
        """A whole frame has come."""
        fdn_note(&self.all, sender, number)

    @property
    def stats(self):
        """dict: missing, doubled and reordered frames, of all senders."""
        return {
            "missing": fdc_read(&self.all.missing),
            "doubled": fdc_read(&self.all.doubled),
            "reordered": fdc_read(&self.all.reordered),
        }

    @property
    def senders(self):
        """dict: by sender number, as `Receiver.senders`."""
        return _senders_of(&self.all)


def _op_message(str op, dict inputs, int32_t batch, int32_t cols, int64_t width, int64_t rows, layout, *,
                int32_t stop_flag, int32_t flag, bint skip_prefill, dialect="compact", uint64_t sender=0,
                uint64_t number=0, uint32_t service=0, bint sealed=True):
    """Make the message of a save op that goes another way than a queue, or nowhere.

    `inputs` holds a HostInput for each role; the caller has checked that their sizes match.  Gaps are 0.  A
    frame gets its checksum, if one is wanted, only where it is `sealed`.
    bytes, or a Refusal if a number in them does not fit.
    """
    cdef fdp_source s
    cdef fdp_fault fault
    cdef fdw_message m
    cdef fdw_draft draft
    cdef int status, dialect_number = _dialect_number(dialect)
    cdef fdw_layout c = _c_layout(layout)
    _fill_source(&s, op, inputs, batch, cols, width, rows, stop_flag, flag, skip_prefill)
    s.depth = fdw_geometry_of(&c, fdp_channel(s.op), FDW_LEGACY, 0).depth
    cdef fdp_settled *settled = <fdp_settled *>PyMem_RawMalloc((batch + 1) * sizeof(fdp_settled))
    if settled == NULL:
        raise MemoryError
    cdef bytes made = b""
    try:
        fault.reason = -1
        with nogil:
            status = fdp_plan(&m, &s, &c, dialect_number, settled, &fault)
        if status == 0:
            m.seq, m.sender, m.service = number, sender, service
            made = PyBytes_FromStringAndSize(NULL, m.claimed)
            draft.data = <uint8_t *>PyBytes_AS_STRING(made)
            draft.size = m.claimed
            with nogil:
                if dialect_number != FDW_COMPACT:  # a frame has no gaps
                    memset(draft.data, 0, draft.size)
                status = fdp_write(&m, &s, settled, &draft, &fault)
        if status < 0:
            if fault.reason < 0:
                raise AssertionError("a planned message did not fit its own length")
            return Refusal(_REASONS[fault.reason], fault.index, fault.value, fault.bound)
        if dialect_number == FDW_COMPACT and sealed and _checksums():
            fdw_seal(draft.data, draft.size)
        return made
    finally:
        PyMem_RawFree(settled)

# Steps that go through FastDeploy's ZeroMQ socket: the numbers of tensors <-> bytes <-> a Step.
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset
from fd_postproc.headers.counter cimport fdc_add, fdc_read
from fd_postproc.headers.pack cimport (
    fdp_fault, fdp_plan, fdp_settled, fdp_source, fdp_write,
)
from fd_postproc.headers.sequences cimport FDN_MOST, fdn_begin, fdn_note, fdn_sender, fdn_sequences
from fd_postproc.headers.stream cimport fdz_fit, fdz_gather, fdz_rows, fdz_sort
from fd_postproc.headers.wire cimport (
    FDW_COMPACT, FDW_LEGACY, FDW_PLAIN, FDW_TOPK, fdw_block_size, fdw_draft, fdw_geometry_of, fdw_layout,
    fdw_message, fdw_narrow, fdw_seal,
)

cdef enum:
    _ROWS_HEAD = 8    # int32 rows and columns, before the log-probabilities of a frame
    _NO_TOKEN_NOW = -1


def _tokens_bytes(tokens):
    """The numbers of a tensor as int64, whatever its shape."""
    cdef HostInput numbers = host_input(tokens, "tokens", "int64")
    return PyBytes_FromStringAndSize(<const char *>numbers.address, 8 * numbers.size)


def _rows_bytes(ids, scores, ranks, Py_ssize_t most, Py_ssize_t first=0):
    """Log-probabilities of at most `most` rows from `first` on: int32 rows and columns, ids, float32 scores,
    ranks.

    Raises
    ------
    TypeError, ValueError
        If the tensors do not fit each other, or a number in them does not fit 32 bits.
    """
    cdef HostInput wide = host_input(ids, "ids", "int64")
    cdef HostInput reals = host_input(scores, "scores", "float32")
    cdef HostInput places = host_input(ranks, "ranks", "int64")
    if (len(wide.shape) != 2 or reals.shape != wide.shape or places.size != wide.shape[0]
            or wide.shape[1] == 0):
        raise ValueError(
            f"log-probabilities of shapes {wide.shape}, {reals.shape} and {places.shape}")
    cdef int64_t rows = max(0, min(wide.shape[0] - first, most)), cols = wide.shape[1]
    cdef int64_t cells = rows * cols, bad, late
    cdef bytes made = PyBytes_FromStringAndSize(NULL, _ROWS_HEAD + 8 * cells + 4 * rows)
    cdef char *to = PyBytes_AS_STRING(made)
    cdef int32_t head[2]
    head[0], head[1] = rows, cols
    memcpy(to, head, _ROWS_HEAD)
    to += _ROWS_HEAD
    with nogil:
        bad = fdw_narrow(<uint8_t *>to, <const int64_t *>wide.address + first * cols, cells)
        memcpy(to + 4 * cells, <const float *>reals.address + first * cols, 4 * cells)
        late = fdw_narrow(<uint8_t *>to + 8 * cells, <const int64_t *>places.address + first, rows)
    if bad >= 0 or late >= 0:
        what = f"ids[{bad // cols}, {bad % cols}]" if bad >= 0 else f"ranks[{late}]"
        raise ValueError(f"{what}: a number has no room in 32 bits")
    return made


def _rows_fit(ids, ranks):
    """Whether all numbers of log-probabilities fit 32 bits."""
    cdef HostInput wide = host_input(ids, "ids", "int64")
    cdef HostInput places = host_input(ranks, "ranks", "int64")
    cdef bint fit
    with nogil:
        fit = (fdz_fit(<const int64_t *>wide.address, wide.size)
               and fdz_fit(<const int64_t *>places.address, places.size))
    return fit


cdef int _rows_in(const char *content, Py_ssize_t size, int64_t slots, fdz_rows *r) except -1:
    """What `_rows_bytes` has made."""
    cdef int32_t head[2]
    cdef int64_t cells
    if size < _ROWS_HEAD:
        raise ValueError(f"log-probabilities of {size} bytes")
    memcpy(head, content, _ROWS_HEAD)
    r.rows, r.cols = head[0], head[1]
    if not (0 <= r.rows <= slots and r.cols > 0):
        raise ValueError(f"log-probabilities of {r.rows} rows and {r.cols} columns for {slots} slots")
    cells = r.rows * r.cols
    if size != _ROWS_HEAD + 8 * cells + 4 * r.rows:
        raise ValueError(f"log-probabilities of {r.rows} rows and {r.cols} columns in {size} bytes")
    r.ids = content + _ROWS_HEAD
    r.scores, r.ranks = r.ids + 4 * cells, r.ids + 8 * cells
    return 0


def _step_of_tokens(tokens, rows, apart, Py_ssize_t first=0):
    """A step of one token a request, of the numbers of a frame.

    Parameters
    ----------
    tokens : bytes-like
        int64, a token or a code for each slot.
    rows : bytes-like or None
        What `_rows_bytes` has made; the step has no log-probabilities without it.
    apart : collection of int
        Slots that somebody looks at closely, whatever the numbers say.
    first : int, optional
        Slot of the first token; those before it are without one in the step.

    Returns
    -------
    (Step, set of int)
        And these slots, with those whose numbers a step cannot hold; they are without a token in the step.

    Raises
    ------
    ValueError
        If the numbers do not fit each other.
    """
    cdef Py_buffer view, row_view
    cdef fdz_rows r
    cdef bint has_rows = rows is not None
    memset(&r, 0, sizeof(r))
    _get_bytes(tokens, &view)
    cdef int64_t slots = view.len // 8, live, k
    cdef unsigned char *marks = NULL
    cdef int32_t *counts = NULL
    cdef void *memory = NULL
    cdef Step step
    try:
        if has_rows:
            _get_bytes(rows, &row_view)
        try:
            if has_rows:
                _rows_in(<const char *>row_view.buf, row_view.len, slots, &r)
            marks = <unsigned char *>PyMem_RawCalloc(slots + 1, 1)
            counts = <int32_t *>PyMem_RawMalloc(4 * (first + slots) + 4)
            if marks == NULL or counts == NULL:
                raise MemoryError
            for slot in apart:
                k = slot - first
                if 0 <= k < slots:
                    marks[k] = 1
            for k in range(first):
                counts[k] = _NO_TOKEN_NOW
            with nogil:
                live = fdz_sort(<const char *>view.buf, slots, &r, _NO_TOKEN_NOW, marks, counts + first)
            channel = FDW_TOPK if has_rows else FDW_PLAIN
            if not has_rows:
                r.cols = 1
            memory = PyMem_RawMalloc(fdw_block_size(channel, first + slots, live, r.cols))
            if memory == NULL:
                raise MemoryError
            step = _step_in(memory, channel, _NO_DIALECT, 0, 0, first + slots, live, r.cols)
            memcpy(step.raw.block.counts, counts, 4 * (first + slots))
            step.raw.block.offsets[0] = 0
            for k in range(first + slots):
                step.raw.block.offsets[k + 1] = step.raw.block.offsets[k] + (counts[k] == 1)
            with nogil:
                fdz_gather(<const char *>view.buf, slots, &r, counts + first, step.raw.block.ids,
                           step.raw.block.scores, step.raw.block.ranks)
            return step, {first + k for k in range(slots) if marks[k]}
        finally:
            if has_rows:
                PyBuffer_Release(&row_view)
    finally:
        PyMem_RawFree(marks)
        PyMem_RawFree(counts)
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


def _op_frame(str op, dict inputs, int32_t batch, int32_t cols, int64_t width, int64_t rows, layout, *,
              int32_t stop_flag, int32_t flag, bint skip_prefill):
    """For the plug-in's worker side: what was passed to a save op as a compact frame that goes another way
    than a queue, without a number.

    `inputs` holds a HostInput for each role; the caller has checked that their sizes match.
    bytes, or a Refusal if a number in them does not fit.
    """
    cdef fdp_source s
    cdef fdp_fault fault
    cdef fdw_message m
    cdef fdw_draft draft
    cdef int status
    cdef fdw_layout c = _c_layout(layout)
    _fill_source(&s, op, inputs, batch, cols, width, rows, stop_flag, flag, skip_prefill)
    s.depth = c.max_draft
    cdef fdp_settled *settled = <fdp_settled *>PyMem_RawMalloc((batch + 1) * sizeof(fdp_settled))
    if settled == NULL:
        raise MemoryError
    cdef bytes made = b""
    try:
        fault.reason = -1
        with nogil:
            status = fdp_plan(&m, &s, &c, FDW_COMPACT, settled, &fault)
        if status == 0:
            m.seq = m.sender = 0
            made = PyBytes_FromStringAndSize(NULL, m.claimed)
            draft.data = <uint8_t *>PyBytes_AS_STRING(made)
            draft.size = m.claimed
            with nogil:
                status = fdp_write(&m, &s, settled, &draft, &fault)
        if status < 0:
            if fault.reason < 0:
                raise AssertionError("a planned message did not fit its own length")
            return Refusal(_REASONS[fault.reason], fault.index, fault.value, fault.bound)
        if _checksums():
            fdw_seal(draft.data, draft.size)
        return made
    finally:
        PyMem_RawFree(settled)

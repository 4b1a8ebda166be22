# Steps that come as a list of objects, one for each request (FD_USE_GET_SAVE_OUTPUT_V1).
cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.limits cimport INT_MAX, INT_MIN
from libc.stdint cimport int32_t, int64_t
from fd_postproc.headers.shared cimport fdh_file, fdh_read

from fd_postproc._core import _rebuild_step

cdef enum:
    _MOST_SLOTS = 1 << 16
    _NO_TOKEN = -1


@cython.final
cdef class Entries:
    """A step's objects as a `Step`, as far as it has room for what they hold.

    Attributes
    ----------
    step : Step
        `topk` if any request has log-probabilities, else `plain`; a code, or one token a request.
    apart : set of int
        Slots whose object says more, or something else: they are without a token in the step.
    masks : dict of int to list of int
        Sampling masks by slot.
    """

    cdef readonly Step step
    cdef readonly set apart
    cdef readonly dict masks
    cdef list by_slot

    def entry(self, Py_ssize_t slot):
        """What has come for a slot, or None."""
        return self.by_slot[slot] if 0 <= slot < len(self.by_slot) else None


@cython.final
cdef class _Rows:
    """Memory for the rows of a step."""

    cdef int32_t *counts
    cdef int32_t *ids
    cdef float *scores
    cdef int32_t *ranks
    cdef Py_ssize_t rows, cols

    def __dealloc__(self):
        PyMem_Free(self.counts)
        PyMem_Free(self.ids)
        PyMem_Free(self.scores)
        PyMem_Free(self.ranks)

    cdef int reserve(self, Py_ssize_t batch, Py_ssize_t rows, Py_ssize_t cols) except -1:
        cdef Py_ssize_t i
        self.cols = cols
        self.counts = <int32_t *>PyMem_Malloc(batch * sizeof(int32_t) + 1)
        self.ids = <int32_t *>PyMem_Malloc(rows * cols * sizeof(int32_t) + 1)
        self.scores = <float *>PyMem_Malloc(rows * cols * sizeof(float) + 1)
        self.ranks = <int32_t *>PyMem_Malloc(rows * sizeof(int32_t) + 1)
        if self.counts == NULL or self.ids == NULL or self.scores == NULL or self.ranks == NULL:
            raise MemoryError
        for i in range(batch):
            self.counts[i] = _NO_TOKEN
        return 0

    cdef bint take(self, tuple tensors, int64_t token) noexcept:
        """Add a row of log-probabilities of a token; False, and nothing added, if it does not fit."""
        cdef SharedTensor ids = <SharedTensor>PyTuple_GET_ITEM(tensors, 0)
        cdef SharedTensor scores = <SharedTensor>PyTuple_GET_ITEM(tensors, 1)
        cdef SharedTensor ranks = <SharedTensor>PyTuple_GET_ITEM(tensors, 2)
        if not (ids.is_row(False, self.cols) and scores.is_row(True, self.cols) and ranks.is_row(False, 1)):
            return False
        cdef int64_t *wide = <int64_t *>ids.file.numbers
        cdef int64_t rank = (<int64_t *>ranks.file.numbers)[0]
        cdef int32_t *row = self.ids + self.rows * self.cols
        cdef Py_ssize_t k
        if wide[0] != token or not INT_MIN <= rank <= INT_MAX:
            return False
        for k in range(self.cols):
            if not INT_MIN <= wide[k] <= INT_MAX:
                return False
            row[k] = <int32_t>wide[k]
        memcpy(self.scores + self.rows * self.cols, scores.file.numbers, self.cols * sizeof(float))
        self.ranks[self.rows] = <int32_t>rank
        self.rows += 1
        return True

    cdef Step step(self, Py_ssize_t batch, bint logprobs):
        cdef Py_ssize_t cells = self.rows * self.cols
        cdef Py_ssize_t scored = self.rows if logprobs else 0
        return _rebuild_step(
            "topk" if logprobs else "plain", None, 0, 0, self.cols,
            PyBytes_FromStringAndSize(<char *>self.counts, batch * sizeof(int32_t)),
            PyBytes_FromStringAndSize(<char *>self.ids, cells * sizeof(int32_t)),
            PyBytes_FromStringAndSize(<char *>self.scores, scored * self.cols * sizeof(float)),
            PyBytes_FromStringAndSize(<char *>self.ranks, scored * sizeof(int32_t)))


def entries_of(list datas not None, bint logprobs):
    """`Entries` of what FastDeploy's worker sends for a step.

    Parameters
    ----------
    datas : list of StreamTransferData
    logprobs : bool
        Whether log-probabilities are for the clients; FastDeploy leaves them out otherwise.

    Returns
    -------
    Entries or None
        None if the slots are not told in ascending order, as every worker does.
    """
    cdef Py_ssize_t n = len(datas), i, slot, last = -1
    cdef list owns = []
    for data in datas:
        own = getattr(data, "__dict__", None)
        if type(own) is not dict:
            return None
        slot = _slot_of(<dict>own)
        if not last < slot < _MOST_SLOTS:
            return None
        last = slot
        owns.append(own)
    cdef Py_ssize_t cols = 0
    if logprobs:
        cols = _read_all(owns)
    cdef _Rows rows = _Rows.__new__(_Rows)
    rows.reserve(last + 1, n, max(cols, 1))
    cdef Entries made = Entries.__new__(Entries)
    made.apart, made.masks, made.by_slot = set(), {}, [None] * (last + 1)
    cdef int64_t token
    cdef dict one
    for i in range(n):
        one = owns[i]
        slot = _slot_of(one)
        made.by_slot[slot] = datas[i]
        if not _token_of(_dict_get(one, "tokens"), &token):
            made.apart.add(slot)
        elif token < 0:
            rows.counts[slot] = <int32_t>token
        elif not _fits(rows, one, token, logprobs, cols):
            made.apart.add(slot)
        else:
            rows.counts[slot] = 1
            mask = _dict_get(one, "sampling_mask")
            if mask is not None:
                made.masks[slot] = mask.tolist()
    made.step = rows.step(last + 1, cols > 0)
    return made


cdef Py_ssize_t _slot_of(dict own) except -2:
    """Its slot; -1 if that is no number."""
    cdef int overflow
    slot = _dict_get(own, "batch_id")
    if not PyLong_CheckExact(slot):
        return -1
    cdef long long value = PyLong_AsLongLongAndOverflow(slot, &overflow)
    return -1 if overflow or value < 0 else value


cdef Py_ssize_t _read_all(list owns) except -1:
    """Read the tensors of all log-probabilities; the columns of the first that can be told, or 0."""
    cdef list tensors = []
    cdef Py_ssize_t cols = 0, i
    for own in owns:
        found = _tensors_of(_dict_get(<dict>own, "logprobs"))
        if found is not None:
            tensors.extend(found)
            if cols == 0:
                cols = (<SharedTensor>(<tuple>found)[0]).shape[-1]
    cdef Py_ssize_t n = len(tensors)
    cdef fdh_file **each = <fdh_file **>PyMem_Malloc(n * sizeof(void *) + 1)
    if each == NULL:
        raise MemoryError
    try:
        for i in range(n):
            each[i] = &(<SharedTensor>PyList_GET_ITEM(tensors, i)).file
        with nogil:
            for i in range(n):
                fdh_read(each[i])
    finally:
        PyMem_Free(each)
    return cols


cdef object _tensors_of(logprobs):
    """The three tensors of log-probabilities, if they are still in their files; else None."""
    if not isinstance(logprobs, tuple) or len(<tuple>logprobs) != 3:
        return None
    for one in <tuple>logprobs:
        if type(one) is not SharedTensor:
            return None
    return logprobs


cdef bint _token_of(tokens, int64_t *token) except -1:
    """The one token of an array of one int64; False if it is something else, or beyond 32 bits."""
    cdef Py_buffer view
    cdef bint known
    if tokens is None or not PyObject_CheckBuffer(tokens):
        return False
    PyObject_GetBuffer(tokens, &view, PyBUF_FORMAT | PyBUF_ND)
    known = (view.itemsize == 8 and view.len == 8 and view.format != NULL
             and view.format[0] in (c"l", c"q") and view.format[1] == 0)
    if known:
        token[0] = (<int64_t *>view.buf)[0]
        known = INT_MIN <= token[0] <= INT_MAX
    PyBuffer_Release(&view)
    return known


cdef bint _fits(_Rows rows, dict own, int64_t token, bint logprobs, Py_ssize_t cols) except -1:
    """Add a request's token to the rows; False, and nothing added, if its object says more than a row can."""
    if not logprobs:
        rows.ids[rows.rows] = <int32_t>token
        rows.rows += 1
        return True
    if _dict_get(own, "prompt_logprobs") is not None:
        return False
    found = _dict_get(own, "logprobs")
    if cols > 0:
        found = _tensors_of(found)
        return found is not None and rows.take(<tuple>found, token)
    if found is not None:
        return False
    rows.ids[rows.rows] = <int32_t>token
    rows.rows += 1
    return True

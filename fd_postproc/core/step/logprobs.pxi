# Logprobs: a view of rows and columns of a Step.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.slice cimport PySlice_AdjustIndices
from libc.stdint cimport int32_t
from libc.string cimport memcmp, memcpy
from fd_postproc.headers.lists cimport float_rows, int_row, int_rows, owned


@cython.final
@cython.no_gc
@cython.freelist(512)
cdef class Logprobs:
    """The logprobs of some accepted tokens: a view of rows and columns of a Step.

    No Python number is created until it is needed; each access makes new lists, so keep the result if you
    use it twice.  As FastDeploy's ``LogprobsLists``, it is a sequence of three lists, which have the same
    names here: it has an index, can be unpacked and iterated over, and its length is 3.

    The Step's memory lives as long as any view of it: to keep only a small part of a large step, pickle a
    view or keep its lists.

    Attributes
    ----------
    rows, cols : int
        Accepted tokens and columns.
    """

    cdef Step step           # owns the rows that are looked at
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t rows
    cdef Py_ssize_t column
    cdef readonly Py_ssize_t cols

    def __init__(self):
        raise TypeError("a Logprobs is made by Step.logprobs()")

    cdef const int32_t *_ids(self) noexcept:
        return self.step.raw.block.ids + self.first * self.step.raw.cols + self.column

    cdef const float *_scores(self) noexcept:
        return self.step.raw.block.scores + self.first * self.step.raw.cols + self.column

    cdef const int32_t *_ranks(self) noexcept:
        return self.step.raw.block.ranks + self.first

    @property
    def logprob_token_ids(self):
        """list of list of int, [rows][cols]: token ids; the sampled token first."""
        return owned(int_rows(self._ids(), self.step.raw.cols, self.rows, self.cols))

    @property
    def logprobs(self):
        """list of list of float, [rows][cols]: log-probabilities of those tokens."""
        return owned(float_rows(self._scores(), self.step.raw.cols, self.rows, self.cols))

    @property
    def sampled_token_ranks(self):
        """list of int, [rows]: rank of the sampled token in the vocabulary, 1 being the likeliest."""
        return owned(int_row(self._ranks(), 1, self.rows))

    def tolists(self):
        """``(logprob_token_ids, logprobs, sampled_token_ranks)``."""
        return self.logprob_token_ids, self.logprobs, self.sampled_token_ranks

    def slice_rows(self, start, end):
        """A view of rows ``[start:end]`` (as a list is sliced); TypeError if they are not whole numbers."""
        cdef Py_ssize_t low = _limit(start, 0), high = _limit(end, self.rows)
        cdef Py_ssize_t n = PySlice_AdjustIndices(self.rows, &low, &high, 1)
        return _view(self.step, self.first + low, n, self.column, self.cols)

    def slice_columns(self, start, end):
        """A view of columns ``[start:end]`` of every row; ranks stay."""
        cdef Py_ssize_t low = _limit(start, 0), high = _limit(end, self.cols)
        cdef Py_ssize_t n = PySlice_AdjustIndices(self.cols, &low, &high, 1)
        return _view(self.step, self.first, self.rows, self.column + low, n)

    def __len__(self):
        return 3

    def __getitem__(self, place):
        return self.tolists()[place]

    def __iter__(self):
        return iter(self.tolists())

    def __array__(self, dtype=None, copy=None):
        raise TypeError(
            "a Logprobs is no array: it is two tables and a list; give NumPy one of its logprob_token_ids, "
            "logprobs and sampled_token_ranks, or the step's own Step.ids, Step.scores and Step.ranks")

    def __eq__(self, other):
        """Same rows (NaN equals NaN), or a tuple of three equal lists such as LogprobsLists."""
        if isinstance(other, tuple):
            return self.tolists() == other
        if not isinstance(other, Logprobs):
            return NotImplemented
        cdef Logprobs that = <Logprobs>other
        cdef Py_ssize_t j, a, b
        if self.rows != that.rows or self.cols != that.cols:
            return False
        if memcmp(self._ranks(), that._ranks(), 4 * self.rows):
            return False
        for j in range(self.rows):
            a = j * self.step.raw.cols
            b = j * that.step.raw.cols
            if (memcmp(self._ids() + a, that._ids() + b, 4 * self.cols)
                    or not _same_scores(self._scores() + a, that._scores() + b, self.cols)):
                return False
        return True

    __hash__ = None

    def __reduce__(self):
        cdef Py_ssize_t j, pitch = self.step.raw.cols
        cdef bytes ids = PyBytes_FromStringAndSize(NULL, 4 * self.rows * self.cols)
        cdef bytes scores = PyBytes_FromStringAndSize(NULL, 4 * self.rows * self.cols)
        for j in range(self.rows):
            memcpy(PyBytes_AS_STRING(ids) + 4 * j * self.cols, self._ids() + j * pitch, 4 * self.cols)
            memcpy(PyBytes_AS_STRING(scores) + 4 * j * self.cols, self._scores() + j * pitch, 4 * self.cols)
        ranks = PyBytes_FromStringAndSize(<char *>self._ranks(), 4 * self.rows)
        return _rebuild_logprobs, (self.rows, self.cols, ids, scores, ranks)

    def __repr__(self):
        return f"<Logprobs: {self.rows} tokens, {self.cols} columns>"


cdef Py_ssize_t _limit(value, Py_ssize_t default) except? -1:
    if value is None:
        return default
    if not PyIndex_Check(value):
        raise TypeError(
            "a slice's end must be a whole number or None, "
            f"not {checks.shown(value)} ({checks.kind_of(value)})")
    return _clipped_whole(value)


cdef Logprobs _view(Step step, Py_ssize_t first, Py_ssize_t rows, Py_ssize_t column, Py_ssize_t cols):
    cdef Logprobs view = Logprobs.__new__(Logprobs)
    view.step = step
    view.first = first
    view.rows = rows
    view.column = column
    view.cols = cols
    return view


def _rebuild_logprobs(int32_t rows, int32_t cols, bytes ids, bytes scores, bytes ranks):
    """A Logprobs over a Step of its own (for unpickling)."""
    if rows < 0 or cols < 0:
        raise ValueError(f"logprobs of {rows} rows and {cols} columns")
    if cols == 0:  # a view of no columns still has rows and ranks
        ids = scores = bytes(4 * rows)
    cdef Step step = _rebuild_step("spec_topk", None, 3, 1, max(cols, 1), rows.to_bytes(4, "little"),
                                   ids, scores, ranks)
    return _view(step, 0, rows, 0, cols)

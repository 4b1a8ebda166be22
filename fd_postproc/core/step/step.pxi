# Step: the one in-memory form of every message.
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp
from fd_postproc.headers.lists cimport float_rows, int_row, int_rows, new_list, owned, set_item
from fd_postproc.headers.wire cimport (
    FDW_COMPACT, FDW_PLAIN, FDW_SPEC_TOPK, FDW_TOPK, fdw_block, fdw_has_logprobs, fdw_is_flag, fdw_step,
)


cdef Py_ssize_t _request(Step step, i) except -1:
    """A request's index as a caller gave it, checked."""
    cdef Py_ssize_t index
    cdef int beyond = 0
    if PyLong_CheckExact(i):  # nearly always
        index = PyLong_AsLongLongAndOverflow(i, &beyond)
        if not beyond and 0 <= index < step.raw.batch:
            return index
    if not PyIndex_Check(i):
        raise TypeError(
            f"the index of a request must be a whole number, not {checks.shown(i)} ({checks.kind_of(i)})")
    index = _clipped_whole(i)
    if not 0 <= index < step.raw.batch:
        raise IndexError(
            f"the step has no request {checks.shown(i)}: it has {step.raw.batch}, counted from 0")
    return index


cdef int _check_logprobs(Step step) except -1:
    if step.raw.block.scores == NULL:
        raise ValueError(f"channel {step.channel!r} carries no logprobs")
    return 0


@cython.final
@cython.freelist(8)
cdef class Step:
    """One decode step: the accepted tokens of every request, and their logprobs.

    Made by `decode`, `Receiver.receive` or `Step.from_arrays`; never changed afterwards.  It owns one block
    of memory that holds accepted rows only.

    Attributes
    ----------
    channel : str
        ``"plain"``, ``"topk"``, ``"spec"`` or ``"spec_topk"``.
    dialect : str or None
        How it was sent: ``"compact"`` in our own frames; otherwise ``"packed"`` if the header gave the number
        of columns, and ``"legacy"`` if not (also on channels without logprobs, which have one stock form).
        None for a step made by `from_arrays`.
    flag : int
        3 target, 4 draft; 0 on channels that have no such word.
    stop_flag : int
        First header word, unchanged: positive while the worker has something left to do.
    batch, rows, cols : int
        Requests; accepted tokens of all requests; logprob columns (1 on channels without logprobs).
    seq : int or None
        The sender's number of this frame, from 0; None on FastDeploy's own dialects, which have none.
    """

    # Its C attributes are declared in _core.pxd, for the extensions that read them.

    def __init__(self):
        raise TypeError("a Step is made by decode(), Receiver.receive() or Step.from_arrays()")

    def __dealloc__(self):
        PyMem_RawFree(self.memory)

    @property
    def channel(self):
        return _CHANNEL_NAMES[self.raw.channel]

    @property
    def dialect(self):
        return _DIALECT_NAMES.get(self.dialect_number)

    @property
    def flag(self):
        return self.raw.flag

    @property
    def stop_flag(self):
        return self.raw.stop_flag

    @property
    def batch(self):
        return self.raw.batch

    @property
    def cols(self):
        return self.raw.cols

    @property
    def rows(self):
        return self.raw.rows

    @property
    def seq(self):
        return self.raw.seq if self.dialect_number == FDW_COMPACT else None

    @property
    def counts(self):
        """list of int, one per request: accepted tokens, or the negative code, unchanged.

        -1 no token this step, -3 recovery stop, -9 preempted.
        """
        return owned(int_row(self.raw.block.counts, 1, self.raw.batch))

    @property
    def offsets(self):
        """memoryview, int32[batch + 1]: first row of each request; codes have no rows."""
        return _part(self, self.raw.block.offsets, "i", self.raw.batch + 1)

    @property
    def ids(self):
        """memoryview, int32[rows, cols]: token ids; column 0 is the sampled token."""
        return _part(self, self.raw.block.ids, "i", self.raw.rows, self.raw.cols)

    @property
    def scores(self):
        """memoryview, float32[rows, cols]: log-probabilities; None on channels without logprobs."""
        if self.raw.block.scores == NULL:
            return None
        return _part(self, self.raw.block.scores, "f", self.raw.rows, self.raw.cols)

    @property
    def ranks(self):
        """memoryview, int32[rows]: rank of the sampled token; None on channels without logprobs."""
        if self.raw.block.ranks == NULL:
            return None
        return _part(self, self.raw.block.ranks, "i", self.raw.rows)

    @property
    def masks(self):
        """dict of int to list, by request: its sampling mask, the ids of which one was sampled.

        A list of int, or, with speculative decoding, a list of such lists, one for each accepted token.  None
        if the message carried no masks: only a compact frame does.
        """
        content = _in_extra(self, MASKS)
        return None if content is None else _masks_of(content, self.raw.batch)

    @property
    def weight_version(self):
        """str or None: which weights of the model have made the step, if the sender has said so."""
        content = _in_extra(self, WEIGHTS)
        return None if content is None else bytes(content).decode("utf-8", "replace")

    def token_ids(self, i):
        """Accepted tokens of request `i`, in order; empty if its count is 0 or a code.

        Returns
        -------
        list of int

        Raises
        ------
        IndexError
            If `i` is not in ``range(batch)``.
        TypeError
            If it is not a whole number.
        """
        cdef Py_ssize_t request = _request(self, i)
        cdef int32_t first = self.raw.block.offsets[request]
        return owned(int_row(self.raw.block.ids + <int64_t>first * self.raw.cols, self.raw.cols,
                             self.raw.block.offsets[request + 1] - first))

    def logprobs(self, i):
        """A view of request `i`'s logprobs; nothing is copied.

        Returns
        -------
        Logprobs
            One row per accepted token.

        Raises
        ------
        IndexError
            If `i` is not in ``range(batch)``.
        ValueError
            If the channel carries no logprobs.
        TypeError
            If `i` is not a whole number.
        """
        cdef Py_ssize_t request = _request(self, i)
        _check_logprobs(self)
        cdef int32_t first = self.raw.block.offsets[request]
        return _view(self, first, self.raw.block.offsets[request + 1] - first, 0, self.raw.cols)

    def tolists(self):
        """Everything as nested lists, made in bulk.

        Returns
        -------
        ids : list of list of list of int
            ``ids[i][j][k]``: request, accepted token, column.
        scores : list of list of list of float, or None
            Likewise; None on channels without logprobs.
        ranks : list of list of int, or None
            ``ranks[i][j]``.
        """
        cdef fdw_block *b = &self.raw.block
        cdef Py_ssize_t cols = self.raw.cols, i, first, n
        cdef list ids = owned(new_list(self.raw.batch)), scores = None, ranks = None
        if b.scores != NULL:
            scores = owned(new_list(self.raw.batch))
            ranks = owned(new_list(self.raw.batch))
        for i in range(self.raw.batch):
            first = b.offsets[i]
            n = b.offsets[i + 1] - first
            set_item(<PyObject *>ids, i, int_rows(b.ids + first * cols, cols, n, cols))
            if b.scores != NULL:
                set_item(<PyObject *>scores, i, float_rows(b.scores + first * cols, cols, n, cols))
                set_item(<PyObject *>ranks, i, int_row(b.ranks + first, 1, n))
        return ids, scores, ranks

    @classmethod
    def from_arrays(cls, channel, counts, ids, scores=None, ranks=None, *, flag=3, stop_flag=1, masks=None,
                    weight_version=None, as_recorded=False):
        """Make a step from arrays; they are copied.

        Parameters
        ----------
        channel : {"plain", "topk", "spec", "spec_topk"}
        counts : array_like of int, shape (batch,)
            Accepted tokens of each request, or a negative code.  On ``plain`` and ``topk`` 1 or a code.  This
            and the other arrays may be Paddle or PyTorch tensors in host memory.
        ids : array_like of int, shape (rows, cols)
            Token ids of the accepted rows; ``(rows,)`` is taken as one column.  rows is the sum of the
            positive counts.  How many requests and columns one message takes depends on the sender's layout.
        scores : array_like of float, shape (rows, cols), optional
            Log-probabilities, kept as float32 whatever their width (bfloat16 and float16, too); needed on
            ``topk`` and ``spec_topk``, refused elsewhere.
        ranks : array_like of int, shape (rows,), optional
            Likewise.
        flag : int, optional
            3 target, 4 draft, or 0; used on ``spec_topk`` only.
        stop_flag : int, optional
            First header word, 32 bits, but not -2: by that a get op says that no message has come.
        masks : dict of int to array_like of int, or to list of array_like of int, optional
            By request, its sampling mask, or one for each of its accepted tokens: see `masks`.  Only a
            compact frame can carry them, and 1 MiB of them at most.
        weight_version : str, optional
            Which weights of the model have made the step, up to 64 bytes of UTF-8.
        as_recorded : bool, optional
            Keep values that no model gives, as a recording may hold them: negative counts that are no codes
            (-1, -3, -9), scores that are NaN or positive, ranks below 1, a stop flag of -2.  Scores of up
            to 0.001 are kept in any case: the rounding of a softmax gives them (float16's step at 1 is
            2**-10).

        Raises
        ------
        TypeError
            If an argument is of another kind: floats for integers, strings, None.
        ValueError
            If shapes do not match, a number does not fit its type, the channel cannot carry it, a value is
            impossible and `as_recorded` is false, or a tensor is not in host memory or has no memory.
        """
        cdef int number = _channel_number(channel)
        counts_ = arrays.int32_array(counts, "counts", 1)
        ids_ = arrays.int32_array(ids, "ids", 2)
        cdef Py_ssize_t rows = int(np.maximum(counts_, 0).sum(dtype=np.int64)), cols = ids_.shape[1]
        if ids_.shape[0] != rows:
            raise ValueError(f"ids has {ids_.shape[0]} rows, but counts add up to {rows} tokens")
        if cols < 1:
            raise ValueError("ids has no column; column 0 is the sampled token")
        if fdw_has_logprobs(number):
            if scores is None or ranks is None:
                missing = "scores" if scores is None else "ranks"
                raise ValueError(f"channel {channel!r} needs scores and ranks, and {missing} is None")
            scores_ = arrays.float32_array(scores, "scores", 2)
            if scores_.shape != ids_.shape:
                raise ValueError(f"scores has shape {scores_.shape}, ids {ids_.shape}: give each id a score")
            ranks_ = arrays.int32_array(ranks, "ranks", 1)
            if ranks_.shape[0] != rows:
                raise ValueError(f"ranks has {ranks_.shape[0]} elements for {rows} rows")
        else:
            if scores is not None or ranks is not None:
                raise ValueError(f"channel {channel!r} carries no scores or ranks: leave both out, or use "
                                 "topk or spec_topk")
            if cols != 1:
                raise ValueError(f"channel {channel!r} carries 1 column, not {cols}")
            scores_ = ranks_ = None
        if not as_recorded:
            arrays.refuse_impossible(counts_, scores_, ranks_)
        if number == FDW_PLAIN or number == FDW_TOPK:
            if (ids_[:, 0] < 0).any():
                raise ValueError(
                    f"a sampled token of channel {channel!r} is negative: write the code as its count")
        flag = checks.whole_number(flag, "flag", 0, 255, "3 is a target, 4 a draft message")
        if number != FDW_SPEC_TOPK:
            flag = 0
        elif not fdw_is_flag(flag):
            raise ValueError(f"flag {flag} is not one of 3 (target), 4 (draft), 0 (neither)")
        stop_flag = checks.whole_number(stop_flag, "stop_flag", -(1 << 31), (1 << 31) - 1)
        if stop_flag == -2 and not as_recorded:
            raise ValueError("stop_flag is -2: a get op says by it that no message has come; "
                             "as_recorded=True keeps any value")
        return _rebuild_step(channel, None, flag, stop_flag, cols, counts_.tobytes(), ids_.tobytes(),
                             b"" if scores_ is None else scores_.tobytes(),
                             b"" if ranks_ is None else ranks_.tobytes(), 0,
                             _extra_of(masks, weight_version, len(counts_)))

    def __reduce__(self):
        cdef fdw_block *b = &self.raw.block
        cdef Py_ssize_t cells = <Py_ssize_t>self.raw.rows * self.raw.cols
        return _rebuild_step, (
            self.channel, self.dialect, self.flag, self.stop_flag, self.cols,
            PyBytes_FromStringAndSize(<char *>b.counts, 4 * self.raw.batch),
            PyBytes_FromStringAndSize(<char *>b.ids, 4 * cells),
            PyBytes_FromStringAndSize(<char *>b.scores, 4 * cells) if b.scores != NULL else b"",
            PyBytes_FromStringAndSize(<char *>b.ranks, 4 * self.raw.rows) if b.ranks != NULL else b"",
            self.raw.seq, self.extra,
        )

    def __array__(self, dtype=None, copy=None):
        raise TypeError(
            "a Step is no array but several: give NumPy one of its counts, offsets, ids, scores and ranks, "
            "as in np.asarray(step.ids)")

    def __eq__(self, other):
        """Same channel, flags, counts, ids, scores (NaN equals NaN), ranks and sections; dialect and seq may
        differ."""
        if not isinstance(other, Step):
            return NotImplemented
        cdef fdw_step *a = &self.raw
        cdef fdw_step *b = &(<Step>other).raw
        cdef Py_ssize_t cells = <Py_ssize_t>a.rows * a.cols
        if (a.channel != b.channel or a.flag != b.flag or a.stop_flag != b.stop_flag or a.batch != b.batch
                or a.rows != b.rows or a.cols != b.cols):
            return False
        if memcmp(a.block.counts, b.block.counts, 4 * a.batch) or memcmp(a.block.ids, b.block.ids, 4 * cells):
            return False
        if self.extra != (<Step>other).extra:
            return False
        return a.block.scores == NULL or (
            memcmp(a.block.ranks, b.block.ranks, 4 * a.rows) == 0
            and _same_scores(a.block.scores, b.block.scores, cells))

    __hash__ = None

    def __repr__(self):
        kind = {3: " target", 4: " draft"}.get(self.flag, f" flag {self.flag}") if self.flag else ""
        columns = f", {self.cols} columns" if fdw_has_logprobs(self.raw.channel) else ""
        dialect = f" {self.dialect}" if self.dialect else ""
        return f"<Step {self.channel}{dialect}{kind}: {self.batch} requests, {self.rows} tokens{columns}>"

# A result's output as the numbers of its message, which become an object at the first access.
#
# The sender's thread packs it from the numbers; little else looks at it.
cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.long cimport PyLong_FromLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy
from fd_postproc._core cimport Step
from fd_postproc.headers.lists cimport (
    drop_reference, float_rows, int_row, int_rows, new_float, new_list,
)
from fd_postproc.headers.msgpack cimport (
    fdm_array, fdm_float, fdm_integer, fdm_out, fdm_put_logprobs, fdm_room, fdm_token,
)
from fd_postproc.headers.wire cimport fdw_block

cdef enum:
    _INDEX, _SEND, _TOKENS, _DRAFTS, _LOGPROB, _TOP, _TEXT, _N_VARYING


@cython.final
@cython.internal
@cython.no_gc
cdef class Accepted(Late):
    """Tokens that a request has accepted in a step; as a value, its output.

    The numbers are a copy, an eighth of the lists' size.  A result that waits long must not keep its whole
    step.
    """

    cdef Outputs outputs
    cdef int64_t sent     # tokens of the request before these
    cdef int32_t index    # its slot
    cdef bint has_text    # "", which the sender's thread gives to what has tokens
    cdef Py_ssize_t rows, cols
    cdef int32_t *ids
    cdef float *scores    # NULL: there are none, and one column
    cdef int32_t *ranks

    def __dealloc__(self):
        PyMem_Free(self.ids)

    cdef int copy(self, Step step, Py_ssize_t slot, Py_ssize_t rows) except -1:
        """Copy the first `rows` rows of a slot."""
        cdef fdw_block *b = &step.raw.block
        cdef Py_ssize_t cols = step.raw.cols, first = b.offsets[slot], cells = rows * cols, j
        self.take_room(rows, cols if b.scores != NULL else 1, b.scores != NULL)
        if b.scores == NULL:
            for j in range(rows):
                self.ids[j] = b.ids[(first + j) * cols]
            return 0
        memcpy(self.ids, b.ids + first * cols, cells * sizeof(int32_t))
        memcpy(self.scores, b.scores + first * cols, cells * sizeof(float))
        memcpy(self.ranks, b.ranks + first, rows * sizeof(int32_t))
        return 0

    cdef int take_room(self, Py_ssize_t rows, Py_ssize_t cols, bint scored) except -1:
        cdef Py_ssize_t cells = rows * cols
        self.rows, self.cols = rows, cols
        self.ids = <int32_t *>PyMem_Malloc((2 * cells + rows if scored else rows) * sizeof(int32_t))
        if self.ids == NULL:
            raise MemoryError
        if scored:
            self.scores, self.ranks = <float *>(self.ids + cells), self.ids + 2 * cells
        return 0

    cdef object made(self):
        cdef Outputs outputs = self.outputs
        cdef Rows rows
        output = _owned_object(outputs.blank(self.index, PyLong_FromLongLong(self.sent)))
        cdef PyObject *out = <PyObject *>output
        give(out, outputs.at[_TOKENS], _untrack(int_row(self.ids, self.cols, self.rows)))
        if self.has_text:
            put(out, outputs.at[_TEXT], "")
        if self.scores != NULL:
            rows = Rows.__new__(Rows)
            rows.accepted = self
            put(out, outputs.at[_TOP], rows)
            give(out, outputs.at[_LOGPROB], new_float(self.scores[(self.rows - 1) * self.cols]))
        return output

    cdef int packed(self, fdm_out *out) except -1:
        cdef Pattern pattern = self.outputs.packed_pattern
        cdef Py_ssize_t k, n, done = 0
        if pattern is None:
            return 0
        for k in range(_N_VARYING):
            n = self.outputs.places[k]
            if self._varies(self.outputs.order[k]):
                pattern.copy_to(out, n, &done)
                self._put(out, self.outputs.order[k])
        return pattern.copy_rest(out, done)

    cdef bint _varies(self, int field) noexcept:
        """Whether a field's value is another than the pattern's."""
        if field == _TOP or field == _LOGPROB:
            return self.scores != NULL
        return field != _TEXT or self.has_text

    cdef int _put(self, fdm_out *out, int field) except -1:
        """Write a field's value."""
        cdef unsigned char *p
        cdef Py_ssize_t j
        if field == _TOP:
            return fdm_put_logprobs(out, self.ids, self.scores, self.ranks, self.rows, self.cols)
        fdm_room(out, 9 + 5 * self.rows)
        p = out.at + out.n
        if field == _LOGPROB:
            p = fdm_float(p, self.scores[(self.rows - 1) * self.cols])
        elif field == _INDEX:
            p = fdm_integer(p, self.index)
        elif field == _SEND:
            p = fdm_integer(p, self.sent)
        elif field == _TEXT:
            p[0] = 0xa0
            p += 1
        else:
            p = fdm_array(p, self.rows if field == _TOKENS else 0)
            if field == _TOKENS:
                for j in range(self.rows):
                    p = fdm_token(p, self.ids[j * self.cols])
        out.n = p - out.at
        return 1


@cython.final
@cython.internal
@cython.no_gc
cdef class Rows(Late):
    """Log-probabilities of what was accepted; as a value, FastDeploy's LogprobsLists."""

    cdef Accepted accepted

    cdef object made(self):
        cdef Accepted rows = self.accepted
        return _owned_object(
            _lists(rows.outputs.lists, rows.ids, rows.scores, rows.ranks, rows.rows, rows.cols))

    cdef int packed(self, fdm_out *out) except -1:
        cdef Accepted rows = self.accepted
        return fdm_put_logprobs(out, rows.ids, rows.scores, rows.ranks, rows.rows, rows.cols)


@cython.final
cdef class Outputs:
    """Maker of results' outputs.

    Parameters
    ----------
    copier : FieldCopier
        Of our subclass of CompletionOutput.
    pattern : CompletionOutput
        Whose values every new one begins with.
    lists : type
        FastDeploy's LogprobsLists.
    dicts : DictMaker or None
        Of their dictionaries; None: FastDeploy's ``to_dict`` makes them.
    """

    cdef FieldCopier copier
    cdef object pattern
    cdef type lists
    cdef Py_ssize_t at[_N_VARYING]      # offsets of the fields that vary
    cdef Pattern packed_pattern         # None: it is not known how an output is packed
    cdef int order[_N_VARYING]          # the fields that vary, in the order of the keys
    cdef Py_ssize_t places[_N_VARYING]  # which of the keys they are

    def __init__(self, FieldCopier copier not None, pattern, type lists not None, DictMaker dicts):
        self.copier, self.pattern, self.lists = copier, pattern, lists
        names = ("index", "send_idx", "token_ids", "draft_token_ids", "logprob", "top_logprobs", "text")
        cdef Py_ssize_t i, k, n = 0
        for i in range(_N_VARYING):
            self.at[i] = field_offset(copier.cls, names[i])
        values = None if dicts is None else dicts.values_of(<PyObject *>pattern)
        if values is None:
            return
        for i in range(dicts.n):
            for k in range(_N_VARYING):
                if self.at[k] == dicts.offsets[i]:
                    self.order[n], self.places[n] = <int>k, i
                    n += 1
        self.packed_pattern = dicts.pattern_of(values) if n == _N_VARYING else None

    cdef PyObject *blank(self, index, send_idx) except NULL:
        """An output without tokens; a new reference."""
        cdef PyObject *output = self.copier.copy(<PyObject *>self.pattern)
        try:
            put(output, self.at[_INDEX], index)
            put(output, self.at[_SEND], send_idx)
            give(output, self.at[_DRAFTS], _untrack(new_list(0)))
        except:  # noqa: E722 - out of memory
            drop_reference(output)
            raise
        return output

    cdef Accepted accepted(self, Step step, Py_ssize_t slot, Py_ssize_t rows, int64_t sent):
        """The maker of the output for the first `rows` rows of a slot."""
        cdef Accepted output = Accepted.__new__(Accepted)
        output.outputs, output.sent, output.index = self, sent, <int32_t>slot
        output.copy(step, slot, rows)
        return output


cdef PyObject *_lists(type cls, const int32_t *ids, const float *scores, const int32_t *ranks,
                      Py_ssize_t rows, Py_ssize_t cols) except NULL:
    """Make a LogprobsLists of rows of `cols` columns."""
    cdef PyObject *lists = _new_tuple(cls, 3)
    try:
        _set_tuple_item(lists, 0, _untrack_rows(int_rows(ids, cols, rows, cols)))
        _set_tuple_item(lists, 1, _untrack_rows(float_rows(scores, cols, rows, cols)))
        _set_tuple_item(lists, 2, _untrack(int_row(ranks, 1, rows)))
    except:  # noqa: E722 - out of memory
        drop_reference(lists)
        raise
    return _untrack(lists)


cdef inline PyObject *_untrack_rows(PyObject *rows) noexcept:
    cdef Py_ssize_t j
    for j in range(PyList_GET_SIZE(<object>rows)):
        _untrack(PyList_GET_ITEM(<object>rows, j))
    return _untrack(rows)


cdef extern from *:
    """
    static PyObject *fdm_new_tuple(PyTypeObject *type, Py_ssize_t n) { return type->tp_alloc(type, n); }
    """
    PyObject *_new_tuple "fdm_new_tuple"(type cls, Py_ssize_t n) except NULL

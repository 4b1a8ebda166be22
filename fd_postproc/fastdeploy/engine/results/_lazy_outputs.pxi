# A result's output as the numbers of its message, which become an object at the first access.
#
# The sender's thread packs it from the numbers; little else looks at it.
cimport cython
from cpython.long cimport PyLong_FromLongLong
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy
from fd_postproc._core cimport Step
from fd_postproc.headers.lists cimport drop_reference, int_row, new_float, new_list
from fd_postproc.headers.msgpack cimport (
    fdm_array, fdm_copy, fdm_float, fdm_integer, fdm_out, fdm_put_logprobs, fdm_room, fdm_token,
)
from fd_postproc.headers.product cimport fdo_times
from fd_postproc.headers.wire cimport fdw_block

cdef enum:
    _HAS_SCORES = 1
    _HAS_TEXT = 2  # "", which the sender's thread gives to what has tokens

cdef enum:
    _INDEX, _SEND, _TOKENS, _DRAFTS, _LOGPROB, _TOP, _TEXT, _N_VARYING


cdef struct Accepted:
    # What a request has accepted in a step; behind it ids[rows][cols], scores[rows][cols] and ranks[rows],
    # or without scores ids[rows] alone.
    int64_t sent    # tokens of the request before these
    int32_t index   # its slot
    int32_t rows
    int32_t cols
    int32_t flags


@cython.final
cdef class LazyOutputs(Lazy):
    """Outputs of a result, which become an object at the first access.

    Until then they wait as bytes, an `Accepted` with its rows: one allocation instead of six, and no memory
    is touched again that the token thread's caches have lost since the last step.

    Parameters
    ----------
    base : type
        Our class of results, with the field.
    name : str
        The field.
    outputs : FieldCopier
        Of our subclass of CompletionOutput.
    pattern : CompletionOutput
        Whose values every new one begins with.
    dicts : DictMaker or None
        Of its dictionaries; None: FastDeploy's ``to_dict`` makes them.
    """

    cdef FieldCopier outputs
    cdef object pattern
    cdef DictMaker dicts
    cdef Py_ssize_t at[_N_VARYING]      # offsets of the fields that vary
    cdef bytes flat                     # the pattern as msgpack packs it; None: it is not known how
    cdef int order[_N_VARYING]          # the fields that vary, in the order of the keys
    cdef Py_ssize_t begins[_N_VARYING]  # where their values lie in `flat`
    cdef Py_ssize_t ends[_N_VARYING]

    def __init__(self, type base not None, str name not None, FieldCopier outputs not None, pattern,
                 DictMaker dicts):
        Lazy.__init__(self, base, name, bytes)
        self.outputs, self.pattern, self.dicts = outputs, pattern, dicts
        names = ("index", "send_idx", "token_ids", "draft_token_ids", "logprob", "top_logprobs", "text")
        for i in range(_N_VARYING):
            self.at[i] = field_offset(outputs.cls, names[i])
        self.flat = None if dicts is None else self._flat()

    cdef PyObject *blank(self, index, send_idx) except NULL:
        """An output without tokens; a new reference."""
        cdef PyObject *output = self.outputs.copy(<PyObject *>self.pattern)
        try:
            put(output, self.at[_INDEX], index)
            put(output, self.at[_SEND], send_idx)
            give(output, self.at[_DRAFTS], _untrack(new_list(0)))
        except:  # noqa: E722 - out of memory
            drop_reference(output)
            raise
        return output

    cdef PyObject *taken(self, Step step, Py_ssize_t slot, Py_ssize_t rows, int64_t sent) except NULL:
        """A field's data until the first access: a copy of the first `rows` rows of a slot.

        A copy, not a view: a result that waits long must not keep its whole step in memory.
        """
        cdef fdw_block *b = &step.raw.block
        cdef Py_ssize_t cols = step.raw.cols, first = b.offsets[slot], cells = rows * cols, j
        cdef bint scored = b.scores != NULL
        cdef PyObject *made = _new_bytes(
            NULL, <Py_ssize_t>sizeof(Accepted)
            + (2 * cells + rows if scored else rows) * <Py_ssize_t>sizeof(int32_t))
        cdef Accepted *head = <Accepted *>_bytes_at(made)
        cdef int32_t *ids = <int32_t *>(head + 1)
        head.sent, head.index = sent, <int32_t>slot
        head.rows, head.cols = <int32_t>rows, <int32_t>(cols if scored else 1)
        head.flags = _HAS_SCORES if scored else 0
        if not scored:
            for j in range(rows):
                ids[j] = b.ids[(first + j) * cols]
            return made
        memcpy(ids, b.ids + first * cols, cells * sizeof(int32_t))
        memcpy(ids + cells, b.scores + first * cols, cells * sizeof(float))
        memcpy(ids + 2 * cells, b.ranks + first, rows * sizeof(int32_t))
        return made

    cdef bint give_text(self, PyObject *o) noexcept:
        """Set the text of an unread output to ""; False if it is an object already."""
        cdef Accepted *head = _accepted(at_offset(o, self.offset)[0])
        if head == NULL:
            return False
        head.flags |= _HAS_TEXT
        return True

    cdef object made(self, stuff):
        cdef Accepted *head = _accepted(<PyObject *>stuff)
        if head == NULL:
            return stuff
        cdef int32_t *ids = <int32_t *>(head + 1)
        cdef Py_ssize_t rows = head.rows, cols = head.cols
        cdef Py_ssize_t cells = rows * cols
        cdef float *scores = <float *>(ids + cells)
        output = _owned_object(self.blank(head.index, PyLong_FromLongLong(head.sent)))
        cdef PyObject *out = <PyObject *>output
        give(out, self.at[_TOKENS], _untrack(int_row(ids, cols, rows)))
        if head.flags & _HAS_TEXT:
            put(out, self.at[_TEXT], "")
        if head.flags & _HAS_SCORES:
            give(out, self.at[_TOP], _kept_rows(ids, scores, ids + 2 * cells, rows, cols))
            give(out, self.at[_LOGPROB], new_float(scores[(rows - 1) * cols]))
        return output

    cdef object shown(self, PyObject *o):
        """The dictionary of an instance's outputs."""
        output = self.of(o)
        made = None if self.dicts is None else self.dicts.made(output)
        return output.to_dict() if made is None else made

    cdef int packed(self, fdm_out *out, PyObject *o) except -1:
        if self.dicts is None:
            return 0
        cdef PyObject *value = at_offset(o, self.offset)[0]
        cdef Accepted *head = _accepted(value)
        if head == NULL:
            return self.dicts.packed(out, value)
        if self.flat is None:
            output = self.of(o)
            return self.dicts.packed(out, <PyObject *>output)
        cdef char *flat = _bytes_at(<PyObject *>self.flat)
        cdef Py_ssize_t k, begin = 0
        for k in range(_N_VARYING):
            fdm_copy(out, flat + begin, self.begins[k] - begin)
            begin = self.ends[k]
            if not self._put(out, self.order[k], head):
                begin = self.begins[k]
        fdm_copy(out, flat + begin, PyBytes_GET_SIZE(<PyObject *>self.flat) - begin)
        return 1

    cdef bint _put(self, fdm_out *out, int field, Accepted *head) except -1:
        """Write the value of a variable field; False if it is the pattern's."""
        cdef int32_t *ids = <int32_t *>(head + 1)
        cdef Py_ssize_t rows = head.rows, cols = head.cols, j
        cdef Py_ssize_t cells = rows * cols
        cdef unsigned char *p
        if field == _TOP or field == _LOGPROB:
            if not head.flags & _HAS_SCORES:
                return False
            if field == _TOP:
                fdm_put_logprobs(out, ids, <float *>(ids + cells), ids + 2 * cells, rows, cols)
                return True
            fdm_room(out, 9)
            out.n = fdm_float(out.at + out.n, (<float *>(ids + cells))[(rows - 1) * cols]) - out.at
            return True
        if field == _TEXT and not head.flags & _HAS_TEXT:
            return False
        fdm_room(out, 9 + 5 * rows)
        p = out.at + out.n
        if field == _INDEX:
            p = fdm_integer(p, head.index)
        elif field == _SEND:
            p = fdm_integer(p, head.sent)
        elif field == _TEXT:
            p[0] = 0xa0
            p += 1
        else:
            p = fdm_array(p, rows if field == _TOKENS else 0)
            if field == _TOKENS:
                for j in range(rows):
                    p = fdm_token(p, ids[j * cols])
        out.n = p - out.at
        return True

    cdef bytes _flat(self):
        """The packed pattern; this fills `order`, `begins` and `ends`."""
        cdef Py_ssize_t i, k, found = 0
        values = self.dicts.values_of(<PyObject *>self.pattern)
        packed = None if values is None else self.dicts.packed_with(values)
        if packed is None:
            return None
        flat, places = packed
        for i in range(self.dicts.n):
            for k in range(_N_VARYING):
                if self.at[k] == self.dicts.offsets[i]:
                    self.order[found] = <int>k
                    self.begins[found], self.ends[found] = places[2 * i], places[2 * i + 1]
                    found += 1
        return flat if found == _N_VARYING else None


cdef Accepted *_accepted(PyObject *value) noexcept:
    """A field's data before the first access; NULL after it."""
    if value == NULL or Py_TYPE(<object>value) != <PyTypeObject *>bytes:
        return NULL
    cdef Accepted *head = <Accepted *>_bytes_at(value)
    cdef int64_t size = PyBytes_GET_SIZE(value) - <Py_ssize_t>sizeof(Accepted)
    if size < 0 or not (0 < head.rows <= size and 0 < head.cols <= size):
        return NULL  # bytes that were set without __set__
    cdef int64_t of_a_row = 2 * <int64_t>head.cols + 1 if head.flags & _HAS_SCORES else head.cols
    cdef int64_t needed
    return head if fdo_times(4 * of_a_row, head.rows, &needed) == 0 and needed == size else NULL

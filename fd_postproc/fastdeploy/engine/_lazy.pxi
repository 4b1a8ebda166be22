# Log-probabilities of a result: the message's numbers, as lists only once somebody asks.
#
# Until then they wait as bytes - rows, columns, token ids, log-probabilities, ranks - which are an eighth of
# the lists' size.  A copy, not a view: a result that waits long must not keep its whole step in memory.

cdef PyObject *_kept(Step step, Py_ssize_t first, Py_ssize_t rows) except NULL:
    """Copy `rows` accepted rows of a step."""
    cdef Py_ssize_t cols = step.at.cols
    cdef Py_ssize_t cells = rows * cols
    cdef fdw_block *b = &step.at.block
    cdef PyObject *made = _new_bytes(NULL, (2 + 2 * cells + rows) * <Py_ssize_t>sizeof(int32_t))
    cdef int32_t *at = <int32_t *>_bytes_at(made)
    at[0], at[1] = <int32_t>rows, <int32_t>cols
    memcpy(at + 2, b.ids + first * cols, cells * sizeof(int32_t))
    memcpy(at + 2 + cells, b.scores + first * cols, cells * sizeof(float))
    memcpy(at + 2 + 2 * cells, b.ranks + first, rows * sizeof(int32_t))
    return made


@cython.final
cdef class LazyLists:
    """An attribute over a slot of log-probabilities: gives LogprobsLists, makes them when first asked.

    Parameters
    ----------
    base : type
        FastDeploy's class, with the slot.
    name : str
        The slot.
    lists : type
        FastDeploy's LogprobsLists.
    """

    cdef Py_ssize_t offset
    cdef type base
    cdef type lists

    def __init__(self, type base not None, str name not None, type lists not None):
        self.base, self.lists = base, lists
        self.offset = slot_offset(base, name)

    cdef object of(self, PyObject *o):
        """The value of an instance; AttributeError if it has none."""
        cdef PyObject *value = at_offset(o, self.offset)[0]
        if value == NULL:
            raise AttributeError(f"this {self.base.__name__} has no value here yet")
        if not PyBytes_CheckExact(<object>value):
            return <object>value
        kept = <object>value
        cdef int32_t *at = <int32_t *>_bytes_at(value)
        cdef Py_ssize_t rows = at[0], cols = at[1]
        cdef Py_ssize_t cells = rows * cols
        made = _taken_over(
            _lists(self.lists, at + 2, <float *>(at + 2 + cells), at + 2 + 2 * cells, rows, cols))
        if at_offset(o, self.offset)[0] == <PyObject *>kept:
            put(o, self.offset, made)
        return made

    def __get__(self, o, owner):
        if o is None:
            return self
        return self.of(self._checked(o))

    def __set__(self, o, value):
        if PyBytes_CheckExact(value):
            raise TypeError("bytes are no log-probabilities")  # they would be taken for rows of a step
        put(self._checked(o), self.offset, value)

    def __delete__(self, o):
        give(self._checked(o), self.offset, NULL)

    cdef PyObject *_checked(self, o) except NULL:
        if not isinstance(o, self.base):
            raise TypeError(f"a {type(o).__name__} is no {self.base.__name__}")
        return <PyObject *>o


cdef PyObject *_lists(type cls, const int32_t *ids, const float *scores, const int32_t *ranks,
                      Py_ssize_t rows, Py_ssize_t cols) except NULL:
    """A LogprobsLists of rows of `cols` columns."""
    cdef PyObject *made = _new_tuple(cls, 3)
    try:
        _set_tuple_item(made, 0, _untrack_rows(_int_rows(ids, cols, rows, cols)))
        _set_tuple_item(made, 1, _untrack_rows(_float_rows(scores, cols, rows, cols)))
        _set_tuple_item(made, 2, _untrack(_int_row(ranks, 1, rows)))
    except:  # noqa: E722 - out of memory
        _drop(made)
        raise
    return _untrack(made)


cdef inline PyObject *_untrack_rows(PyObject *rows) noexcept:
    cdef Py_ssize_t j
    for j in range(PyList_GET_SIZE(<object>rows)):
        _untrack(PyList_GET_ITEM(<object>rows, j))
    return _untrack(rows)


cdef extern from *:
    """
    static PyObject *fdx_new_tuple(PyTypeObject *type, Py_ssize_t n) { return type->tp_alloc(type, n); }
    """
    PyObject *_new_tuple "fdx_new_tuple"(type cls, Py_ssize_t n) except NULL

cdef extern from "Python.h":
    PyObject *_new_bytes "PyBytes_FromStringAndSize"(const char *content, Py_ssize_t size) except NULL
    char *_bytes_at "PyBytes_AS_STRING"(PyObject *o) noexcept

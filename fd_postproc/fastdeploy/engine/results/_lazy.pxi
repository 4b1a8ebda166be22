# Attributes that are made at the first access: log-probabilities and metrics of a result.
cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy
from fd_postproc.headers.lists cimport drop_reference, float_rows, int_row, int_rows, new_list
from fd_postproc.headers.msgpack cimport fdm_out, fdm_put_any, fdm_put_array, fdm_put_logprobs
from fd_postproc.headers.product cimport fdo_times


cdef class Lazy:
    """Attribute whose field holds either the value or the data to make it.

    Parameters
    ----------
    base : type
        The class with the field.
    name : str
        The field.
    stuff : type
        Of what a value is made of; never a value itself.
    """

    cdef Py_ssize_t offset
    cdef type base
    cdef type stuff
    cdef str name

    def __init__(self, type base not None, str name not None, type stuff not None):
        self.base, self.name, self.stuff = base, name, stuff
        self.offset = field_offset(base, name)

    cdef object made(self, stuff):
        raise NotImplementedError

    cdef object shown(self, PyObject *o):
        """The value for an instance's dictionary."""
        return self.of(o)

    cdef int packed(self, fdm_out *out, PyObject *o) except -1:
        """Write the value as msgpack does; 0 if it is not supported."""
        return 0

    cdef object of(self, PyObject *o):
        """The value of an instance; AttributeError if it has none."""
        cdef PyObject *value = at_offset(o, self.offset)[0]
        if value == NULL:
            raise AttributeError(f"this {self.base.__name__} has no value here yet")
        if type(<object>value) is not self.stuff:
            return <object>value
        stuff = <object>value
        made = self.made(stuff)
        if at_offset(o, self.offset)[0] == <PyObject *>stuff:
            put(o, self.offset, made)
        return made

    def __get__(self, o, owner):
        if o is None:
            return self
        return self.of(self._checked(o))

    def __set__(self, o, value):
        if type(value) is self.stuff:  # it would be taken for part of a step
            raise TypeError(f"{self.base.__name__}.{self.name} cannot be of type {type(value).__name__}")
        put(self._checked(o), self.offset, value)

    def __delete__(self, o):
        give(self._checked(o), self.offset, NULL)

    cdef PyObject *_checked(self, o) except NULL:
        if not isinstance(o, self.base):
            raise TypeError(f"a {type(o).__name__} is no {self.base.__name__}")
        return <PyObject *>o


# ---- empty lists -------------------------------------------------------------------------------------------


@cython.final
@cython.internal
cdef class Empty:
    """Marker in the field of an empty list."""


@cython.final
cdef class LazyEmpty(Lazy):
    """Attribute whose default is a new list without items.

    Parameters
    ----------
    base : type
        The class with the field.
    name : str
        The field.
    """

    cdef Empty stands_for

    def __init__(self, type base not None, str name not None):
        Lazy.__init__(self, base, name, Empty)
        self.stands_for = Empty.__new__(Empty)

    def begin(self, pattern):
        """Put the marker into an instance and its copies; the first access makes the list."""
        put(self._checked(pattern), self.offset, self.stands_for)

    cdef object made(self, stuff):
        return _owned_object(_untrack(new_list(0)))

    cdef int packed(self, fdm_out *out, PyObject *o) except -1:
        cdef PyObject *value = at_offset(o, self.offset)[0]
        if value == <PyObject *>self.stands_for:
            return fdm_put_array(out, 0)
        return fdm_put_any(out, value, NULL, 0)


# ---- log-probabilities -------------------------------------------------------------------------------------


@cython.final
cdef class LazyLists(Lazy):
    """Log-probabilities: the message's numbers, which become lists at the first access.

    Until then they wait as bytes - rows, columns, token ids, log-probabilities, ranks - which are an eighth
    of the lists' size.

    Parameters
    ----------
    base : type
        FastDeploy's class, with the field.
    name : str
        The field.
    lists : type
        FastDeploy's LogprobsLists.
    """

    cdef type lists

    def __init__(self, type base not None, str name not None, type lists not None):
        Lazy.__init__(self, base, name, bytes)
        self.lists = lists

    cdef object made(self, stuff):
        cdef int32_t *at = <int32_t *>_bytes_at(<PyObject *>stuff)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(<PyObject *>stuff) // <Py_ssize_t>sizeof(int32_t)
        if not _adds_up(at, n):
            return stuff  # bytes that were set without __set__
        cdef Py_ssize_t rows = at[0], cols = at[1]
        cdef Py_ssize_t cells = rows * cols
        return _owned_object(
            _lists(self.lists, at + 2, <float *>(at + 2 + cells), at + 2 + 2 * cells, rows, cols))

    cdef int packed(self, fdm_out *out, PyObject *o) except -1:
        cdef PyObject *value = at_offset(o, self.offset)[0]
        if Py_TYPE(<object>value) != <PyTypeObject *>bytes:
            return fdm_put_any(out, value, <PyTypeObject *>self.lists, 0)
        cdef int32_t *at = <int32_t *>_bytes_at(value)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(value) // <Py_ssize_t>sizeof(int32_t)
        if not _adds_up(at, n):
            return 0
        cdef Py_ssize_t rows = at[0], cols = at[1]
        cdef Py_ssize_t cells = rows * cols
        return fdm_put_logprobs(out, at + 2, <float *>(at + 2 + cells), at + 2 + 2 * cells, rows, cols)


cdef inline bint _adds_up(const int32_t *at, Py_ssize_t n) noexcept:
    """Whether `n` numbers match the rows and columns that they declare."""
    cdef int64_t numbers
    if n < 2 or at[1] < 0 or fdo_times(2 * <int64_t>at[1] + 1, at[0], &numbers) < 0:
        return False
    return numbers == n - 2


cdef PyObject *_kept_rows(const int32_t *ids, const float *scores, const int32_t *ranks,
                          Py_ssize_t rows, Py_ssize_t cols) except NULL:
    """Copy rows into a field, from which the lists are made at the first access."""
    cdef Py_ssize_t cells = rows * cols
    cdef PyObject *made = _new_bytes(NULL, (2 + 2 * cells + rows) * <Py_ssize_t>sizeof(int32_t))
    cdef int32_t *at = <int32_t *>_bytes_at(made)
    at[0], at[1] = <int32_t>rows, <int32_t>cols
    memcpy(at + 2, ids, cells * sizeof(int32_t))
    memcpy(at + 2 + cells, scores, cells * sizeof(float))
    memcpy(at + 2 + 2 * cells, ranks, rows * sizeof(int32_t))
    return made


cdef PyObject *_lists(type cls, const int32_t *ids, const float *scores, const int32_t *ranks,
                      Py_ssize_t rows, Py_ssize_t cols) except NULL:
    """Make a LogprobsLists of rows of `cols` columns."""
    cdef PyObject *made = _new_tuple(cls, 3)
    try:
        _set_tuple_item(made, 0, _untrack_rows(int_rows(ids, cols, rows, cols)))
        _set_tuple_item(made, 1, _untrack_rows(float_rows(scores, cols, rows, cols)))
        _set_tuple_item(made, 2, _untrack(int_row(ranks, 1, rows)))
    except:  # noqa: E722 - out of memory
        drop_reference(made)
        raise
    return _untrack(made)


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

cdef extern from "Python.h":
    PyObject *_new_bytes "PyBytes_FromStringAndSize"(const char *content, Py_ssize_t size) except NULL
    char *_bytes_at "PyBytes_AS_STRING"(PyObject *o) noexcept
    Py_ssize_t PyBytes_GET_SIZE(PyObject *o) noexcept

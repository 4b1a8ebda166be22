# Attributes that are made at the first access.
cimport cython
from cpython.object cimport PyObject
from fd_postproc.headers.lists cimport new_list
from fd_postproc.headers.msgpack cimport fdm_out, fdm_put_any, fdm_put_array


@cython.internal
@cython.no_gc
cdef class Late:
    """Content of a field until the first access.  It makes the value, and can pack it without making it."""

    cdef object made(self):
        raise NotImplementedError

    cdef object shown(self):
        """The dictionary that the value would show; None if only the value can tell."""
        return None

    cdef int packed(self, fdm_out *out) except -1:
        """Write the value as msgpack does; 0 if it is not supported, possibly after partial output."""
        return 0


@cython.final
cdef class Lazy:
    """Attribute whose field holds either the value or what makes it.

    Parameters
    ----------
    base : type
        The class with the field.
    name : str
        The field.
    tuples : type, optional
        A named tuple of FastDeploy's that the value may be.
    is_object : bool, optional
        Whether the value is an object that is shown as a dictionary.
    dicts : DictMaker, optional
        Of such an object; None: its ``to_dict`` makes the dictionary.
    """

    cdef Py_ssize_t offset
    cdef type base
    cdef str name
    cdef type tuples
    cdef bint is_object
    cdef DictMaker dicts

    def __init__(self, type base not None, str name not None, type tuples=None, bint is_object=False,
                 DictMaker dicts=None):
        self.base, self.name, self.tuples = base, name, tuples
        self.is_object, self.dicts = is_object, dicts
        self.offset = field_offset(base, name)

    cdef object of(self, PyObject *o):
        """The value of an instance; AttributeError if it has none."""
        cdef PyObject *value = at_offset(o, self.offset)[0]
        if value == NULL:
            raise AttributeError(f"this {self.base.__name__} has no value here yet")
        if not isinstance(<object>value, Late):
            return <object>value
        late = <object>value
        content = (<Late>late).made()
        if at_offset(o, self.offset)[0] == <PyObject *>late:
            put(o, self.offset, content)
        return content

    cdef object shown(self, PyObject *o):
        """The value for an instance's dictionary."""
        value = <object>at_offset(o, self.offset)[0]
        dictionary = (<Late>value).shown() if isinstance(value, Late) else None
        if dictionary is not None:
            return dictionary
        value = self.of(o)
        if not self.is_object:
            return value
        dictionary = None if self.dicts is None else self.dicts.made(value)
        return value.to_dict() if dictionary is None else dictionary

    cdef int packed(self, fdm_out *out, PyObject *o) except -1:
        """Write the value as msgpack does; 0 if it is not supported, possibly after partial output."""
        cdef Py_ssize_t before = out.n
        if self.is_object and self.dicts is None:
            return 0
        value = <object>at_offset(o, self.offset)[0]
        if isinstance(value, Late):
            if (<Late>value).packed(out):
                return 1
            out.n = before
            value = self.of(o)
        if self.is_object:
            return self.dicts.packed(out, <PyObject *>value)
        return fdm_put_any(out, <PyObject *>value, <PyTypeObject *>self.tuples, 0)

    def begin_empty(self, pattern):
        """Have an instance and its copies begin with a new list without items."""
        put(self._checked(pattern), self.offset, _EMPTY)

    def __get__(self, o, owner):
        if o is None:
            return self
        return self.of(self._checked(o))

    def __set__(self, o, value):
        if isinstance(value, Late):
            raise TypeError(f"{self.base.__name__}.{self.name} cannot be of type {type(value).__name__}")
        put(self._checked(o), self.offset, value)

    def __delete__(self, o):
        give(self._checked(o), self.offset, NULL)

    cdef PyObject *_checked(self, o) except NULL:
        if not isinstance(o, self.base):
            raise TypeError(f"a {type(o).__name__} is no {self.base.__name__}")
        return <PyObject *>o


@cython.final
@cython.internal
@cython.no_gc
cdef class _Empty(Late):
    """A list without items."""

    cdef object made(self):
        return _owned_object(_untrack(new_list(0)))

    cdef int packed(self, fdm_out *out) except -1:
        return fdm_put_array(out, 0)


cdef _Empty _EMPTY = _Empty.__new__(_Empty)

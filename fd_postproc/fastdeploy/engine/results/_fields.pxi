# Fields: attributes that lie at an offset in their object, as __slots__ makes them.  Objects of these alone
# are made and copied by moving pointers.
cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from fd_postproc.headers.lists cimport drop_reference

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
        int type

    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member

    int T_OBJECT_EX

cdef extern from *:
    """
    static inline void fdm_take_none(Py_ssize_t n)
    {
    #if PY_VERSION_HEX < 0x030C0000 /* immortal from then on */
        Py_SET_REFCNT(Py_None, Py_REFCNT(Py_None) + n);
    #endif
        (void)n;
    }
    """
    void _take_none "fdm_take_none"(Py_ssize_t n) noexcept

cdef extern from "Python.h":
    ctypedef PyObject *(*newfunc)(type, PyObject *, PyObject *) except NULL

    ctypedef struct PyTypeObject:
        newfunc tp_new
        Py_ssize_t tp_basicsize

    PyTypeObject *Py_TYPE(object o) noexcept
    int PyType_IsSubtype(PyTypeObject *derived, PyTypeObject *base) noexcept
    void PyObject_GC_UnTrack(PyObject *o) noexcept
    void _take "Py_INCREF"(PyObject *o) noexcept
    void _take_if_any "Py_XINCREF"(PyObject *o) noexcept
    void _drop_if_any "Py_XDECREF"(PyObject *o) noexcept


cdef Py_ssize_t field_offset(type cls, str name) except -1:
    """Offset of the attribute `name` in instances of `cls`; it must be in ``__slots__``."""
    for base in cls.__mro__:
        if name in base.__dict__:
            descriptor = base.__dict__[name]
            break
    else:
        raise TypeError(f"{cls.__name__} has no attribute {name!r}")
    cdef PyMemberDef *member
    if isinstance(descriptor, Lazy):
        return (<Lazy>descriptor).offset
    if type(descriptor) is MemberDescriptorType:
        member = (<PyMemberDescrObject *><PyObject *>descriptor).d_member
        if (member.type == T_OBJECT_EX and member.offset > 0
                and member.offset + <Py_ssize_t>sizeof(void *) <= (<PyTypeObject *>cls).tp_basicsize):
            return member.offset
    raise TypeError(f"{cls.__name__}.{name} is not one of its __slots__")


cdef inline PyObject **at_offset(PyObject *o, Py_ssize_t offset) noexcept:
    return <PyObject **>(<char *>o + offset)


cdef inline void give(PyObject *o, Py_ssize_t offset, PyObject *value) noexcept:
    """Set a field; this takes over the reference to `value`."""
    cdef PyObject **place = at_offset(o, offset)
    cdef PyObject *old = place[0]
    place[0] = value
    _drop_if_any(old)


cdef inline void put(PyObject *o, Py_ssize_t offset, object value) noexcept:
    """Set a field."""
    _take(<PyObject *>value)
    give(o, offset, <PyObject *>value)


cdef inline PyObject *_untrack(PyObject *o) noexcept:
    """Remove a new object from the garbage collector; return it.

    Results, their lists and their metrics hold numbers, texts and each other, never anything that refers
    back: there is no cycle to be found among them, and looking for one took 40 % of a step.  They are freed
    by their reference counts as ever.
    """
    PyObject_GC_UnTrack(o)
    return o


@cython.final
cdef class FieldCopier:
    """Copier of a class's instances, and of those of the base class, field by field.

    Parameters
    ----------
    cls : type
        What the copies are.  Its ``__new__`` is `object`'s.
    names : iterable of str
        Fields that are copied; others stay unset.
    """

    cdef readonly type cls
    cdef type base           # the next class that has the fields as well, if there is one
    cdef readonly tuple names
    cdef Py_ssize_t *offsets
    cdef Py_ssize_t n
    cdef Py_ssize_t reach    # bytes of an instance that its fields end before

    def __init__(self, type cls not None, names):
        if (<PyTypeObject *>cls).tp_new != (<PyTypeObject *>object).tp_new:
            raise TypeError(f"{cls.__name__} has a __new__ of its own")
        self.cls = cls
        self.names = tuple(names)
        self.n = len(self.names)
        PyMem_Free(self.offsets)
        self.offsets = <Py_ssize_t *>PyMem_Malloc(max(self.n, 1) * sizeof(Py_ssize_t))
        if self.offsets == NULL:
            raise MemoryError
        cdef Py_ssize_t i
        for i in range(self.n):
            self.offsets[i] = field_offset(cls, self.names[i])
            self.reach = max(self.reach, self.offsets[i] + <Py_ssize_t>sizeof(void *))
        self.base = cls.__base__
        if (<PyTypeObject *>self.base).tp_basicsize < self.reach:
            self.base = cls

    def __dealloc__(self):
        PyMem_Free(self.offsets)

    cdef bint fits(self, PyObject *pattern) noexcept:
        """Whether an object has these fields: of `cls`, or of a base with all of them."""
        cdef PyTypeObject *kind = Py_TYPE(<object>pattern)
        return (kind == <PyTypeObject *>self.cls or kind == <PyTypeObject *>self.base
                or (PyType_IsSubtype(<PyTypeObject *>self.cls, kind) and kind.tp_basicsize >= self.reach))

    cdef PyObject *copy(self, PyObject *pattern) except NULL:
        """A new reference.  `pattern` must fit."""
        cdef PyObject *instance = (<PyTypeObject *>self.cls).tp_new(self.cls, <PyObject *>_no_arguments, NULL)
        cdef Py_ssize_t i, nones = 0
        cdef PyObject *value
        for i in range(self.n):
            value = at_offset(pattern, self.offsets[i])[0]
            at_offset(instance, self.offsets[i])[0] = value
            if value == <PyObject *>None:
                nones += 1
            else:
                _take_if_any(value)
        _take_none(nones)  # one count for all: most fields are None
        _untrack(instance)
        return instance

    def of(self, pattern):
        """Copy `pattern`."""
        if not self.fits(<PyObject *>pattern):
            raise TypeError(f"a {type(pattern).__name__} cannot be copied as {self.cls.__name__}")
        cdef PyObject *instance = self.copy(<PyObject *>pattern)
        result = <object>instance
        drop_reference(instance)
        return result


cdef tuple _no_arguments = ()

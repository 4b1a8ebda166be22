# to_dict() as one copy of a template and the values that differ from it.

@cython.final
cdef class DictMaker:
    """Makes dictionaries of an object's slots.

    Parameters
    ----------
    slots : SlotCopier
        Of the class whose instances are turned into dictionaries.
    keys : dict of str to str
        Key to slot, in the order of the result.
    template : dict
        Key to the value that is most frequent.
    plain_only : bool
        Whether a value that is no number, text, bool or None makes `of` give up: upstream copies such
        values deeply.
    nested : collection of str
        Keys whose values, unless None, are turned into dictionaries by their own ``to_dict``.
    """

    cdef SlotCopier slots
    cdef dict template
    cdef tuple keys
    cdef tuple usual         # the template's values, in the order of keys
    cdef Py_ssize_t *offsets
    cdef Py_ssize_t n
    cdef bint plain_only
    cdef frozenset nested

    def __init__(self, SlotCopier slots not None, dict keys not None, dict template not None,
                 bint plain_only=False, nested=()):
        self.slots = slots
        self.keys = tuple(keys)
        self.template = {key: template[key] for key in keys}
        self.usual = tuple(self.template.values())
        self.n = len(self.keys)
        self.plain_only = plain_only
        self.nested = frozenset(nested)
        PyMem_Free(self.offsets)
        self.offsets = <Py_ssize_t *>PyMem_Malloc(max(self.n, 1) * sizeof(Py_ssize_t))
        if self.offsets == NULL:
            raise MemoryError
        for i, slot in enumerate(keys.values()):
            self.offsets[i] = slot_offset(slots.cls, slot)

    def __dealloc__(self):
        PyMem_Free(self.offsets)

    def of(self, o):
        """The dictionary, or None if the object is not of the right class, lacks a value, or has an odd one."""
        if type(o) is not self.slots.cls:
            return None
        cdef dict made = PyDict_Copy(self.template)
        cdef Py_ssize_t i
        cdef PyObject *value
        for i in range(self.n):
            value = at_offset(<PyObject *>o, self.offsets[i])[0]
            if value == PyTuple_GET_ITEM(self.usual, i):
                continue
            if value == NULL or (self.plain_only and not _is_plain(value)):
                return None
            key = <object>PyTuple_GET_ITEM(self.keys, i)
            content = <object>value
            if self.nested and content is not None and key in self.nested:
                content = content.to_dict()
            PyDict_SetItem(made, key, content)
        return made


cdef inline bint _is_plain(PyObject *value) noexcept:
    return (PyFloat_CheckExact(<object>value) or PyLong_CheckExact(<object>value)
            or PyUnicode_CheckExact(<object>value) or <object>value is None or <object>value is True
            or <object>value is False)

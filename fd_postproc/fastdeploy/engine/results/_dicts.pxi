# to_dict() as one copy of a template and the values that differ from it.
cimport cython
from cpython.dict cimport PyDict_Copy, PyDict_SetItem
from cpython.float cimport PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from libc.string cimport memcpy
from fd_postproc.headers.msgpack cimport (
    fdm_begin, fdm_copy, fdm_end, fdm_give_up, fdm_map, fdm_out, fdm_put_any, fdm_put_plain, fdm_room,
)

cdef extern from *:
    """
    /* Out of the garbage collector's sight until something is put into the dictionary that may refer back.
       Python 3.14 no longer brings it back then, so there it stays in sight. */
    static inline void fdm_untrack_dict(PyObject *d)
    {
    #if PY_VERSION_HEX < 0x030E0000
        PyObject_GC_UnTrack(d);
    #endif
        (void)d;
    }
    """
    bint _is_tracked "PyObject_GC_IsTracked"(PyObject *o) noexcept
    void _untrack_dict "fdm_untrack_dict"(object d) noexcept


cdef extern from "Python.h":
    char *_bytes_at "PyBytes_AS_STRING"(PyObject *o) noexcept
    Py_ssize_t PyBytes_GET_SIZE(PyObject *o) noexcept
    str _new_text "PyUnicode_New"(Py_ssize_t length, Py_UCS4 greatest)
    bint _is_ascii "PyUnicode_IS_COMPACT_ASCII"(str text) noexcept
    Py_ssize_t _text_length "PyUnicode_GET_LENGTH"(str text) noexcept
    char *_text_at "PyUnicode_1BYTE_DATA"(str text) noexcept


@cython.final
@cython.internal
cdef class Pattern:
    """A dictionary as msgpack packs it, and where the value of each key lies in that."""

    cdef bytes flat
    cdef Py_ssize_t *at    # where each begins, and where it ends

    def __dealloc__(self):
        PyMem_Free(self.at)

    @staticmethod
    cdef Pattern of(bytes flat, list places):
        cdef Pattern pattern = Pattern.__new__(Pattern)
        cdef Py_ssize_t i
        pattern.flat = flat
        pattern.at = <Py_ssize_t *>PyMem_Malloc(max(len(places), 1) * sizeof(Py_ssize_t))
        if pattern.at == NULL:
            raise MemoryError
        for i in range(len(places)):
            pattern.at[i] = places[i]
        return pattern

    cdef inline Py_ssize_t begins(self, Py_ssize_t key) noexcept:
        return self.at[2 * key]

    cdef inline int copy_to(self, fdm_out *out, Py_ssize_t key, Py_ssize_t *done) except -1:
        """Write what lies between the bytes that are done and a key's value, which is done then, too."""
        fdm_copy(out, _bytes_at(<PyObject *>self.flat) + done[0], self.at[2 * key] - done[0])
        done[0] = self.at[2 * key + 1]
        return 1

    cdef inline int copy_rest(self, fdm_out *out, Py_ssize_t done) except -1:
        """Write what lies behind the bytes that are done."""
        fdm_copy(out, _bytes_at(<PyObject *>self.flat) + done, PyBytes_GET_SIZE(<PyObject *>self.flat) - done)
        return 1


@cython.final
cdef class DictMaker:
    """Maker of dictionaries from an object's fields.

    Parameters
    ----------
    fields : FieldCopier
        Of the class whose instances are turned into dictionaries.
    keys : dict of str to str
        Key to field, in the order of the result.
    usual : dict
        The most frequent values, by field, as far as they are numbers, texts or bools; the others are None.
    upstream : function
        FastDeploy's ``to_dict``, called for an object that this one cannot do.
    plain_only : bool
        Whether a value that is no number, text, bool or None is left to `upstream`, which copies such values
        deeply.
    nested : dict of str to DictMaker or Lazy
        Keys whose values, unless None, are turned into dictionaries - by that maker, or by their own
        ``to_dict`` - or made when asked for.
    only : dict
        Fields that decide which keys there are, or how a value is shown, with the one value (None, True or
        False) for which `keys` is right; an object that has another one is left to `upstream`.

    Attributes
    ----------
    key_of : dict of str to str
        Field to key.
    """

    cdef FieldCopier fields
    cdef dict template       # every key with its most frequent value
    cdef tuple usual         # those values
    cdef tuple keys
    cdef tuple makers        # for each key its DictMaker or Lazy or None
    cdef readonly dict key_of
    cdef object upstream
    cdef Py_ssize_t *offsets
    cdef Py_ssize_t n
    cdef bint plain_only
    cdef readonly dict only
    cdef tuple required      # the values of `only`
    cdef Py_ssize_t *places  # of its fields
    cdef Py_ssize_t n_required
    cdef object made_method  # what `method` has made last
    cdef Pattern pattern     # the template as msgpack packs it; None: it cannot

    def __init__(self, FieldCopier fields not None, dict keys not None, dict usual not None, upstream,
                 bint plain_only=False, dict nested=None, dict only=None):
        self.fields = fields
        self.keys = tuple(keys)
        self.key_of = {field: key for key, field in keys.items()}
        values = [usual.get(field) for field in keys.values()]
        self.usual = tuple([value if _is_plain(<PyObject *>value) else None for value in values])
        self.template = _key_sharing(zip(self.keys, self.usual))
        self.makers = tuple([(nested or {}).get(key) for key in keys])
        self.upstream = upstream
        self.n = len(self.keys)
        self.plain_only = plain_only
        PyMem_Free(self.offsets)
        self.offsets = <Py_ssize_t *>PyMem_Malloc(max(self.n, 1) * sizeof(Py_ssize_t))
        if self.offsets == NULL:
            raise MemoryError
        for i, field in enumerate(keys.values()):
            self.offsets[i] = field_offset(fields.cls, field)
        self.only = dict(only or {})
        self.required = tuple(self.only.values())
        self.n_required = len(self.required)
        PyMem_Free(self.places)
        self.places = <Py_ssize_t *>PyMem_Malloc(max(self.n_required, 1) * sizeof(Py_ssize_t))
        if self.places == NULL:
            raise MemoryError
        for i, field in enumerate(self.only):
            self.places[i] = field_offset(fields.cls, field)
        self.pattern = self.pattern_of(self.usual)

    def __dealloc__(self):
        PyMem_Free(self.offsets)
        PyMem_Free(self.places)

    cdef dict made(self, o):
        """The dictionary; None if the object has another class, or unsupported values."""
        cdef Py_ssize_t i
        if not self.serves(<PyObject *>o):
            return None
        cdef dict out = PyDict_Copy(self.template)
        cdef bint known = True  # whether no value refers to anything but numbers, texts and lists of them
        cdef PyObject *value
        cdef PyObject *maker
        for i in range(self.n):
            value = at_offset(<PyObject *>o, self.offsets[i])[0]
            if value == PyTuple_GET_ITEM(self.usual, i):
                continue
            if value == NULL or (self.plain_only and not _is_plain(value)):
                return None
            content = <object>value
            maker = PyTuple_GET_ITEM(self.makers, i)
            if maker != <PyObject *>None and content is not None:
                if type(<object>maker) is DictMaker:
                    inner = (<DictMaker>maker).made(content)
                    content = content.to_dict() if inner is None else inner
                else:
                    content = (<Lazy>maker).shown(<PyObject *>o)
            elif not (self.plain_only or _is_plain(value) or PyList_CheckExact(content)):
                known = known and not _is_tracked(value)
            PyDict_SetItem(out, <object>PyTuple_GET_ITEM(self.keys, i), content)
        if known:
            _untrack_dict(out)
        return out

    def method(self):
        """A ``to_dict`` method for the class."""
        def to_dict(o):
            shown = self.made(o)
            return self.upstream(o) if shown is None else shown

        to_dict.__doc__ = self.upstream.__doc__
        self.made_method = to_dict
        return to_dict

    # ---- the same as bytes ---------------------------------------------------------------------------

    cdef Pattern pattern_of(self, values):
        """The dictionary with these values, in the order of the keys; None if msgpack cannot pack it.

        A request on a decode node has its prefill node's statistics, a dictionary.
        """
        cdef fdm_out out
        cdef PyObject *value
        cdef int done = 1
        places = []
        fdm_begin(&out, 4096)
        try:
            fdm_room(&out, 9)
            out.n = fdm_map(out.at, self.n) - out.at
            for key, one in zip(self.keys, values):
                value = <PyObject *>one
                done = done and fdm_put_any(&out, <PyObject *>key, NULL, 0)
                places.append(out.n)
                done = done and fdm_put_any(&out, value, NULL, 0)
                places.append(out.n)
            return Pattern.of(fdm_end(&out), places) if done else None
        finally:
            fdm_give_up(&out)

    cdef list values_of(self, PyObject *o):
        """An object's values, in the order of the keys; None if it is not served, or lacks one."""
        cdef Py_ssize_t i
        if not self.serves(o):
            return None
        values = []
        for i in range(self.n):
            if at_offset(o, self.offsets[i])[0] == NULL:
                return None
            values.append(<object>at_offset(o, self.offsets[i])[0])
        return values

    cdef bint is_asked(self):
        """Whether ``to_dict`` of the class is from `method`, and FastDeploy's is unchanged."""
        cls = self.fields.cls
        return (cls.__dict__.get("to_dict") is self.made_method and self.made_method is not None
                and getattr(cls.__base__, "to_dict", None) is self.upstream)

    cdef bint serves(self, PyObject *o) noexcept:
        """Whether an object has the right class and values of the expected types."""
        cdef Py_ssize_t i
        if Py_TYPE(<object>o) != <PyTypeObject *>self.fields.cls:
            return False
        for i in range(self.n_required):
            if at_offset(o, self.places[i])[0] != PyTuple_GET_ITEM(self.required, i):
                return False
        return True

    cdef int packed(self, fdm_out *out, PyObject *o) except -1:
        """Write the packed dictionary; 0 if it is not supported, possibly after partial output.

        What lies between two values that are not the usual ones is copied at once.
        """
        if self.pattern is None or not self.serves(o):
            return 0
        cdef Py_ssize_t i, before, copied = 0
        cdef PyObject *value
        cdef PyObject *maker
        cdef int done
        kept = <object>o  # while an array's code runs, or a collection's
        for i in range(self.n):
            value = at_offset(o, self.offsets[i])[0]
            if value == PyTuple_GET_ITEM(self.usual, i):
                continue
            if value == NULL:
                return 0
            self.pattern.copy_to(out, i, &copied)
            maker = PyTuple_GET_ITEM(self.makers, i)
            if self.plain_only or value == <PyObject *>None:
                done = fdm_put_plain(out, value)
            elif maker == <PyObject *>None:
                before, content = out.n, <object>value
                done = fdm_put_any(out, value, NULL, 0)
                if not done:
                    out.n = before
                    done = _put_arrays(out, content)
            elif Py_TYPE(<object>maker) == <PyTypeObject *>DictMaker:
                done = (<DictMaker>maker).packed(out, value)
            else:
                done = (<Lazy>maker).packed(out, o)
            if not done:
                return 0
        return self.pattern.copy_rest(out, copied)


def short_repr(FieldCopier fields not None, str name):
    """Make a ``__repr__`` that shows one field.

    FastDeploy formats every result up to four times a step, for debug lines that are not shown.
    """
    cdef str before = f"{fields.cls.__name__}({name}="
    cdef Py_ssize_t offset = field_offset(fields.cls, name)

    def shown(o):
        cdef PyObject *value = at_offset(<PyObject *>o, offset)[0]
        if value != NULL and PyUnicode_CheckExact(<object>value):
            return _joined(before, <str>value, ", ...)")
        return f"{before}{getattr(o, name, None)!r}, ...)"

    return shown


cdef str _joined(str before, str middle, str after):
    """The three texts joined; in one step if they are ASCII, as request ids are."""
    if not (_is_ascii(before) and _is_ascii(middle) and _is_ascii(after)):
        return before + middle + after
    cdef Py_ssize_t head = _text_length(before), body = _text_length(middle), tail = _text_length(after)
    text = _new_text(head + body + tail, 127)
    cdef char *at = _text_at(text)
    memcpy(at, _text_at(before), head)
    memcpy(at + head, _text_at(middle), body)
    memcpy(at + head + body, _text_at(after), tail)
    return text


cdef dict _key_sharing(items):
    """A dictionary whose copies share its keys, which halves memory, unless it has too many."""
    holder = type("Holder", (), {})()
    for key, value in items:
        setattr(holder, key, value)
    return vars(holder)


cdef inline bint _is_plain(PyObject *value) noexcept:
    return (PyFloat_CheckExact(<object>value) or PyLong_CheckExact(<object>value)
            or PyUnicode_CheckExact(<object>value) or <object>value is None or <object>value is True
            or <object>value is False)

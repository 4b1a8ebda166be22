# The buffer that an answer is written into.


class Unknown(Exception):
    """What is to be written has something that is not known here: the full model has to be asked."""


cdef list _idle = []  # writers whose buffers wait for the next answer


@cython.final
@cython.no_gc
cdef class _Writer:
    """A buffer, and how numbers are printed.

    One user at a time: writing a part may call other code (pydantic's, a tokenizer's), which may write, too.
    """

    cdef fdj_buffer out
    cdef fdj_style style
    cdef FloatStyle floats
    cdef bint unset     # fields that were not set are left out
    cdef bint python    # as Python's json writes it, which refuses NaN and infinities

    @staticmethod
    cdef _Writer begin(FloatStyle style):
        cdef _Writer writer = _idle.pop() if _idle else _Writer.__new__(_Writer)
        writer.floats = style
        writer.style = style.style
        writer.out.used = 0
        writer.unset = writer.python = False
        return writer

    cdef int end(self) except -1:
        self.floats = None
        if self.out.room > 1 << 20:  # a full answer's
            free(self.out.data)
            memset(&self.out, 0, sizeof(fdj_buffer))
        if len(_idle) < 4:
            _idle.append(self)
        return 0

    def __dealloc__(self):
        free(self.out.data)

    cdef str taken(self):
        return PyUnicode_DecodeUTF8(self.out.data, self.out.used, NULL)

    cdef int put(self, bytes text) except -1:
        if fdj_put(&self.out, text, len(text)):
            raise MemoryError
        return 0

    cdef int literal(self, const char *text, size_t n) except -1:
        if fdj_put(&self.out, text, n):
            raise MemoryError
        return 0

    cdef int string(self, text) except -1:
        """A str; UnicodeEncodeError for a surrogate on its own."""
        cdef Py_ssize_t n
        cdef const char *data = PyUnicode_AsUTF8AndSize(text, &n)
        if fdj_string(&self.out, data, n):
            raise MemoryError
        return 0

    cdef int double(self, double value) except -1:
        if self.python and not isfinite(value):
            raise Unknown("a float is not finite")
        if fdj_double(&self.out, value, &self.style):
            raise MemoryError
        return 0

    cdef int integer(self, value) except -1:
        """An exact int."""
        cdef int overflow = 0
        cdef long long n = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return self.put(str(value).encode())
        if fdj_integer(&self.out, n):
            raise MemoryError
        return 0

    cdef int integers(self, list values) except -1:
        """A list of ints, in brackets."""
        cdef Py_ssize_t i
        self.literal(b"[", 1)
        for i in range(PyList_GET_SIZE(values)):
            if i:
                self.literal(b",", 1)
            value = <object>PyList_GET_ITEM(values, i)
            if not PyLong_CheckExact(value):
                raise Unknown("a list of integers has something else")
            self.integer(value)
        return self.literal(b"]", 1)


_OF_INSTANCES = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


cdef class Piece:
    """Part of an answer that can write itself, and can become the model that it stands in for."""

    cdef int write(self, _Writer writer) except -1:
        raise NotImplementedError

    cdef object plain(self):
        """The value in Python's own types, as ``model_dump`` gives it."""
        raise NotImplementedError

    cdef object whole_model(self):
        """The full model, always the same one from now on."""
        raise NotImplementedError

    cdef object model_class(self):
        """The class that it stands in for."""
        raise NotImplementedError

    @property
    def __class__(self):
        return self.model_class()

    cdef object attribute_of_model(self, name):
        # isinstance looks for some of the class's: not worth making the model for.
        if name.startswith("__pydantic_") and name not in _OF_INSTANCES:
            return getattr(self.model_class(), name)
        return getattr(self.whole_model(), name)

    def __getattr__(self, name):
        return self.attribute_of_model(name)

    def __setattr__(self, name, value):
        setattr(self.whole_model(), name, value)

    def __delattr__(self, name):
        delattr(self.whole_model(), name)

    def __eq__(self, other):
        return self.whole_model() == (full(other) if isinstance(other, Piece) else other)

    __hash__ = None

    def __repr__(self):
        return repr(self.whole_model())

    def __str__(self):
        return str(self.whole_model())

    def __iter__(self):
        return iter(self.whole_model())

    def __dir__(self):
        return dir(self.whole_model())

    def __copy__(self):
        return self.whole_model().__copy__()

    def __deepcopy__(self, memo):
        return self.whole_model().__deepcopy__(memo)

    def __reduce_ex__(self, protocol):
        return self.whole_model().__reduce_ex__(protocol)


cpdef object full(value):
    """The full model of a stand-in; of a list of them, a list; of anything else, itself."""
    if isinstance(value, Piece):
        return (<Piece>value).whole_model()
    if PyList_CheckExact(value):
        return [full(item) for item in value]
    return value


cpdef object standing_in(value):
    """Whether a value is one of the stand-ins made here, whatever class it says it has."""
    return issubclass(type(value), Piece)

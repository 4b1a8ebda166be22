# The buffer that an answer is written into.


class Unknown(Exception):
    """Raised for a value that is not supported here; the full model then writes it."""


def note_unwritten(error):
    """Note why an answer was not written here: Unknown, or a text with a lone surrogate."""
    note(str(error) if isinstance(error, Unknown) else "a text is no Unicode")


cdef list _idle = []  # writers whose buffers wait for the next answer


@cython.final
@cython.no_gc
cdef class _Writer:
    """An output buffer, and the style of its numbers.

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

    cdef str text(self):
        return PyUnicode_DecodeUTF8(self.out.data, self.out.used, NULL)

    cdef int put(self, bytes text) except -1:
        if fdj_put(&self.out, text, len(text)):
            raise MemoryError
        return 0

    cdef inline int literal(self, const char *text, size_t n) except -1:
        if fdj_put(&self.out, text, n):
            raise MemoryError
        return 0

    cdef int string(self, text) except -1:
        """Write a str; raise UnicodeEncodeError for a lone surrogate."""
        cdef Py_ssize_t n
        cdef const char *data
        data = PyUnicode_AsUTF8AndSize(text, &n)
        if fdj_string(&self.out, data, n):
            raise MemoryError
        return 0

    cdef inline int double(self, double value) except -1:
        if self.python and not isfinite(value):
            raise ValueError("Out of range float values are not JSON compliant")  # as Python's json
        if fdj_double(&self.out, value, &self.style):
            raise MemoryError
        return 0

    cdef int integer(self, value) except -1:
        """Write an exact int."""
        cdef int overflow = 0
        cdef long long n = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return self.put(str(value).encode())
        if fdj_integer(&self.out, n):
            raise MemoryError
        return 0

    cdef int integers(self, list values) except -1:
        """Write a list of ints, in brackets."""
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

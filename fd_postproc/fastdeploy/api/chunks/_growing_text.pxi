# The text of an answer that grows.


@cython.final
@cython.no_gc
cdef class GrowingText:
    """A text that grows: its UTF-8 in one memory.  ``io.StringIO`` keeps each string that is written."""

    cdef fdj_buffer bytes

    def __dealloc__(self):
        free(self.bytes.data)

    def append(self, str text not None):
        """Append a text; lone surrogates are kept."""
        cdef Py_ssize_t n
        cdef const char *data
        try:
            data = PyUnicode_AsUTF8AndSize(text, &n)
        except UnicodeEncodeError:
            encoded = text.encode("utf-8", "surrogatepass")
            data, n = <const char *>encoded, len(encoded)
        if fdj_put(&self.bytes, data, n):
            raise MemoryError

    def whole(self):
        """The text."""
        return PyUnicode_DecodeUTF8(self.bytes.data, self.bytes.used, "surrogatepass")

    def __sizeof__(self):
        return object.__sizeof__(self) + self.bytes.room

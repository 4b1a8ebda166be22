# A chunk as a template: what all chunks of a stream have in common, and places for what differs.


cdef int _write_value(_Writer writer, value) except -1:
    """Write a value as pydantic does it; Unknown for a type that no chunk has."""
    if PyUnicode_CheckExact(value):
        return writer.string(value)
    if PyFloat_CheckExact(value):
        return writer.double(PyFloat_AS_DOUBLE(value))
    if PyLong_CheckExact(value):
        return writer.integer(value)
    if value is None:
        return writer.literal(b"null", 4)
    if PyList_CheckExact(value):
        return writer.integers(value)
    if isinstance(value, Scores):
        return (<Scores>value).write(writer)
    raise Unknown(f"a chunk has a value of the type {type(value).__name__}")


cpdef str json_of(value, FloatStyle style):
    """The JSON of a value that a chunk may have; Unknown for one of another type."""
    cdef _Writer writer = _Writer.begin(style)
    try:
        writer.unset = True
        _write_value(writer, value)
        return writer.text()
    finally:
        writer.end()


@cython.final
cdef class Template:
    """Constant parts of a chunk, and an order of the values between them.

    Parameters
    ----------
    chunk : str
        A chunk of the stream.
    keys : sequence of str
        Keys whose values differ from chunk to chunk.
    values : list
        Their values in this chunk: None, str, int, float, a list of ints, or `Scores`.
    style : FloatStyle
        How pydantic prints floats.

    Raises
    ------
    ValueError
        If the chunk does not have one of the keys with its value.
    """

    cdef list parts      # bytes: what is before each value, and after the last one
    cdef list order      # for each place, which of the values stands there
    cdef str first       # the first key, as it is in a chunk
    cdef FloatStyle style

    def __init__(self, str chunk not None, keys, list values not None, FloatStyle style not None):
        self.parts, self.order, self.style = [], [], style
        found, at = [], 0
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            text = json_of(value, style)
            # No text of the chunk can hold this: there its quotes would be escaped.
            found.append((chunk.index(f'"{key}":{text}') + len(key) + 3, number, len(text)))
        found.sort()
        self.first = f'"{keys[found[0][1]]}":'
        for begin, number, length in found:
            self.parts.append(chunk[at:begin].encode())
            self.order.append(number)
            at = begin + length
        self.parts.append(chunk[at:].encode())

    def headed(self, str chunk not None):
        """The template with the head of another stream's chunk: all before its first value.

        Raises
        ------
        ValueError
            If the chunk does not have the first key.
        """
        cdef Template made = Template.__new__(Template)
        made.parts, made.order, made.style, made.first = self.parts.copy(), self.order, self.style, self.first
        made.parts[0] = chunk[:chunk.index(self.first) + len(self.first)].encode()
        return made

    def text(self, list values not None):
        """Return the chunk with other values, in the order of the keys.

        Raises
        ------
        Unknown
            For a value of another type.
        UnicodeEncodeError
            For a text with a lone surrogate.
        """
        global _written
        cdef _Writer writer = _Writer.begin(self.style)
        cdef Py_ssize_t i, places = PyList_GET_SIZE(self.order)
        try:
            writer.unset = True
            for i in range(places):
                writer.put(<bytes>PyList_GET_ITEM(self.parts, i))
                _write_value(writer, values[<object>PyList_GET_ITEM(self.order, i)])
            writer.put(<bytes>PyList_GET_ITEM(self.parts, places))
            text = writer.text()
        finally:
            writer.end()
        _written += 1
        return text

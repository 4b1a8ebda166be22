# New text out of new token ids, where each token is some bytes and a text is all of them in a row.

cdef extern from "Python.h":
    Py_ssize_t PyUnicode_GET_LENGTH(object text) noexcept
    uint32_t PyUnicode_READ_CHAR(object text, Py_ssize_t i) noexcept
    object PyUnicode_Substring(object text, Py_ssize_t begin, Py_ssize_t end)
    Py_ssize_t PyUnicode_Tailmatch(
        object text, object part, Py_ssize_t begin, Py_ssize_t end, int where) except -1

cdef enum:
    REPLACED = 0xFFFD


@cython.final
cdef class ByteTokens:
    """Cached bytes of a byte-level tokenizer's tokens, by id.

    Parameters
    ----------
    library : tokenizers.Tokenizer
    bytes_of : dict of str to int
        The byte that a character of a token stands for.
    size : int
        How many ids there are.
    """

    cdef object name_of, decode
    cdef dict bytes_of
    cdef list known

    def __init__(self, library, dict bytes_of not None, Py_ssize_t size):
        self.name_of, self.decode, self.bytes_of = library.id_to_token, library.decode, bytes_of
        self.known = [None] * size

    def new_text(self, list ids not None, Py_ssize_t prefix, Py_ssize_t read, bint to_the_end=False):
        """Decode as PaddleFormers' ``decode_token``: new text, and both offsets for the next call.

        Parameters
        ----------
        ids : list of int
            All of an answer.
        prefix, read : int
            Where the windows begin, and where the first one ends.
        to_the_end : bool, optional
            Whether a character that is not complete is given, too, as U+FFFD.

        None is returned if the tokenizer has to be asked.
        """
        cdef fdj_buffer window
        cdef Py_ssize_t before_size = 0, count = PyList_GET_SIZE(ids), i
        cdef bytes text
        if not 0 <= prefix <= read <= count:
            return None
        memset(&window, 0, sizeof(window))
        try:
            for i in range(prefix, count):
                if i == read:
                    before_size = window.used
                text = self.text(ids[i])
                if text is None:
                    return None
                if fdj_put(&window, text, len(text)):
                    raise MemoryError
            if read == count:
                before_size = window.used
            return _grown(PyUnicode_DecodeUTF8(window.data, before_size, "replace"),
                          PyUnicode_DecodeUTF8(window.data, window.used, "replace"),
                          prefix, read, count, to_the_end)
        finally:
            free(window.data)

    cdef bytes text(self, token):
        """The bytes of a token; None if the id is not a token's, or its text is a special one."""
        if not PyLong_CheckExact(token) or not -1 < token < PyList_GET_SIZE(self.known):
            return None
        cdef bytes text = self.known[<long>token]
        if text is not None:
            return text
        name = self.name_of(token)
        if name is None:
            return None
        text = self.spelled(name)
        if self.decode([token], skip_special_tokens=False) != text.decode(errors="replace"):
            note("texts of new tokens: a token is shown as something else than its bytes")
            return None
        self.known[token] = text
        return text

    cdef bytes spelled(self, str name):
        letters = [self.bytes_of.get(letter) for letter in name]
        return name.encode() if None in letters else bytes(letters)  # an added token is its own text


cdef tuple _grown(
    str before, str text, Py_ssize_t prefix, Py_ssize_t read, Py_ssize_t count, bint to_the_end
):
    """The text by which the second window is longer than the first."""
    cdef Py_ssize_t old = PyUnicode_GET_LENGTH(before), size = PyUnicode_GET_LENGTH(text)
    if size <= old:
        return "", prefix, read
    if not to_the_end:
        if PyUnicode_READ_CHAR(text, size - 1) == REPLACED:
            return "", prefix, read    # perhaps a character that is not complete
        if size > 1 and PyUnicode_READ_CHAR(text, size - 2) == REPLACED:
            return "", prefix, read
    if not PyUnicode_Tailmatch(text, before, 0, size, -1):
        return "", prefix, count
    return PyUnicode_Substring(text, old, size), read, count

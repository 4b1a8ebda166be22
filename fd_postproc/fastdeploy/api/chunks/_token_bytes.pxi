# New text out of new token ids, where each token is some bytes and a text is all of them in a row.

cdef extern from "Python.h":
    Py_ssize_t PyUnicode_GET_LENGTH(object text) noexcept
    uint32_t PyUnicode_READ_CHAR(object text, Py_ssize_t i) noexcept
    object PyUnicode_Substring(object text, Py_ssize_t begin, Py_ssize_t end)
    Py_ssize_t PyUnicode_Tailmatch(
        object text, object part, Py_ssize_t begin, Py_ssize_t end, int where) except -1

cdef enum:
    PIECE_PLAIN = 0
    PIECE_ENDS_RUN = 1    # a special token: its own text, and what follows begins anew
    PIECE_SILENT = 2      # a control token: no text, and nothing changes
    REPLACED = 0xFFFD

BY_BYTE = "fd_postproc_bytes"
"""Errors of `bytes.decode`: U+FFFD for each byte of a broken character, as SentencePiece has it."""


@cython.final
cdef class TokenBytes:
    """Cached bytes of a tokenizer's tokens, by id.

    Parameters
    ----------
    meet : callable
        From an id to a tuple: its bytes at the beginning of a run, its bytes elsewhere, and 0, or 1 if it
        ends a run, or 2 if it has no text.  None if the tokenizer has to be asked.
    stays_at_start : bool
        Whether what follows a piece that is dropped at the beginning is at the beginning, too.
    size : int
        How many ids there are.
    errors : str, optional
        How text with bytes of no character is decoded, or with U+FFFD: by the rule of byte-level tokenizers,
        with this for `bytes.decode`.  None: nothing is given while there is any in the windows.
    """

    cdef object meet
    cdef bint stays_at_start
    cdef public str errors
    cdef list known

    def __init__(self, meet, bint stays_at_start, Py_ssize_t size, str errors=None):
        self.meet, self.stays_at_start, self.known = meet, stays_at_start, [None] * size
        self.errors = errors

    def new_text(self, list ids not None, Py_ssize_t prefix, Py_ssize_t read, bint to_the_end=False):
        """Decode as PaddleFormers' ``decode_token``: new text, and both offsets for the next call.

        Parameters
        ----------
        ids : list of int
            All of an answer.
        prefix, read : int
            Where the windows begin, and where the first one ends.
        to_the_end : bool, optional
            Whether a character that is not complete is given, too, as U+FFFD; it needs `errors`.

        None is returned if the tokenizer has to be asked.
        """
        cdef fdj_buffer window
        cdef Py_ssize_t count = PyList_GET_SIZE(ids), before_size = 0, i
        cdef bint at_start = True
        cdef int kind
        if not 0 <= prefix <= read <= count:
            return None
        memset(&window, 0, sizeof(window))
        try:
            for i in range(prefix, count):
                if i == read:
                    before_size = window.used
                piece = self.piece(ids[i])
                if piece is None:
                    return None
                text = <bytes>(piece[0] if at_start else piece[1])
                if fdj_put(&window, text, len(text)):
                    raise MemoryError
                kind = piece[2]
                if kind == PIECE_ENDS_RUN:
                    at_start = True
                elif kind == PIECE_PLAIN:
                    at_start = at_start and self.stays_at_start and not text
            if read == count or window.used == before_size:
                return "", prefix, read
            text = _whole_characters(window.data, before_size, window.used)
            if text is not None:
                return text, read, count
            if self.errors is None:
                return "", prefix, read
            errors = <bytes>self.errors.encode()
            return _grown(PyUnicode_DecodeUTF8(window.data, before_size, errors),
                          PyUnicode_DecodeUTF8(window.data, window.used, errors),
                          prefix, read, count, to_the_end)
        finally:
            free(window.data)

    cdef tuple piece(self, token):
        if not PyLong_CheckExact(token) or not -1 < token < PyList_GET_SIZE(self.known):
            return None
        cdef tuple piece = self.known[<long>token]
        if piece is None:
            piece = self.meet(token)
            self.known[<long>token] = piece
        return piece


cdef str _whole_characters(const char *window, Py_ssize_t old, Py_ssize_t used):
    """The new text; None if the window has U+FFFD, or a byte that belongs to no character."""
    try:
        before = PyUnicode_DecodeUTF8(window, old, NULL)
        text = PyUnicode_DecodeUTF8(window + old, used - old, NULL)
    except UnicodeDecodeError:
        return None
    return None if "\ufffd" in before or "\ufffd" in text else text


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


def _replaced(error):
    return "\ufffd" * (error.end - error.start), error.end


from codecs import register_error

register_error(BY_BYTE, _replaced)

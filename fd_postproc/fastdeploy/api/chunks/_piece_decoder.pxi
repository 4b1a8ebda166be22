# New text out of new token ids, where each token is a piece of a SentencePiece model.

cdef enum:
    PIECE_PLAIN = 0
    PIECE_ENDS_RUN = 1    # a special token: its own text, and what follows begins anew
    PIECE_SILENT = 2      # a control token: no text, and nothing changes


@cython.final
cdef class PieceTokens:
    """Cached texts of a SentencePiece model's pieces, by id.

    Parameters
    ----------
    meet : callable
        From an id to a tuple: its bytes at the beginning of a run, its bytes elsewhere, and 0, or 1 if it
        ends a run, or 2 if it has no text.  None if the tokenizer has to be asked.
    stays_at_start : bool
        Whether what follows a piece that is dropped at the beginning is at the beginning, too.
    size : int
        How many ids there are.
    """

    cdef object meet
    cdef bint stays_at_start
    # Whether text with U+FFFD is given by the rule of byte-level tokenizers.  False: nothing is given while
    # there is any in the windows.
    cdef public bint mends
    cdef list known

    def __init__(self, meet, bint stays_at_start, Py_ssize_t size):
        self.meet, self.stays_at_start, self.known = meet, stays_at_start, [None] * size

    def new_text(self, list ids not None, Py_ssize_t prefix, Py_ssize_t read, bint to_the_end=False):
        """Decode as PaddleFormers' ``decode_token`` of Python tokenizers: whole characters only.

        It is called as that of `ByteTokens`; `to_the_end` needs `mends`.
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
            if not self.mends:
                return "", prefix, read
            return _grown(_with_replacements(window.data, before_size),
                          _with_replacements(window.data, window.used), prefix, read, count, to_the_end)
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


cdef str _with_replacements(const char *window, Py_ssize_t used):
    """The text of bytes, with U+FFFD for each byte of a broken character, as SentencePiece has it."""
    return PyUnicode_DecodeUTF8(window, used, b"fd_postproc_bytes")


def _replaced(error):
    return "\ufffd" * (error.end - error.start), error.end


from codecs import register_error

register_error("fd_postproc_bytes", _replaced)

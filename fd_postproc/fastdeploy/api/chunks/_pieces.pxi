# Long lists and texts of an answer, which are written in pieces; the event loop has its turns in between.

cdef enum:
    MANY = 64         # items of a list that is written in pieces
    PIECE = 1 << 16   # bytes after which a piece ends
    LONG_TEXT = 1 << 18    # letters of a text that is written in pieces, and of such a piece
    NEW_TEXTS = 64    # texts that are made in one piece: each is asked of the tokenizer


cdef class Part:
    """A place of an answer's JSON that is written later, in pieces."""

    cdef readonly Py_ssize_t size    # bytes of its JSON; -1: not known before it is written
    cdef Py_ssize_t next, count

    cdef int write_item(self, _Writer writer, Py_ssize_t i) except -1:
        raise NotImplementedError

    cdef Py_ssize_t texts_known(self) noexcept:
        """Number of texts that were made so far, where an item may make some."""
        return 0

    cdef bytes piece(self, _Writer writer):
        """The JSON of the next items; None after the last one."""
        cdef Py_ssize_t before = self.texts_known()
        if self.next > self.count:
            return None
        writer.out.used = 0
        if self.next == 0:
            writer.literal(b"[", 1)
        while (self.next < self.count and writer.out.used < PIECE
               and self.texts_known() - before < NEW_TEXTS):
            if self.next:
                writer.literal(b",", 1)
            self.write_item(writer, self.next)
            self.next += 1
        if self.next == self.count:
            writer.literal(b"]", 1)
            self.next += 1
        return writer.out.data[:writer.out.used]


@cython.final
cdef class _Items(Part):
    cdef list values
    cdef object cls    # of models; None: lists of integers

    @staticmethod
    cdef _Items of(list values, cls):
        cdef _Items part = _Items.__new__(_Items)
        part.values, part.cls, part.count, part.size = values, cls, len(values), -1
        return part

    cdef int write_item(self, _Writer writer, Py_ssize_t i) except -1:
        return _write_item(writer, self.values[i], self.cls)


@cython.final
cdef class _LongText(Part):
    """What stands between the quotes of a text in which nothing is escaped: base64."""

    cdef object text
    cdef const char *letters

    @staticmethod
    cdef _LongText of(text):
        cdef _LongText part = _LongText.__new__(_LongText)
        part.text, part.letters = text, PyUnicode_AsUTF8AndSize(text, &part.size)
        part.count = part.size
        return part

    cdef bytes piece(self, _Writer writer):
        cdef Py_ssize_t begin = self.next, end = min(self.count, begin + LONG_TEXT)
        self.next = end
        return self.letters[begin:end] if begin < end else None


cdef bint _is_long(text) except -1:
    """Whether a text is long, ASCII, and written as it is."""
    cdef Py_ssize_t size
    cdef const char *letters
    if len(text) < LONG_TEXT:
        return False
    letters = PyUnicode_AsUTF8AndSize(text, &size)
    return size == len(text) and fdj_plain(letters, size) == <size_t>size


@cython.final
cdef class _Written(Part):
    """A part whose JSON is written already."""

    cdef list pieces

    @staticmethod
    cdef _Written of(list pieces):
        cdef _Written part = _Written.__new__(_Written)
        part.pieces, part.size, part.count = pieces, sum(map(len, pieces)), len(pieces)
        return part

    cdef bytes piece(self, _Writer writer):
        if self.next == self.count:
            return None
        piece, self.pieces[self.next] = self.pieces[self.next], None
        self.next += 1
        return piece


@cython.final
cdef class Pieces:
    """An answer's JSON, in pieces: an iterator of bytes."""

    cdef readonly Py_ssize_t size    # bytes of all of it; -1 before `settle` has ended
    cdef bytes frame      # what stands around the parts
    cdef list parts       # (place in `frame`, Part)
    cdef Py_ssize_t at, next
    cdef FloatStyle style
    cdef bint unset, python

    @staticmethod
    cdef Pieces of(_Writer writer):
        cdef Pieces pieces = Pieces.__new__(Pieces)
        pieces.frame, pieces.parts = writer.out.data[:writer.out.used], writer.parts
        pieces.style, pieces.unset, pieces.python = writer.floats, writer.unset, writer.python
        pieces.size = -1
        return pieces

    @property
    def whole(self):
        """All of it, where nothing was long enough to be left for later; None otherwise."""
        return None if self.parts else self.frame

    def settle(self):
        """Write what has to be written before the size is known; an iterator that ends then."""
        cdef Py_ssize_t i, size = len(self.frame)
        for i in range(len(self.parts)):
            place, part = self.parts[i]
            if (<Part>part).size < 0:
                pieces = []
                while (piece := self.piece_of(part)) is not None:
                    pieces.append(piece)
                    yield
                part = _Written.of(pieces)
                self.parts[i] = place, part
            size += (<Part>part).size
        self.size = size

    cdef bytes piece_of(self, Part part):
        cdef _Writer writer = _Writer.begin(self.style)
        writer.unset, writer.python = self.unset, self.python
        try:
            return part.piece(writer)
        finally:
            writer.end()

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t begin = self.at
        cdef bytes piece
        while self.next < len(self.parts):
            place, part = self.parts[self.next]
            if self.at < place:
                self.at = place
                return self.frame[begin:place]
            piece = self.piece_of(part)
            if piece is not None:
                return piece
            self.next += 1
        if self.at >= len(self.frame):
            raise StopIteration
        self.at = len(self.frame)
        return self.frame[begin:]

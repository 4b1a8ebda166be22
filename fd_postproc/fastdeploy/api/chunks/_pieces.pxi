# Long lists of an answer, which are written in pieces; the event loop has its turns in between.

cdef enum:
    MANY = 64         # items of a list that is written in pieces
    PIECE = 1 << 16   # bytes after which a piece ends
    NEW_TEXTS = 64    # texts that are made in one piece: each is asked of the tokenizer


cdef class Part:
    """A place of an answer's JSON that is written later, in pieces."""

    cdef Py_ssize_t next, count

    cdef int write_item(self, _Writer writer, Py_ssize_t i) except -1:
        raise NotImplementedError

    cdef bytes piece(self, _Writer writer):
        """The JSON of the next items; None after the last one."""
        if self.next > self.count:
            return None
        if self.next == 0:
            writer.literal(b"[", 1)
        while self.next < self.count and writer.out.used < PIECE:
            if self.next:
                writer.literal(b",", 1)
            self.write_item(writer, self.next)
            self.next += 1
        if self.next == self.count:
            writer.literal(b"]", 1)
            self.next += 1
        return writer.out.data[:writer.out.used]


@cython.final
cdef class Pieces:
    """JSON as Python's json writes it, in pieces: an iterator of bytes; it raises ValueError for NaN."""

    cdef bytes frame      # what stands around the parts
    cdef list parts       # (place in `frame`, Part)
    cdef Py_ssize_t at, next

    @staticmethod
    cdef Pieces of(bytes frame, list parts):
        cdef Pieces pieces = Pieces.__new__(Pieces)
        pieces.frame, pieces.parts = frame, parts
        return pieces

    cdef bytes piece_of(self, Part part):
        cdef _Writer writer = _Writer.begin(PYTHON)
        writer.python = True
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

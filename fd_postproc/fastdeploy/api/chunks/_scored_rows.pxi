# Rows of tokens and scores of an answer's log-probabilities: the sampled token, then the likeliest.

cdef enum:
    PIECE = 1 << 16    # bytes after which a piece of a long list ends


cdef struct scored:
    text_record *record    # NULL: not asked for yet
    double score
    long long id


cdef class Scores:
    """Log-probabilities of an answer, of one result or of several, which write their JSON.

    Parameters
    ----------
    columns : int
        Alternatives to be shown.
    texts : Texts or None
        As the API shows them; None: none are wanted, everything is "", and FastDeploy looks at no id.
    """

    cdef Texts texts           # owns the records
    cdef scored *cells
    cdef Py_ssize_t *ends      # of each row, in cells
    cdef readonly Py_ssize_t rows
    cdef Py_ssize_t most, room_of_rows, room_of_cells
    cdef bint has_texts
    cdef tuple heads           # what stands before the items of each list
    cdef bytes unset           # the last field, which streams leave out

    def __cinit__(self, *arguments):
        self.texts = _NO_TEXTS

    def __init__(self, columns, Texts texts):
        if not PyLong_CheckExact(columns):
            raise Unknown("the number of log-probabilities is no integer")
        self.most = max(min(columns, 1 << 40), 0) + 1
        if texts is not None:
            self.texts, self.has_texts = texts, True

    def __dealloc__(self):
        PyMem_Free(self.cells)
        PyMem_Free(self.ends)

    @classmethod
    def of(cls, top, columns, texts):
        """The log-probabilities of a result; None where FastDeploy shows none.  It raises as `add`."""
        cdef Scores made
        if top is None or columns is None or (PyLong_CheckExact(columns) and columns < 0):
            return None
        made = cls(columns, texts)
        made.take(top)
        return made if made.rows else None

    def add(self, top):
        """Add the rows of a result.

        Parameters
        ----------
        top : list of list
            Token ids, log-probabilities and ranks, a row each per token, sampled token first; or packed.

        Raises
        ------
        Unknown, Exception
            For what FastDeploy has to do itself, and whatever the tokenizer raises: likewise.  Nothing is
            added then.
        """
        self.take(top)

    def json(self, FloatStyle style not None):
        """The JSON as a stream's chunk shows it, where fields that were not set are left out."""
        cdef _Writer writer = _Writer.begin(style)
        try:
            writer.unset = True
            self.write(writer)
            return writer.text()
        finally:
            writer.end()

    cdef int write(self, _Writer writer) except -1:
        cdef Py_ssize_t which
        for which in range(len(self.heads)):
            self.write_rows(writer, 0, which, <size_t>-1)
        return writer.literal(b"}", 1)

    def pieces(self):
        """The JSON as that of an answer that is not streamed: Python's, with all fields, in pieces.

        The event loop has its turns in between.  It raises ValueError for NaN.
        """
        cdef Py_ssize_t which, row
        for which in range(len(self.heads)):
            row = -1
            while row < self.rows:
                piece, row = self.piece(max(row, 0), which)
                yield piece
        yield self.unset + b"}"

    cdef tuple piece(self, Py_ssize_t row, Py_ssize_t which):
        """Some of a list, from a row on, and where the next piece begins."""
        cdef _Writer writer = _Writer.begin(PYTHON)
        try:
            writer.python = True
            row = self.write_rows(writer, row, which, PIECE)
            return writer.out.data[:writer.out.used], row
        finally:
            writer.end()

    cdef int write_item(self, _Writer writer, Py_ssize_t row, int which) except -1:
        """Write what a list, one of several, has for a row."""
        raise NotImplementedError

    @cython.final
    cdef Py_ssize_t write_rows(self, _Writer writer, Py_ssize_t row, int which, size_t most) except -1:
        """Write a list from a row on until there are so many bytes; the row at which to go on."""
        if row == 0:
            writer.put(<bytes>self.heads[which])
        while row < self.rows and writer.out.used < most:
            if row:
                writer.literal(b",", 1)
            self.write_item(writer, row, which)
            row += 1
        if row == self.rows:
            writer.literal(b"]", 1)
        return row

    @cython.final
    cdef inline Py_ssize_t begin(self, Py_ssize_t row) noexcept:
        return self.ends[row - 1] if row else 0

    @cython.final
    cdef inline text_record *record(self, Py_ssize_t i) except NULL:
        if self.cells[i].record == NULL:
            self.cells[i].record = self.texts.numbered(self.cells[i].id)
        return self.cells[i].record

    @cython.final
    cdef int take(self, top) except -1:
        cdef Py_ssize_t before = self.rows
        try:
            self.read(_packed_again(top))
            self.ask(before)
        except BaseException:
            self.rows = before
            raise
        return 0

    @cython.final
    cdef int make_room(self, Py_ssize_t rows, Py_ssize_t cells) except -1:
        """Have room for so many rows and cells more."""
        cdef void *moved
        rows, cells = self.rows + rows, self.begin(self.rows) + cells
        if rows > self.room_of_rows:
            rows = rows if self.room_of_rows == 0 else max(rows, 2 * self.room_of_rows)
            moved = PyMem_Realloc(self.ends, rows * sizeof(Py_ssize_t))
            if moved == NULL:
                raise MemoryError
            self.ends, self.room_of_rows = <Py_ssize_t *>moved, rows
        if cells > self.room_of_cells:
            cells = cells if self.room_of_cells == 0 else max(cells, 2 * self.room_of_cells)
            moved = PyMem_Realloc(self.cells, cells * sizeof(scored))
            if moved == NULL:
                raise MemoryError
            self.cells, self.room_of_cells = <scored *>moved, cells
        return 0

    @cython.final
    cdef int read(self, PackedRows top) except -1:
        """Read the packed bytes, in which all scores are floats."""
        cdef fdu_bytes ids, scores
        cdef size_t row, i, wide, long, n
        cdef int64_t id = 0
        cdef double score = 0.0
        cdef scored *cells
        self.make_room(top.rows, (top.size - top.scores) // 5)  # bytes of the shorter kind of float
        ids.at, scores.at = top.packed + top.ids, top.packed + top.scores
        ids.end = scores.end = top.packed + top.size
        for row in range(top.rows):
            if not fdu_list(&ids, &wide) or not fdu_list(&scores, &long):
                raise AssertionError("packed log-probabilities were checked")
            n = min(wide, long, <size_t>self.most)
            if n == 0:
                raise Unknown("a row of log-probabilities is empty")
            cells = self.cells + self.begin(self.rows)
            for i in range(wide):
                fdu_integer(&ids, &id)
                if i < n:
                    cells[i].record, cells[i].id = NULL, id if self.has_texts else 0
            for i in range(long):
                fdu_float(&scores, &score)
                if i < n:
                    cells[i].score = score
            self.ends[self.rows] = self.begin(self.rows) + n
            self.rows += 1
        return 0

    @cython.final
    cdef int ask(self, Py_ssize_t row) except -1:
        """Ask for the texts of the rows from one on: a tokenizer that refuses one does it now."""
        cdef Py_ssize_t i
        for i in range(self.begin(row), self.begin(self.rows)):
            self.record(i)
        return 0


cdef PackedRows _packed_again(top):
    """Log-probabilities as they come out of a message; Unknown for what FastDeploy has to handle."""
    if type(top) is PackedRows:
        if (<PackedRows>top).lists is None:
            return top
        top = (<PackedRows>top).lists
    try:
        made = unpack(_import("msgpack").packb({_top: top}, strict_types=True))[_top]
    except Exception:  # whatever msgpack raises for what it does not know
        made = None
    if type(made) is not PackedRows:
        raise Unknown("log-probabilities are not three lists of numbers")
    return made


_NO_TEXTS = Texts(lambda token: ("", ""))

# Rows of tokens and scores of an answer's log-probabilities: the sampled token, then the likeliest.

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
    cdef bint has_texts, only_floats

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

    def pieces(self):
        """The JSON as that of an answer that is not streamed, in pieces: Python's, with all fields."""
        cdef _Writer writer = _Writer.begin(PYTHON)
        try:
            writer.python, writer.parts = True, []
            self.write(writer)
            return Pieces.of(writer.out.data[:writer.out.used], writer.parts)
        finally:
            writer.end()

    cdef int write(self, _Writer writer) except -1:
        raise NotImplementedError

    cdef int write_item(self, _Writer writer, Py_ssize_t row, int which) except -1:
        """Write what a list, one of several, has for a row."""
        raise NotImplementedError

    @cython.final
    cdef int write_list(self, _Writer writer, int which) except -1:
        cdef Py_ssize_t row
        if writer.parts is not None and self.rows >= MANY:
            return writer.leave(_ScoreItems.of(self, which))
        writer.literal(b"[", 1)
        for row in range(self.rows):
            if row:
                writer.literal(b",", 1)
            self.write_item(writer, row, which)
        return writer.literal(b"]", 1)

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
            if type(top) is not PackedRows:
                self.read_lists(top)
            elif (<PackedRows>top).lists is None:
                self.read_packed(<PackedRows>top)
            else:
                self.read_lists((<PackedRows>top).lists)
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
    cdef int read_lists(self, top) except -1:
        """Read three lists, of ids, scores and ranks; Unknown for values that FastDeploy has to handle."""
        cdef Py_ssize_t row, i, rows, n, total = 0, at = self.begin(self.rows)
        cdef list ids, scores, ranks, row_ids, row_scores
        if not (type(top) in (list, tuple) and len(top) == 3 and all([type(one) is list for one in top])):
            raise Unknown("log-probabilities are not three lists")
        ids, scores, ranks = top
        rows = min(len(ids), len(scores), len(ranks))
        for row in range(rows):
            if not PyList_CheckExact(ids[row]) or not PyList_CheckExact(scores[row]):
                raise Unknown("a row of log-probabilities is no list")
            n = min(len(ids[row]), len(scores[row]), self.most)
            if n == 0:
                raise Unknown("a row of log-probabilities is empty")
            total += n
        self.make_room(rows, total)
        for row in range(rows):
            row_ids, row_scores = ids[row], scores[row]
            for i in range(min(len(row_ids), len(row_scores), self.most)):
                self.cells[at].record = NULL
                self.cells[at].score = _score(row_scores[i], self.only_floats)
                self.cells[at].id = _token_id(row_ids[i]) if self.has_texts else 0
                at += 1
            self.ends[self.rows] = at
            self.rows += 1
        return 0

    @cython.final
    cdef int read_packed(self, PackedRows top) except -1:
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


_NO_TEXTS = Texts(lambda token: ("", ""))


@cython.final
cdef class _ScoreItems(Part):
    """A long list of an answer's log-probabilities."""

    cdef Scores scores
    cdef int which

    @staticmethod
    cdef _ScoreItems of(Scores scores, int which):
        cdef _ScoreItems part = _ScoreItems.__new__(_ScoreItems)
        part.scores, part.which, part.count = scores, which, scores.rows
        return part

    cdef int write_item(self, _Writer writer, Py_ssize_t i) except -1:
        return self.scores.write_item(writer, i, self.which)


cdef inline double _score(value, bint only_floats) except? -1.5:
    """The value of a typed float field; integers become floats."""
    if PyFloat_CheckExact(value):
        return PyFloat_AS_DOUBLE(value)
    if PyLong_CheckExact(value) and not only_floats and -(1 << 53) <= value <= 1 << 53:
        return <double>value
    raise Unknown("a log-probability is no float")

# Rows of tokens and scores of an answer's log-probabilities: the sampled token, then the likeliest.

cdef struct scored:
    text_record *record    # NULL: not asked for yet
    double score
    long long id


@cython.final
cdef class _Rows:
    """The rows of a result, each with as many cells as are shown."""

    cdef Texts texts        # owns the records; None: no texts are wanted, and FastDeploy looks at no id
    cdef scored *cells
    cdef Py_ssize_t *ends   # of each row, in cells
    cdef Py_ssize_t rows

    def __dealloc__(self):
        PyMem_Free(self.cells)
        PyMem_Free(self.ends)

    cdef inline Py_ssize_t begin(self, Py_ssize_t row) noexcept:
        return self.ends[row - 1] if row else 0

    cdef inline text_record *record(self, Py_ssize_t i) except NULL:
        if self.cells[i].record == NULL:
            self.cells[i].record = self.texts.numbered(self.cells[i].id)
        return self.cells[i].record

    cdef int allocate(self, Py_ssize_t rows, Py_ssize_t cells) except -1:
        self.ends = <Py_ssize_t *>PyMem_Malloc((rows + 1) * sizeof(Py_ssize_t))
        self.cells = <scored *>PyMem_Calloc(cells + 1, sizeof(scored))
        if self.ends == NULL or self.cells == NULL:
            raise MemoryError
        self.rows = rows
        return 0

    cdef int read_lists(self, top, Py_ssize_t most, bint only_floats) except -1:
        """Read three lists, of ids, scores and ranks; Unknown for values that FastDeploy has to handle."""
        cdef Py_ssize_t row, i, rows, n, total = 0, at = 0
        cdef list ids, scores, ranks, row_ids, row_scores
        if not (type(top) in (list, tuple) and len(top) == 3 and all([type(one) is list for one in top])):
            raise Unknown("log-probabilities are not three lists")
        ids, scores, ranks = top
        rows = min(len(ids), len(scores), len(ranks))
        for row in range(rows):
            if not PyList_CheckExact(ids[row]) or not PyList_CheckExact(scores[row]):
                raise Unknown("a row of log-probabilities is no list")
            n = min(len(ids[row]), len(scores[row]), most)
            if n == 0:
                raise Unknown("a row of log-probabilities is empty")
            total += n
        self.allocate(rows, total)
        for row in range(rows):
            row_ids, row_scores = ids[row], scores[row]
            for i in range(min(len(row_ids), len(row_scores), most)):
                self.cells[at].score = _score(row_scores[i], only_floats)
                if self.texts is not None:
                    self.cells[at].id = _token_id(row_ids[i])
                at += 1
            self.ends[row] = at
        return 0

    cdef int read_packed(self, PackedRows top, Py_ssize_t most) except -1:
        """Read the packed bytes, in which all scores are floats."""
        cdef fdu_bytes ids, scores
        cdef size_t row, i, wide, long, n
        cdef int64_t id = 0
        cdef double score = 0.0
        cdef Py_ssize_t at = 0
        self.allocate(top.rows, (top.size - top.scores) // 5)  # bytes of the shorter kind of float
        ids.at, scores.at = top.packed + top.ids, top.packed + top.scores
        ids.end = scores.end = top.packed + top.size
        for row in range(top.rows):
            if not fdu_list(&ids, &wide) or not fdu_list(&scores, &long):
                raise AssertionError("packed log-probabilities were checked")
            n = min(wide, long, <size_t>most)
            if n == 0:
                raise Unknown("a row of log-probabilities is empty")
            for i in range(wide):
                fdu_integer(&ids, &id)
                if i < n and self.texts is not None:
                    self.cells[at + i].id = id
            for i in range(long):
                fdu_float(&scores, &score)
                if i < n:
                    self.cells[at + i].score = score
            at += n
            self.ends[row] = at
        return 0

    cdef int ask(self, bint late) except -1:
        """Ask for the texts; late ones when they are written.

        Of late ones the least and the greatest id are asked for: a tokenizer that refuses one does it now.
        """
        cdef Py_ssize_t i
        cdef long long least = 0, greatest = 0
        if self.texts is None:
            self.texts = _NO_TEXTS
        for i in range(self.ends[self.rows - 1]):
            if late:
                least, greatest = min(least, self.cells[i].id), max(greatest, self.cells[i].id)
            else:
                self.record(i)
        if late:
            self.texts.numbered(least)
            self.texts.numbered(greatest)
        return 0


_NO_TEXTS = Texts(lambda token: ("", ""))


cdef _Rows _rows_of(top, columns, Texts texts, bint only_floats=False, bint late=False):
    """The rows of a result, packed or not; None where FastDeploy shows none.

    Unknown for what FastDeploy has to see itself: among others for integers, where `only_floats` are wanted.
    """
    if top is None or columns is None:
        return None
    if not PyLong_CheckExact(columns):
        raise Unknown("the number of log-probabilities is no integer")
    if columns < 0:
        return None
    cdef _Rows rows = _Rows.__new__(_Rows)
    cdef Py_ssize_t most = min(columns, 1 << 40) + 1
    rows.texts = texts
    if type(top) is not PackedRows:
        rows.read_lists(top, most, only_floats)
    elif (<PackedRows>top).lists is None:
        rows.read_packed(<PackedRows>top, most)
    else:
        rows.read_lists((<PackedRows>top).lists, most, only_floats)
    if rows.rows == 0:
        return None
    rows.ask(late and rows.rows >= MANY)
    return rows


cdef inline double _score(value, bint only_floats) except? -1.5:
    """The value of a typed float field; integers become floats."""
    if PyFloat_CheckExact(value):
        return PyFloat_AS_DOUBLE(value)
    if PyLong_CheckExact(value) and not only_floats and -(1 << 53) <= value <= 1 << 53:
        return <double>value
    raise Unknown("a log-probability is no float")

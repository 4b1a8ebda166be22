# Log-probabilities as chat completions show them: an entry for each token, with the likeliest alternatives.

cdef struct scored:
    text_record *record    # NULL: not asked for yet
    double score
    long long id           # -1: FastDeploy does not look at it, and it is none


@cython.final
cdef class ChatModels:
    """FastDeploy's classes of chat log-probabilities.

    Parameters
    ----------
    entry, logprobs : type
        FastDeploy's LogProbEntry and LogProbs.
    style : FloatStyle
        How its streams print floats.
    """

    cdef readonly object entry, logprobs
    cdef readonly FloatStyle style

    def __init__(self, entry, logprobs, FloatStyle style not None):
        self.entry, self.logprobs, self.style = entry, logprobs, style


cdef inline int _write_scored(_Writer writer, const text_record *record, double score) noexcept:
    """Write a token and its log-probability, as the beginning of an object."""
    return (fdj_put(&writer.out, _head_of(record), record.head_size)
            | fdj_double(&writer.out, score, &writer.style)
            | fdj_put(&writer.out, _tail_of(record), record.tail_size))


@cython.final
cdef class _Rows:
    """Resolved rows of texts and scores."""

    cdef Texts texts        # owns the records
    cdef ChatModels models
    cdef scored *cells
    cdef Py_ssize_t *ends   # of each row, in cells
    cdef Py_ssize_t rows

    def __dealloc__(self):
        PyMem_Free(self.cells)
        PyMem_Free(self.ends)

    cdef int allocate(self, Py_ssize_t rows, Py_ssize_t cells) except -1:
        self.ends = <Py_ssize_t *>PyMem_Malloc((rows + 1) * sizeof(Py_ssize_t))
        self.cells = <scored *>PyMem_Malloc((cells + 1) * sizeof(scored))
        if self.ends == NULL or self.cells == NULL:
            raise MemoryError
        return 0

    cdef inline text_record *record(self, Py_ssize_t i) except NULL:
        if self.cells[i].record == NULL:
            self.cells[i].record = self.texts.numbered(self.cells[i].id)
        return self.cells[i].record

    cdef inline Py_ssize_t begin(self, Py_ssize_t row) noexcept:
        return self.ends[row - 1] if row else 0

    cdef int write_row(self, _Writer writer, Py_ssize_t row) except -1:
        cdef Py_ssize_t i, first = self.begin(row), last = self.ends[row]
        cdef fdj_buffer *out = &writer.out
        cdef int failed = self.write_cell(writer, first)
        failed |= fdj_put(out, b',"top_logprobs":[', 17)
        for i in range(first + 1, last):
            if i > first + 1:
                failed |= fdj_put(out, b",", 1)
            failed |= self.write_cell(writer, i)
            if writer.unset:
                failed |= fdj_put(out, b"}", 1)
            else:
                failed |= fdj_put(out, b',"top_logprobs":null}', 21)
        failed |= fdj_put(out, b"]}", 2)
        if failed:
            raise MemoryError
        return 0

    cdef inline int write_cell(self, _Writer writer, Py_ssize_t i) noexcept:
        return _write_scored(writer, self.cells[i].record, self.cells[i].score)

    cdef int check(self, _Writer writer) except -1:
        """Raise Unknown for a float that Python's json refuses, where the style is that of json."""
        cdef Py_ssize_t i
        if writer.python and self.rows:
            for i in range(self.ends[self.rows - 1]):
                if not isfinite(self.cells[i].score):
                    raise Unknown("a log-probability is not finite")
        return 0

    cdef dict plain_cell(self, Py_ssize_t i, bint nested):
        cdef text_record *record = self.cells[i].record
        made = {"token": _shown(record), "logprob": self.cells[i].score,
                "bytes": list(_text_of(record)[:record.text_size])}
        if nested:
            made["top_logprobs"] = None
        return made

    cdef dict plain_row(self, Py_ssize_t row):
        cdef Py_ssize_t i, first = self.begin(row)
        made = self.plain_cell(first, False)
        made["top_logprobs"] = [self.plain_cell(i, True) for i in range(first + 1, self.ends[row])]
        return made

    cdef object whole_row(self, Py_ssize_t row):
        cdef Py_ssize_t i, first = self.begin(row)
        entry = self.models.entry
        made = [entry(**self.plain_cell(i, False)) for i in range(first, self.ends[row])]
        return entry(token=made[0].token, logprob=made[0].logprob, bytes=made[0].bytes, top_logprobs=made[1:])


cdef _Rows _rows_of(Texts texts, ChatModels models, list ids, list scores, Py_ssize_t rows, Py_ssize_t most,
                    bint silent, bint late):
    """Resolve rows; raise Unknown for values that FastDeploy has to handle.

    Silent ones have scores only: FastDeploy does not look at the ids then.  Of late ones only the least and
    the greatest id are asked for: a tokenizer that refuses one does it now.
    """
    cdef Py_ssize_t row, i, total = 0
    cdef long long least = 0, greatest = 0
    cdef _Rows made = _Rows.__new__(_Rows)
    cdef text_record *same = texts.numbered(0) if silent else NULL
    made.texts, made.models, made.rows = texts, models, rows
    for row in range(rows):
        total += _cells_in(ids, scores, row, most)
    made.allocate(rows, total)
    cdef Py_ssize_t at = 0
    for row in range(rows):
        if at + _cells_in(ids, scores, row, most) > total:
            raise Unknown("log-probabilities change while they are read")
        at = _resolve_row(made, <list>PyList_GET_ITEM(ids, row), <list>PyList_GET_ITEM(scores, row),
                          most, at, same, late)
        made.ends[row] = at
    if late:
        for i in range(at):
            least, greatest = min(least, made.cells[i].id), max(greatest, made.cells[i].id)
        texts.numbered(least)
        texts.numbered(greatest)
    return made


cdef Py_ssize_t _cells_in(list ids, list scores, Py_ssize_t row, Py_ssize_t most) except -1:
    if row >= PyList_GET_SIZE(ids) or row >= PyList_GET_SIZE(scores):
        raise Unknown("log-probabilities change while they are read")
    cdef PyObject *row_ids = PyList_GET_ITEM(ids, row)
    cdef PyObject *row_scores = PyList_GET_ITEM(scores, row)
    if not (PyList_CheckExact(<object>row_ids) and PyList_CheckExact(<object>row_scores)):
        raise Unknown("a row of log-probabilities is no list")
    cdef Py_ssize_t n = min(PyList_GET_SIZE(<object>row_ids), PyList_GET_SIZE(<object>row_scores), most)
    if n <= 0:
        raise Unknown("a row of log-probabilities is empty")
    return n


cdef Py_ssize_t _resolve_row(_Rows made, list ids, list scores, Py_ssize_t most, Py_ssize_t at,
                             text_record *same, bint late) except -1:
    cdef int overflow = 0
    cdef Py_ssize_t i, n = min(PyList_GET_SIZE(ids), PyList_GET_SIZE(scores), most)
    cdef scored *cell
    for i in range(n):
        if i >= PyList_GET_SIZE(ids) or i >= PyList_GET_SIZE(scores):  # a text's maker changed them
            raise Unknown("log-probabilities change while they are read")
        cell = made.cells + at + i
        cell.score = _score(PyList_GET_ITEM(scores, i))
        cell.id, cell.record = -1, same
        if PyLong_CheckExact(<object>PyList_GET_ITEM(ids, i)):
            cell.id = PyLong_AsLongLongAndOverflow(<object>PyList_GET_ITEM(ids, i), &overflow)
        if same == NULL and not (late and 0 <= cell.id < MOST_IDS):
            cell.record = made.texts.of(PyList_GET_ITEM(ids, i))
    return at + n


cdef inline double _score(PyObject *value) except? -1.5:
    """The value of a typed float field; integers become floats."""
    cdef int overflow = 0
    cdef long long n
    if PyFloat_CheckExact(<object>value):
        return PyFloat_AS_DOUBLE(<object>value)
    if PyLong_CheckExact(<object>value):
        n = PyLong_AsLongLongAndOverflow(<object>value, &overflow)
        if not overflow and -(1 << 53) <= n <= 1 << 53:
            return <double>n
    raise Unknown("a log-probability is no float")


@cython.final
cdef class ChatLogprobs(Piece):
    """Stand-in for LogProbs, with the rows of one result."""

    cdef _Rows rows
    cdef list entries    # cached at the first access; changes to them are written
    cdef object whole

    @staticmethod
    cdef ChatLogprobs of(_Rows rows):
        cdef ChatLogprobs made = ChatLogprobs.__new__(ChatLogprobs)
        made.rows = rows
        return made

    @property
    def content(self):
        """One entry for each row."""
        cdef Py_ssize_t row
        if self.whole is not None:
            return self.whole.content
        if self.entries is None:
            self.entries = [ChatRow.of(self.rows, row) for row in range(self.rows.rows)]
        return self.entries

    @property
    def refusal(self):
        return None if self.whole is None else self.whole.refusal

    cdef int write(self, _Writer writer) except -1:
        cdef Py_ssize_t row
        if self.whole is not None:
            return _write_model(writer, self.whole)
        self.rows.check(writer)
        if self.entries is not None:
            writer.literal(b'{"content":', 11)
            _write_models(writer, self.entries, self.rows.models.entry)
        else:
            writer.literal(b'{"content":[', 12)
            for row in range(self.rows.rows):
                if row:
                    writer.literal(b",", 1)
                self.rows.write_row(writer, row)
            writer.literal(b"]", 1)
        if writer.unset:
            return writer.literal(b"}", 1)
        return writer.literal(b',"refusal":null}', 16)

    cdef object plain(self):
        cdef Py_ssize_t row
        if self.whole is not None:
            return self.whole.model_dump()
        if self.entries is not None:
            return {"content": [_plain(entry) for entry in self.entries], "refusal": None}
        return {"content": [self.rows.plain_row(row) for row in range(self.rows.rows)], "refusal": None}

    cdef object whole_model(self):
        cdef Py_ssize_t row
        if self.whole is None:
            entries = self.entries
            if entries is None:
                entries = [self.rows.whole_row(row) for row in range(self.rows.rows)]
            self.whole = self.rows.models.logprobs(content=full(entries))
        return self.whole

    cdef object model_class(self):
        return self.rows.models.logprobs


@cython.final
cdef class ChatRow(Piece):
    """Stand-in for the LogProbEntry of one token."""

    cdef _Rows rows
    cdef Py_ssize_t row
    cdef object whole

    @staticmethod
    cdef ChatRow of(_Rows rows, Py_ssize_t row):
        cdef ChatRow made = ChatRow.__new__(ChatRow)
        made.rows, made.row = rows, row
        return made

    cdef int write(self, _Writer writer) except -1:
        if self.whole is not None:
            return _write_model(writer, self.whole)
        self.rows.check(writer)
        return self.rows.write_row(writer, self.row)

    cdef object plain(self):
        return self.rows.plain_row(self.row) if self.whole is None else self.whole.model_dump()

    cdef object whole_model(self):
        if self.whole is None:
            self.whole = self.rows.whole_row(self.row)
        return self.whole

    cdef object model_class(self):
        return self.rows.models.entry


@cython.final
cdef class ChatBuilder:
    """Builder of chat log-probabilities from a result.

    Parameters
    ----------
    models : ChatModels
    texts : Texts
        As chat shows them.
    silent : Texts
        For requests that want no texts: everything is "".
    """

    cdef ChatModels models
    cdef Texts texts, silent

    def __init__(self, ChatModels models not None, Texts texts not None, Texts silent not None):
        self.models, self.texts, self.silent = models, texts, silent

    def build(self, top, asked, columns, decode):
        """Build what ``_create_chat_logprobs`` returns.

        Parameters
        ----------
        top : list of list
            Token ids, log-probabilities and ranks, a row each per token, sampled token first.
        asked : bool
        columns : int or None
            Alternatives to be shown.
        decode : bool
            Whether texts are wanted.

        Returns
        -------
        ChatLogprobs or None

        Raises
        ------
        Unknown
            For what is not known here: FastDeploy's own method has to do it.
        Exception
            Whatever the tokenizer raises: likewise.
        """
        cdef Py_ssize_t most
        if top is None or not asked or columns is None:
            return None
        if not PyLong_CheckExact(columns):
            raise Unknown("the number of log-probabilities is no integer")
        if columns < 0:
            return None
        most = min(columns, 1 << 40) + 1
        made = _resolved(self.texts if decode else self.silent, self.models, top, most, not decode, False)
        return None if made is None else ChatLogprobs.of(made)


cdef _Rows _resolved(Texts texts, ChatModels models, top, Py_ssize_t most, bint silent, bint floats,
                     bint late=False):
    """The rows of a result, packed or not; None where FastDeploy finds none.

    Unknown for what FastDeploy has to see itself; if only `floats` are wanted, also for integers among the
    scores.
    """
    if type(top) is PackedRows:
        if (<PackedRows>top).lists is None:
            return _rows_of_packed(texts, models, <PackedRows>top, most, silent)
        top = (<PackedRows>top).lists
    cdef Py_ssize_t rows = _rows_in(top)
    if rows == 0:
        return None
    if floats:
        _only_floats(top[1], rows)
    return _rows_of(texts, models, top[0], top[1], rows, most, silent, late and rows >= MANY)


cdef _Rows _rows_of_packed(Texts texts, ChatModels models, PackedRows top, Py_ssize_t most, bint silent):
    """Resolve rows from the packed bytes, in which all scores are floats."""
    cdef fdu_bytes ids, scores
    cdef size_t row, i, wide, long, n
    cdef int64_t id = 0
    cdef double score = 0.0
    cdef Py_ssize_t at = 0
    cdef _Rows made
    if top.rows == 0:
        return None
    made = _Rows.__new__(_Rows)
    cdef text_record *same = texts.numbered(0) if silent else NULL
    made.texts, made.models, made.rows = texts, models, top.rows
    made.allocate(top.rows, (top.size - top.scores) // 5)  # bytes of the shorter kind of float
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
            if i < n:
                made.cells[at + i].id = id
                made.cells[at + i].record = same if same != NULL else texts.numbered(id)
        for i in range(long):
            fdu_float(&scores, &score)
            if i < n:
                made.cells[at + i].score = score
        at += n
        made.ends[row] = at
    return made


cdef Py_ssize_t _rows_in(top) except -1:
    """Number of rows that all three lists have; 0 where FastDeploy finds none."""
    if not (type(top) is list or type(top) is tuple) or len(top) != 3:
        raise Unknown("log-probabilities are not three lists")
    ids, scores, ranks = top
    if not (PyList_CheckExact(ids) and PyList_CheckExact(scores) and PyList_CheckExact(ranks)):
        raise Unknown("log-probabilities are not three lists")
    return min(PyList_GET_SIZE(ids), PyList_GET_SIZE(scores), PyList_GET_SIZE(ranks))

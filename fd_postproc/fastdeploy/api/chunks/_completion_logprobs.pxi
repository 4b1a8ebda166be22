# Log-probabilities as completions show them: tokens, scores, and a map of texts to scores for each token.


cdef enum:
    TOKENS, SCORES, MAPS    # the lists


@cython.final
cdef class CompletionModels:
    """FastDeploy's classes of completion log-probabilities.

    Parameters
    ----------
    logprobs : type
        FastDeploy's CompletionLogprobs.
    style : FloatStyle
        How its streams print floats.
    """

    cdef readonly object logprobs
    cdef readonly FloatStyle style

    def __init__(self, logprobs, FloatStyle style not None):
        self.logprobs, self.style = logprobs, style


@cython.final
cdef class CompletionLogprobs(Piece):
    """Stand-in for CompletionLogprobs, with the rows of one result or of several."""

    cdef _Rows rows
    cdef CompletionModels models
    cdef object whole
    cdef object stock    # FastDeploy's own call

    cdef int write(self, _Writer writer) except -1:
        if self.whole is not None:
            return _write_model(writer, self.whole)
        self.rows.check(writer)
        writer.literal(b'{"tokens":', 10)
        self.write_list(writer, TOKENS)
        writer.literal(b',"token_logprobs":', 18)
        self.write_list(writer, SCORES)
        writer.literal(b',"top_logprobs":', 16)
        self.write_list(writer, MAPS)
        if not writer.unset:
            writer.literal(b',"text_offset":null', 19)
        return writer.literal(b"}", 1)

    cdef int write_list(self, _Writer writer, int which) except -1:
        cdef Py_ssize_t row
        if writer.parts is not None and self.rows.rows >= MANY:
            return writer.leave(_CompletionRows.of(self, which))
        writer.literal(b"[", 1)
        for row in range(self.rows.rows):
            if row:
                writer.literal(b",", 1)
            self.write_item(writer, row, which)
        return writer.literal(b"]", 1)

    cdef int write_item(self, _Writer writer, Py_ssize_t row, int which) except -1:
        cdef text_record *record
        if which == MAPS:
            return self.write_map(writer, row)
        if which == SCORES:
            return writer.double(self.rows.cells[self.rows.begin(row)].score)
        record = self.rows.record(self.rows.begin(row))
        return writer.literal(_key_of(record), record.key_size)

    cdef int write_map(self, _Writer writer, Py_ssize_t row) except -1:
        """Write a row's map; equal texts keep the first place and take the last value."""
        cdef _Rows rows = self.rows
        cdef Py_ssize_t i, first = rows.begin(row), last = rows.ends[row]
        cdef text_record *record
        cdef fdj_buffer *out = &writer.out
        for i in range(first, last):
            record = rows.record(i).same
            record.place = i
        cdef int failed = fdj_put(out, b"{", 1)
        for i in range(first, last):
            record = rows.cells[i].record.same
            if record.place < 0:  # written already
                continue
            if i > first:
                failed |= fdj_put(out, b",", 1)
            failed |= fdj_put(out, _key_of(record), record.key_size)
            failed |= fdj_put(out, b":", 1)
            failed |= fdj_double(out, rows.cells[record.place].score, &writer.style)
            record.place = -1
        if failed or fdj_put(out, b"}", 1):
            raise MemoryError
        return 0

    cdef object plain(self):
        if self.whole is not None:
            return self.whole.model_dump()
        cdef Py_ssize_t row
        tokens, scores, maps = [], [], []
        for row in range(self.rows.rows):
            maps.append(self.map_of(row))
            tokens.append(_shown(self.rows.record(self.rows.begin(row))))
            scores.append(self.rows.cells[self.rows.begin(row)].score)
        return {"tokens": tokens, "token_logprobs": scores, "top_logprobs": maps, "text_offset": None}

    cdef dict map_of(self, Py_ssize_t row):
        cdef Py_ssize_t i
        made = {}
        for i in range(self.rows.begin(row), self.rows.ends[row]):
            made[_shown(self.rows.record(i))] = self.rows.cells[i].score
        return made

    cdef object whole_model(self):
        if self.whole is None:
            try:
                made = self.plain()
            except Unknown:  # a text that was left for later
                if self.stock is None:
                    raise
                self.whole = self.stock()
                return self.whole
            del made["text_offset"]  # FastDeploy does not set it
            self.whole = self.models.logprobs(**made)
        return self.whole

    cdef object model_class(self):
        return self.models.logprobs


@cython.final
cdef class _CompletionRows(Part):
    cdef CompletionLogprobs logprobs
    cdef int which

    @staticmethod
    cdef _CompletionRows of(CompletionLogprobs logprobs, int which):
        cdef _CompletionRows made = _CompletionRows.__new__(_CompletionRows)
        made.logprobs, made.which, made.count, made.size = logprobs, which, logprobs.rows.rows, -1
        return made

    cdef int write_item(self, _Writer writer, Py_ssize_t i) except -1:
        return self.logprobs.write_item(writer, i, self.which)

    cdef Py_ssize_t texts_known(self) noexcept:
        return self.logprobs.rows.texts.known


@cython.final
cdef class CompletionBuilder:
    """Builder of completion log-probabilities from a result, or from all results of a choice.

    Parameters
    ----------
    models : CompletionModels
    texts : Texts
        As completions show them.
    """

    cdef CompletionModels models
    cdef Texts texts

    def __init__(self, CompletionModels models not None, Texts texts not None):
        self.models, self.texts = models, texts

    def build(self, top, columns, stock=None):
        """Build what ``_create_completion_logprobs`` returns.

        Parameters
        ----------
        top : list of list
            Token ids, log-probabilities and ranks, a row each per token, sampled token first.
        columns : int or None
            Alternatives to be shown.
        stock : function, optional
            FastDeploy's own call: then texts of many rows are made when they are written.

        Returns
        -------
        CompletionLogprobs or None

        Raises
        ------
        Unknown
            For what is not known here: FastDeploy's own method has to do it.
        Exception
            Whatever the tokenizer raises: likewise.
        """
        if top is None or columns is None:
            return None
        if not PyLong_CheckExact(columns):
            raise Unknown("the number of log-probabilities is no integer")
        if columns < 0:
            return None
        rows = _resolved(self.texts, None, top, min(columns, 1 << 40) + 1, False, True, stock is not None)
        if rows is None:
            return None
        cdef CompletionLogprobs made = CompletionLogprobs.__new__(CompletionLogprobs)
        made.models, made.rows, made.stock = self.models, rows, stock
        return made


cdef int _only_floats(list scores, Py_ssize_t rows) except -1:
    """Unknown if there is an integer: the maps print it as one, the list of the sampled tokens does not."""
    cdef Py_ssize_t row, i
    for row in range(rows):
        scored_row = <object>PyList_GET_ITEM(scores, row)
        if not PyList_CheckExact(scored_row):
            raise Unknown("a row of log-probabilities is no list")
        for i in range(PyList_GET_SIZE(scored_row)):
            if not PyFloat_CheckExact(<object>PyList_GET_ITEM(scored_row, i)):
                raise Unknown("a log-probability is no float")
    return 0

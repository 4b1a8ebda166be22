# Log-probabilities as completions show them: tokens, scores, and a map of texts to scores for each token.


@cython.final
cdef class CompletionModels:
    """What a completion's log-probabilities stand in for.

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
    """Stands in for CompletionLogprobs, with the rows of one result or of many."""

    cdef _Rows rows
    cdef CompletionModels models
    cdef object whole

    cdef int write(self, _Writer writer) except -1:
        if self.whole is not None:
            return _write_model(writer, self.whole)
        cdef Py_ssize_t row
        cdef _Rows rows = self.rows
        cdef text_record *record
        cdef fdj_buffer *out = &writer.out
        rows.check(writer)
        cdef int failed = fdj_put(out, b'{"tokens":[', 11)
        for row in range(rows.rows):
            if row:
                failed |= fdj_put(out, b",", 1)
            record = rows.cells[rows.begin(row)].record
            failed |= fdj_put(out, _key_of(record), record.key_size)
        failed |= fdj_put(out, b'],"token_logprobs":[', 20)
        for row in range(rows.rows):
            if row:
                failed |= fdj_put(out, b",", 1)
            failed |= fdj_double(out, rows.cells[rows.begin(row)].score, &writer.style)
        failed |= fdj_put(out, b'],"top_logprobs":[', 18)
        for row in range(rows.rows):
            if row:
                failed |= fdj_put(out, b",", 1)
            failed |= self.write_map(writer, row)
        failed |= fdj_put(out, b"]", 1)
        if not writer.unset:
            failed |= fdj_put(out, b',"text_offset":null', 19)
        failed |= fdj_put(out, b"}", 1)
        if failed:
            raise MemoryError
        return 0

    cdef int write_map(self, _Writer writer, Py_ssize_t row) noexcept:
        """A row's map: of equal texts the place of the first, the value of the last."""
        cdef _Rows rows = self.rows
        cdef Py_ssize_t i, first = rows.begin(row), last = rows.ends[row]
        cdef text_record *record
        cdef fdj_buffer *out = &writer.out
        cdef int failed = fdj_put(out, b"{", 1)
        for i in range(first, last):
            record = rows.cells[i].record.same
            record.place = i
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
        return failed | fdj_put(out, b"}", 1)

    cdef object plain(self):
        if self.whole is not None:
            return self.whole.model_dump()
        cdef Py_ssize_t row
        tokens, scores, maps = [], [], []
        for row in range(self.rows.rows):
            maps.append(self.map_of(row))
            tokens.append(_shown(self.rows.cells[self.rows.begin(row)].record))
            scores.append(self.rows.cells[self.rows.begin(row)].score)
        return {"tokens": tokens, "token_logprobs": scores, "top_logprobs": maps, "text_offset": None}

    cdef dict map_of(self, Py_ssize_t row):
        cdef Py_ssize_t i
        made = {}
        for i in range(self.rows.begin(row), self.rows.ends[row]):
            made[_shown(self.rows.cells[i].record)] = self.rows.cells[i].score
        return made

    cdef object whole_model(self):
        if self.whole is None:
            made = self.plain()
            del made["text_offset"]  # FastDeploy does not set it
            self.whole = self.models.logprobs(**made)
        return self.whole

    cdef object model_class(self):
        return self.models.logprobs


@cython.final
cdef class CompletionBuilder:
    """Makes a completion's log-probabilities of a result, or of all of a choice.

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

    def build(self, top, columns):
        """What ``_create_completion_logprobs`` gives.

        Parameters
        ----------
        top : list of list
            Token ids, log-probabilities and ranks, a row each per token, sampled token first.
        columns : int or None
            Alternatives to be shown.

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
        rows = _resolved(self.texts, None, top, min(columns, 1 << 40) + 1, False, True)
        if rows is None:
            return None
        cdef CompletionLogprobs made = CompletionLogprobs.__new__(CompletionLogprobs)
        made.models, made.rows = self.models, rows
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

# Log-probabilities as completions show them: tokens, scores, and a map of texts to scores for each token.


cdef enum:
    TOKENS, SCORES, MAPS    # the lists


@cython.final
cdef class CompletionScores(Scores):
    """What ``_create_completion_logprobs`` makes of results, as JSON: a CompletionLogprobs.

    It raises Unknown also where a score is an integer, which the maps would show as one.
    """

    def __init__(self, columns, Texts texts):
        super().__init__(columns, texts)
        self.only_floats = True

    cdef int write(self, _Writer writer) except -1:
        writer.literal(b'{"tokens":', 10)
        self.write_list(writer, TOKENS)
        writer.literal(b',"token_logprobs":', 18)
        self.write_list(writer, SCORES)
        writer.literal(b',"top_logprobs":', 16)
        self.write_list(writer, MAPS)
        if not writer.unset:
            writer.literal(b',"text_offset":null', 19)
        return writer.literal(b"}", 1)

    cdef int write_item(self, _Writer writer, Py_ssize_t row, int which) except -1:
        cdef text_record *record
        if which == MAPS:
            return self.write_map(writer, row)
        if which == SCORES:
            return writer.double(self.cells[self.begin(row)].score)
        record = self.record(self.begin(row))
        return writer.literal(_key_of(record), record.key_size)

    cdef int write_map(self, _Writer writer, Py_ssize_t row) except -1:
        """Write a row's map; equal texts keep the first place and take the last value."""
        cdef Py_ssize_t i, first = self.begin(row), last = self.ends[row]
        cdef text_record *record
        for i in range(first, last):
            self.cells[i].record.same.place = i
        writer.literal(b"{", 1)
        for i in range(first, last):
            record = self.cells[i].record.same
            if record.place < 0:  # written already
                continue
            if i > first:
                writer.literal(b",", 1)
            writer.literal(_key_of(record), record.key_size)
            writer.literal(b":", 1)
            writer.double(self.cells[record.place].score)
            record.place = -1
        return writer.literal(b"}", 1)


@cython.final
cdef class CompletionLogprobs(StandIn):
    """Stand-in for CompletionLogprobs, with the rows of one result or of several."""

    cdef Scores rows
    cdef object cls      # FastDeploy's
    cdef object stock    # FastDeploy's own call

    cdef int write_own(self, _Writer writer) except -1:
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
        cdef Scores rows = self.rows
        cdef Py_ssize_t i, first = rows.begin(row), last = rows.ends[row]
        cdef text_record *record
        for i in range(first, last):
            rows.record(i)  # the tokenizer's code may write maps of its own: no place is set before the last
        for i in range(first, last):
            rows.cells[i].record.same.place = i
        writer.literal(b"{", 1)
        for i in range(first, last):
            record = rows.cells[i].record.same
            if record.place < 0:  # written already
                continue
            if i > first:
                writer.literal(b",", 1)
            writer.literal(_key_of(record), record.key_size)
            writer.literal(b":", 1)
            writer.double(rows.cells[record.place].score)
            record.place = -1
        return writer.literal(b"}", 1)

    cdef object plain_own(self):
        cdef Py_ssize_t row
        rows = range(self.rows.rows)
        return {"tokens": [_shown(self.rows.record(self.rows.begin(row))) for row in rows],
                "token_logprobs": [self.rows.cells[self.rows.begin(row)].score for row in rows],
                "top_logprobs": [self.map_of(row) for row in rows], "text_offset": None}

    cdef dict map_of(self, Py_ssize_t row):
        cdef Py_ssize_t i
        return {_shown(self.rows.record(i)): self.rows.cells[i].score
                for i in range(self.rows.begin(row), self.rows.ends[row])}

    cdef object new_model(self):
        try:
            values = self.plain_own()
        except Unknown:  # a text that was left for later
            return self.stock()
        del values["text_offset"]  # FastDeploy does not set it
        return self.cls(**values)

    cdef object model_class(self):
        return self.cls


def completion_logprobs(top, columns, Texts texts not None, cls, stock):
    """What ``_create_completion_logprobs`` returns, for one result or for all results of a choice.

    It is called and it raises as `chat_logprobs`; also where a score is an integer, which the maps would show
    as one.  `cls` is FastDeploy's CompletionLogprobs,
    `stock` its own call.
    """
    cdef CompletionLogprobs stand_in
    rows = _rows_of(top, columns, texts, True)
    if rows is None:
        return None
    stand_in = CompletionLogprobs.__new__(CompletionLogprobs)
    stand_in.rows, stand_in.cls, stand_in.stock = rows, cls, stock
    return stand_in

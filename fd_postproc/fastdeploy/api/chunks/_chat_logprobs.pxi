# Log-probabilities as chat completions show them: an entry for each token, with the likeliest alternatives.


@cython.final
cdef class ChatScores(Scores):
    """What ``_create_chat_logprobs`` makes of results, as JSON: a LogProbs."""

    cdef int write(self, _Writer writer) except -1:
        writer.literal(b'{"content":', 11)
        self.write_list(writer, 0)
        if not writer.unset:
            writer.literal(b',"refusal":null', 15)
        return writer.literal(b"}", 1)

    cdef int write_item(self, _Writer writer, Py_ssize_t row, int which) except -1:
        cdef Py_ssize_t i, first = self.begin(row)
        self.write_cell(writer, first)
        writer.literal(b',"top_logprobs":[', 17)
        for i in range(first + 1, self.ends[row]):
            if i > first + 1:
                writer.literal(b",", 1)
            self.write_cell(writer, i)
            if writer.unset:
                writer.literal(b"}", 1)
            else:
                writer.literal(b',"top_logprobs":null}', 21)
        return writer.literal(b"]}", 2)

    cdef int write_cell(self, _Writer writer, Py_ssize_t i) except -1:
        """Write a token and its log-probability, as the beginning of an object."""
        cdef text_record *record = self.record(i)
        writer.literal(_head_of(record), record.head_size)
        writer.double(self.cells[i].score)
        return writer.literal(_tail_of(record), record.tail_size)


@cython.final
cdef class ChatRow(StandIn):
    """Stand-in for the LogProbEntry of one token."""

    cdef Scores rows
    cdef Py_ssize_t row
    cdef object entry    # FastDeploy's class

    cdef int write_own(self, _Writer writer) except -1:
        cdef Py_ssize_t i, first = self.rows.begin(self.row)
        self.write_cell(writer, first)
        writer.literal(b',"top_logprobs":[', 17)
        for i in range(first + 1, self.rows.ends[self.row]):
            if i > first + 1:
                writer.literal(b",", 1)
            self.write_cell(writer, i)
            if writer.unset:
                writer.literal(b"}", 1)
            else:
                writer.literal(b',"top_logprobs":null}', 21)
        return writer.literal(b"]}", 2)

    cdef int write_cell(self, _Writer writer, Py_ssize_t i) except -1:
        """Write a token and its log-probability, as the beginning of an object."""
        cdef text_record *record = self.rows.record(i)
        writer.literal(_head_of(record), record.head_size)
        writer.double(self.rows.cells[i].score)
        return writer.literal(_tail_of(record), record.tail_size)

    cdef dict cell(self, Py_ssize_t i):
        cdef text_record *record = self.rows.record(i)
        return {"token": _shown(record), "logprob": self.rows.cells[i].score,
                "bytes": list(_text_of(record)[:record.text_size])}

    cdef list others(self):
        """The alternatives, without the fields that are not set."""
        cdef Py_ssize_t i
        return [self.cell(i) for i in range(self.rows.begin(self.row) + 1, self.rows.ends[self.row])]

    cdef object plain_own(self):
        others = [{**cell, "top_logprobs": None} for cell in self.others()]
        return {**self.cell(self.rows.begin(self.row)), "top_logprobs": others}

    cdef object new_model(self):
        others = [self.entry(**cell) for cell in self.others()]
        return self.entry(**self.cell(self.rows.begin(self.row)), top_logprobs=others)

    cdef object model_class(self):
        return self.entry


def chat_logprobs(top, columns, Texts texts, entry, Models logprobs not None):
    """What ``_create_chat_logprobs`` returns.

    Parameters
    ----------
    top : list of list
        Token ids, log-probabilities and ranks, a row each per token, sampled token first.
    columns : int or None
        Alternatives to be shown; None: no log-probabilities are.
    texts : Texts or None
        As chat shows them; None: none are wanted, and everything is "".
    entry : type
        FastDeploy's LogProbEntry.
    logprobs : Models
        The stand-in for its LogProbs.

    Raises
    ------
    Unknown, Exception
        For what FastDeploy has to do itself, and whatever the tokenizer raises: likewise.
    """
    cdef Py_ssize_t row
    cdef ChatRow stand_in
    cdef Scores rows = _rows_of(top, columns, texts)
    if rows is None:
        return None
    entries = []
    for row in range(rows.rows):
        stand_in = ChatRow.__new__(ChatRow)
        stand_in.rows, stand_in.row, stand_in.entry = rows, row, entry
        entries.append(stand_in)
    return logprobs.holding({"content": entries})

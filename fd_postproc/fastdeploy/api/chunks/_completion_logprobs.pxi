# Log-probabilities as completions show them: tokens, scores, and a map of texts to scores for each token.


cdef enum:
    TOKENS, SCORES, MAPS    # the lists


@cython.final
cdef class CompletionScores(Scores):
    """What ``_create_completion_logprobs`` makes of results, as JSON: a CompletionLogprobs."""

    def __cinit__(self, *arguments):
        self.heads = b'{"tokens":[', b',"token_logprobs":[', b',"top_logprobs":['
        self.unset = b',"text_offset":null'

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

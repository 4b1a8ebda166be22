# Log-probabilities as chat completions show them: an entry for each token, with the likeliest alternatives.


@cython.final
cdef class ChatScores(Scores):
    """What ``_create_chat_logprobs`` makes of results, as JSON: a LogProbs."""

    def __cinit__(self, *arguments):
        self.heads, self.unset = (b'{"content":[',), b',"refusal":null'

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
        writer.literal(_head_of(record), _head_size(record))
        writer.double(self.cells[i].score)
        return writer.literal(_tail_of(record), record.tail_size)

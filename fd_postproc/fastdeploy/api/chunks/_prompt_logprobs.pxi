# Log-probabilities of a prompt: a map of token ids for each of its tokens, written from the arrays.

cdef enum:
    NEW_TEXTS = 64    # texts that are made in one piece: each is asked of the tokenizer


@cython.final
cdef class PromptScores:
    """What ``_build_prompt_logprobs`` makes of a result, as JSON: None, then a map for each token."""

    cdef tuple arrays              # NumPy's: ids, scores and ranks
    cdef const int64_t *all_ids
    cdef const double *all_scores
    cdef const int64_t *ranks
    cdef Texts texts               # None: no texts are wanted
    cdef Py_ssize_t width, most
    cdef Py_ssize_t next, count    # of the list's items
    cdef Py_ssize_t column         # where the next row goes on
    # The row that is loaded.
    cdef Py_ssize_t loaded
    cdef const int64_t *ids
    cdef const double *scores
    cdef int32_t *last     # for each place the last one with its id; -1: it is not the first with its id
    cdef int32_t *table
    cdef int bits          # of places in the table

    def __dealloc__(self):
        PyMem_Free(self.last)
        PyMem_Free(self.table)

    @staticmethod
    def of(tensors, columns, Texts texts):
        """Those of a result.

        Parameters
        ----------
        tensors : list
            Token ids, log-probabilities and ranks as they came in a message.
        columns : int
            Alternatives to be shown.
        texts : Texts or None
            Of tokens as they are shown here; None: none are wanted.

        Raises
        ------
        Unknown, Exception
            For what FastDeploy has to do itself, and whatever the tokenizer raises: likewise.
        """
        cdef PromptScores prompt = PromptScores.__new__(PromptScores)
        if not PyLong_CheckExact(columns) or columns < 0:
            raise Unknown("the number of a prompt's log-probabilities is no integer")
        prompt.texts, prompt.most = texts, min(columns, 1 << 40) + 1
        if not PyList_CheckExact(tensors) or PyList_GET_SIZE(tensors) != 3:
            raise Unknown("a prompt's log-probabilities are no arrays")
        ids, scores, ranks = prompt.arrays = tuple(tensors)
        prompt.all_ids = <const int64_t *>_numbers_of(ids, 2, "i")
        prompt.all_scores = <const double *>_numbers_of(scores, 2, "f")
        prompt.ranks = <const int64_t *>_numbers_of(ranks, 1, "i")
        length, prompt.width = ids.shape
        if scores.shape != ids.shape or ranks.shape != ids.shape[:1]:
            raise Unknown("a prompt's log-probabilities have several lengths")
        if length == 0 or prompt.width == 0:
            raise Unknown("a prompt's log-probabilities are empty")
        prompt.count = length + 1
        prompt.allocate()
        prompt.ask_extremes()
        return prompt

    def json(self, FloatStyle style not None):
        """The JSON as a stream's chunk shows it."""
        cdef _Writer writer = _Writer.begin(style)
        try:
            self.next = self.column = 0
            self.write_some(writer, <size_t>-1, <Py_ssize_t>1 << 62)
            return writer.text()
        finally:
            writer.end()

    def pieces(self):
        """The JSON as that of an answer that is not streamed, in pieces: Python's."""
        self.next = self.column = 0
        while self.next <= self.count:
            yield self.piece()

    cdef bytes piece(self):
        cdef _Writer writer = _Writer.begin(PYTHON)
        try:
            writer.python = True
            self.write_some(writer, PIECE, NEW_TEXTS)
            return writer.out.data[:writer.out.used]
        finally:
            writer.end()

    cdef int write_some(self, _Writer writer, size_t most, Py_ssize_t new_texts) except -1:
        """Write on until there are so many bytes, or so many texts were made."""
        if self.next == 0:
            writer.literal(b"[null", 5)
            self.next = 1
        while self.next < self.count and writer.out.used < most and new_texts > 0:
            if self.column == 0:
                writer.literal(b",", 1)
            self.column = self.write_cells(writer, self.next - 1, self.column, &new_texts, most)
            if self.column == 0:
                self.next += 1
        if self.next == self.count:
            self.next += 1
            return writer.literal(b"]", 1)
        return 0

    cdef int allocate(self) except -1:
        self.bits = 1
        while <Py_ssize_t>1 << self.bits < 2 * self.width:
            self.bits += 1
        self.last = <int32_t *>PyMem_Malloc(self.width * sizeof(int32_t))
        self.table = <int32_t *>PyMem_Malloc((<Py_ssize_t>1 << self.bits) * sizeof(int32_t))
        if self.last == NULL or self.table == NULL:
            raise MemoryError
        self.loaded = -1
        return 0

    cdef int ask_extremes(self) except -1:
        """Make the texts of the least and the greatest id: a tokenizer that refuses one does it now."""
        cdef int64_t least = 0, greatest = 0
        cdef Py_ssize_t i
        if self.texts is None:
            return 0
        with nogil:
            for i in range((self.count - 1) * self.width):
                least, greatest = min(least, self.all_ids[i]), max(greatest, self.all_ids[i])
        self.texts.numbered(least)
        self.texts.numbered(greatest)
        return 0

    cdef int load(self, Py_ssize_t row) except -1:
        """Turn to a row and find equal ids: the first keeps its place, the last its value."""
        cdef Py_ssize_t i
        cdef uint64_t slot, mask = (<uint64_t>1 << self.bits) - 1
        if self.loaded == row:
            return 0
        self.ids, self.scores = self.all_ids + row * self.width, self.all_scores + row * self.width
        with nogil:
            memset(self.table, 0, (mask + 1) * sizeof(int32_t))
            for i in range(min(self.width, self.most)):
                slot = (<uint64_t>self.ids[i] * <uint64_t>0x9E3779B97F4A7C15) >> (64 - self.bits)
                while self.table[slot] and self.ids[self.table[slot] - 1] != self.ids[i]:
                    slot = (slot + 1) & mask
                if self.table[slot]:
                    self.last[self.table[slot] - 1] = <int32_t>i
                    self.last[i] = -1
                else:
                    self.table[slot] = <int32_t>i + 1
                    self.last[i] = <int32_t>i
        self.loaded = row
        return 0

    cdef Py_ssize_t write_cells(self, _Writer writer, Py_ssize_t row, Py_ssize_t column,
                                Py_ssize_t *new_texts, size_t most) except -1:
        """Write a row's map from a column on; the column at which to go on, 0: it has ended."""
        cdef fdj_buffer *out = &writer.out
        cdef Py_ssize_t i, place, known, n = min(self.width, self.most)
        cdef double score
        cdef text_record *record
        cdef int failed = 0
        self.load(row)
        if column == 0:
            failed |= fdj_put(out, b"{", 1)
        for i in range(column, n):
            if i and (out.used >= most or new_texts[0] <= 0):
                return i
            place = self.last[i]
            if place < 0:
                continue
            score = self.scores[place]
            if not isfinite(score) and score < 0:  # as FastDeploy's clamp_prompt_logprobs
                score = -9999.0
            failed |= fdj_put(out, b',"', 2) if i else fdj_put(out, b'"', 1)
            failed |= fdj_integer(out, self.ids[i])
            failed |= fdj_put(out, b'":{"logprob":', 13)
            writer.double(score)
            failed |= fdj_put(out, b',"rank":', 8)
            failed |= fdj_integer(out, place if place else self.ranks[row])
            failed |= fdj_put(out, b',"decoded_token":', 17)
            if self.texts is None:
                failed |= fdj_put(out, b"null}", 5)
            else:
                known = self.texts.known
                record = self.texts.numbered(self.ids[i])
                new_texts[0] -= self.texts.known - known
                failed |= fdj_put(out, _key_of(record), record.key_size)
                failed |= fdj_put(out, b"}", 1)
        if failed or fdj_put(out, b"}", 1):
            raise MemoryError
        return 0


cdef const unsigned char *_numbers_of(array, int dimensions, str kind) except NULL:
    """Where the numbers of NumPy's array are; Unknown for one that did not come from a message."""
    if (type(array) is not _import("numpy").ndarray or array.ndim != dimensions
            or array.dtype.kind != kind or array.itemsize != 8 or not array.flags.c_contiguous):
        raise Unknown("a prompt's log-probabilities are no arrays")
    return <const unsigned char *><size_t>array.ctypes.data

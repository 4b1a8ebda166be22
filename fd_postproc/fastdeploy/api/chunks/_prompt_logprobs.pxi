# Log-probabilities of a prompt: a map of token ids for each of its tokens, written from the packed numbers.

cdef enum:
    MANY_CELLS = 1024     # of a prompt that is written in pieces
    BITMAP_FROM = 1024    # columns of a row whose ids are looked for in a bitmap first

cdef set _extenders = set()


def extend_lists_by(codes):
    """Set the code objects that put prompt log-probabilities or masks into a list for a stand-in alone."""
    _extenders.clear()
    _extenders.update(codes)


@cython.final
@cython.no_gc
cdef class PromptLogprobs(Packed):
    """The list that FastDeploy makes: None, then a map for each token; made when a caller reads it.

    FastDeploy's serving code puts its items into another list and hands that to the answer's model.  To that
    code alone it is a list of one: itself, which the stand-in for the model recognises.
    """

    cdef PackedRows rows           # where they came as lists
    cdef PackedArray of_ids, of_scores, of_ranks    # where they came as arrays
    cdef Texts texts               # None: no texts are wanted
    cdef object stock, clamper     # FastDeploy's own functions; the second one is None before it is called
    cdef Py_ssize_t count, width, most
    cdef fdu_bytes next_ids, next_scores, next_ranks
    cdef Py_ssize_t next_row, loaded
    # The row that is loaded.
    cdef int64_t *ids
    cdef double *scores
    cdef int32_t *last     # for each place the last one with its id; -1: it is not the first with its id
    cdef int32_t *table
    cdef int64_t rank
    cdef int bits          # of places in the table

    def __dealloc__(self):
        PyMem_Free(self.ids)
        PyMem_Free(self.scores)
        PyMem_Free(self.last)
        PyMem_Free(self.table)

    @staticmethod
    cdef PromptLogprobs of(tensors, Py_ssize_t most, Texts texts, stock):
        """Those of a result; Unknown for what FastDeploy has to see itself."""
        cdef PromptLogprobs made = PromptLogprobs.__new__(PromptLogprobs)
        made.texts, made.stock, made.most = texts, stock, most
        if type(tensors) is PackedRows and (<PackedRows>tensors).lists is None:
            made.rows = tensors
            made.count, made.width = made.rows.rows, made.rows.width
        elif PyList_CheckExact(tensors) and PyList_GET_SIZE(tensors) == 3:
            made.of_ids, made.of_scores, made.of_ranks = (
                _matrix(one, dimensions, kinds) for one, dimensions, kinds in zip(tensors, (2, 2, 1), _KINDS))
            made.count, made.width = made.of_ids.array.shape[0], made.of_ids.array.shape[1]
            if (made.of_scores.array.shape[0] != made.count or made.of_scores.array.shape[1] != made.width
                    or made.of_ranks.array.shape[0] != made.count):
                raise Unknown("a prompt's log-probabilities have several lengths")
        else:
            raise Unknown("a prompt's log-probabilities are no packed numbers")
        if made.count == 0 or made.width == 0:
            raise Unknown("a prompt's log-probabilities are empty or have several lengths")
        made.allocate()
        made.ask_extremes()
        return made

    cdef int allocate(self) except -1:
        self.bits = 1
        while <Py_ssize_t>1 << self.bits < 2 * self.width:
            self.bits += 1
        self.ids = <int64_t *>PyMem_Malloc(self.width * sizeof(int64_t))
        self.scores = <double *>PyMem_Malloc(self.width * sizeof(double))
        self.last = <int32_t *>PyMem_Malloc(self.width * sizeof(int32_t))
        self.table = <int32_t *>PyMem_Malloc((<Py_ssize_t>1 << self.bits) * sizeof(int32_t))
        if self.ids == NULL or self.scores == NULL or self.last == NULL or self.table == NULL:
            raise MemoryError
        self.rewind()
        return 0

    cdef int rewind(self) except -1:
        self.next_row, self.loaded = 0, -1
        if self.rows is not None:
            self.next_ids.at = self.rows.packed + self.rows.ids
            self.next_scores.at = self.rows.packed + self.rows.scores
            self.next_ranks.at = self.rows.packed + self.rows.ranks
            self.next_ids.end = self.next_scores.end = self.next_ranks.end = self.rows.packed + self.rows.size
        return 0

    cdef int ask_extremes(self) except -1:
        """Make the texts of the least and the greatest id: a tokenizer that refuses one does it now."""
        cdef int64_t least = 0, greatest = 0
        cdef Py_ssize_t row, i
        if self.texts is None:
            return 0
        cdef const unsigned char *numbers
        cdef int64_t id
        with nogil:
            if self.rows is None and self.of_ids.array.size == 8:  # Paddle's ids
                numbers = self.of_ids.array.numbers
                for i in range(self.count * self.width):
                    memcpy(&id, numbers + 8 * i, 8)
                    least, greatest = min(least, id), max(greatest, id)
            else:
                for row in range(self.count):
                    self.read(row, False)
                    for i in range(self.width):
                        least, greatest = min(least, self.ids[i]), max(greatest, self.ids[i])
        self.rewind()
        self.texts.numbered(least)
        self.texts.numbered(greatest)
        return 0

    cdef void read(self, Py_ssize_t row, bint scores) noexcept nogil:
        """Read a row's numbers; of a message, rows come one after the other."""
        cdef Py_ssize_t i
        cdef size_t n
        cdef uint64_t word
        if self.rows is None:
            for i in range(self.width):
                self.ids[i] = <int64_t>fdy_word(&self.of_ids.array, row * self.width + i)
            if scores:
                self.rank = <int64_t>fdy_word(&self.of_ranks.array, row)
                for i in range(self.width):
                    word = fdy_word(&self.of_scores.array, row * self.width + i)
                    memcpy(&self.scores[i], &word, 8)
            return
        fdu_list(&self.next_ids, &n)
        for i in range(self.width):
            fdu_integer(&self.next_ids, &self.ids[i])
        if scores:
            fdu_integer(&self.next_ranks, &self.rank)
            fdu_list(&self.next_scores, &n)
            for i in range(self.width):
                fdu_float(&self.next_scores, &self.scores[i])

    cdef int load(self, Py_ssize_t row) except -1:
        """Read a row, and find the places with equal ids: the first keeps its place, the last its value."""
        cdef Py_ssize_t i, n = min(self.width, self.most)
        cdef uint64_t slot, mask = (<uint64_t>1 << self.bits) - 1
        cdef bint repeats
        if self.loaded == row:
            return 0
        if row < self.next_row:
            self.rewind()
        with nogil:
            while self.next_row <= row:
                self.read(self.next_row if self.rows is not None else row, True)
                self.next_row = self.next_row + 1 if self.rows is not None else row + 1
            repeats = n < BITMAP_FROM or self.repeats(n)
            if not repeats:
                for i in range(n):
                    self.last[i] = <int32_t>i
                n = 0
            memset(self.table, 0, (mask + 1) * sizeof(int32_t) if n else 0)
            for i in range(n):
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

    cdef bint repeats(self, Py_ssize_t n) noexcept nogil:
        """Whether an id may be in the row twice, by a bitmap in the table's memory."""
        cdef uint8_t *seen = <uint8_t *>self.table
        cdef uint64_t room = (<uint64_t>8 * sizeof(int32_t)) << self.bits, id
        cdef Py_ssize_t i
        memset(seen, 0, room // 8)
        for i in range(n):
            id = <uint64_t>self.ids[i]
            if id >= room or seen[id >> 3] & (1 << (id & 7)):
                return True
            seen[id >> 3] |= 1 << (id & 7)
        return False

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
            if self.clamper is not None and not isfinite(score) and score < 0:
                score = -9999.0
            if writer.python and not isfinite(score):
                raise Unknown("a log-probability is not finite")
            failed |= fdj_put(out, b',"', 2) if i else fdj_put(out, b'"', 1)
            failed |= fdj_integer(out, self.ids[i])
            failed |= fdj_put(out, b'":{"logprob":', 13)
            failed |= fdj_double(out, score, &writer.style)
            failed |= fdj_put(out, b',"rank":', 8)
            failed |= fdj_integer(out, place if place else self.rank)
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

    cdef list unpacked(self):
        if self.lists is None:
            self.lists = self.stock()
            if self.clamper is not None:
                self.lists = self.clamper(self.lists)
        return self.lists

    def clamp(self, stock):
        """Have minus infinity shown as FastDeploy's function does, which is called if the list is there."""
        if self.lists is not None:
            stock(self.lists)
        self.clamper = stock

    def __len__(self):
        return self.count + 1 if self.lists is None else len(self.lists)

    def __iter__(self):
        if self.lists is None and _extenders and _getframe(0).f_code in _extenders:
            return iter((self,))
        return iter(self.unpacked())


cdef tuple _KINDS = (b"iu", b"f", b"iu")


cdef PackedArray _matrix(value, int dimensions, bytes kinds):
    if (type(value) is not PackedArray or (<PackedArray>value).lists is not None
            or (<PackedArray>value).array.dimensions != dimensions
            or (<PackedArray>value).array.kind not in kinds):
        raise Unknown("a prompt's log-probabilities are no packed numbers")
    return value


cdef list _prompt_parts(value):
    """Those that are a field's value, one behind the other, and can write themselves; None otherwise."""
    if type(value) is PromptLogprobs:
        return [value] if (<PromptLogprobs>value).lists is None else None
    if not PyList_CheckExact(value):
        return None
    for item in <list>value:
        if type(item) is not PromptLogprobs or (<PromptLogprobs>item).lists is not None:
            return None
    return list(value) or None


cdef list _with_lists(list values):
    """A list with FastDeploy's own items in the place of each that stands for several."""
    made = []
    for item in values:
        if type(item) is PromptLogprobs or type(item) is JoinedMasks:
            made.extend((<Packed>item).unpacked())
        else:
            made.append(full(item))
    return made


cdef int _write_prompts(_Writer writer, list sources) except -1:
    cdef Py_ssize_t rows = 0, cells = 0
    for source in sources:
        rows += len(source)
        cells += len(source) * min((<PromptLogprobs>source).width, (<PromptLogprobs>source).most)
    part = _PromptRows.of(sources, rows)
    if writer.parts is not None and (rows >= MANY or cells >= MANY_CELLS):
        return writer.leave(part)
    return part.write_some(writer, <size_t>-1, <Py_ssize_t>1 << 62)


@cython.final
cdef class _PromptRows(Part):
    cdef list sources          # what is left of them
    cdef Py_ssize_t row, column    # where the first of them goes on; row -1: before its None

    @staticmethod
    cdef _PromptRows of(list sources, Py_ssize_t rows):
        cdef _PromptRows made = _PromptRows.__new__(_PromptRows)
        made.sources, made.count, made.size, made.row = sources, rows, -1, -1
        return made

    cdef bytes piece(self, _Writer writer):
        if self.next > self.count:
            return None
        writer.out.used = 0
        self.write_some(writer, PIECE, NEW_TEXTS)
        return writer.out.data[:writer.out.used]

    cdef int write_some(self, _Writer writer, size_t most, Py_ssize_t new_texts) except -1:
        """Write on until there are so many bytes, or so many texts were made."""
        cdef PromptLogprobs source
        if self.next == self.column == 0:
            writer.literal(b"[", 1)
        while self.next < self.count and writer.out.used < most and new_texts > 0:
            source = self.sources[0]
            if self.next and self.column == 0:
                writer.literal(b",", 1)
            if self.row < 0:
                writer.literal(b"null", 4)
            else:
                self.column = source.write_cells(writer, self.row, self.column, &new_texts, most)
            if self.column == 0:
                self.next += 1
                self.row += 1
                if self.row == source.count:
                    self.row = -1
                    del self.sources[0]
        if self.next == self.count:
            self.next += 1
            return writer.literal(b"]", 1)
        return 0

    def __repr__(self):
        return f"<{self.count} items>"


def prompt_logprobs(tensors, columns, texts, stock):
    """What ``_build_prompt_logprobs`` returns, without the lists and maps.

    Parameters
    ----------
    tensors : list
        Token ids, log-probabilities and ranks as they came in a message.
    columns : int
        Alternatives to be shown.
    texts : Texts or None
        Of tokens as they are shown here; None: none are wanted.
    stock : function
        FastDeploy's own call, for a caller that reads the list.

    Returns
    -------
    PromptLogprobs

    Raises
    ------
    Unknown
        For what FastDeploy has to do itself.
    Exception
        Whatever the tokenizer raises: likewise.
    """
    if not PyLong_CheckExact(columns) or columns < 0:
        raise Unknown("the number of a prompt's log-probabilities is no integer")
    return PromptLogprobs.of(tensors, min(columns, 1 << 40) + 1, texts, stock)

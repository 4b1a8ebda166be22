# An answer's numbers as arrays: base64 of their bytes, with shape and type, where the request asks for them.
from fd_postproc.headers.packed_array cimport fdy_raw_base64, fdy_raw_base64_size

cdef enum:
    BLOCK = 3 << 14    # numbers of a piece; three of any size are whole groups of base64


cdef class _Array(Part):
    """The JSON of an array: an object with its type, shape and bytes."""

    cdef bytes head
    cdef int itemsize

    cdef int begin(self, str kind, int itemsize, tuple shape) except -1:
        self.itemsize, self.count = itemsize, 1
        for size in shape:
            self.count *= size
        sizes = ",".join(map(str, shape))
        self.head = f'{{"dtype":"{kind}{8 * itemsize}","shape":[{sizes}],"data":"'.encode()
        self.size = len(self.head) + fdy_raw_base64_size(self.count * itemsize) + 2
        return 0

    cdef int fill(self, char *to, Py_ssize_t first, Py_ssize_t count) except -1:
        """Write some of the numbers; they are asked for in their order."""
        raise NotImplementedError

    cdef const unsigned char *memory(self, Py_ssize_t first) noexcept:
        """Where the numbers lie from one on; NULL: they have to be written somewhere."""
        return NULL

    cdef bytes piece(self, _Writer writer):
        cdef Py_ssize_t count = min(self.count - self.next, BLOCK)
        if self.next > self.count:
            return None
        cdef bint first = self.next == 0, last = self.next + count == self.count
        cdef Py_ssize_t head = len(self.head) if first else 0
        cdef bytes made = PyBytes_FromStringAndSize(
            NULL, head + fdy_raw_base64_size(count * self.itemsize) + (2 if last else 0))
        cdef char *at = PyBytes_AS_STRING(made)
        cdef const unsigned char *numbers = self.memory(self.next)
        cdef bytes block = None
        if numbers == NULL:
            block = PyBytes_FromStringAndSize(NULL, count * self.itemsize)
            self.fill(PyBytes_AS_STRING(block), self.next, count)
            numbers = <const unsigned char *>PyBytes_AS_STRING(block)
        memcpy(at, <const char *>self.head, head)
        at += head
        with nogil:
            fdy_raw_base64(numbers, count * self.itemsize, at)
        if last:
            memcpy(at + fdy_raw_base64_size(count * self.itemsize), b'"}', 2)
        self.next += count + last
        return made

    def __repr__(self):
        return f"<array of {self.count} numbers>"


@cython.final
cdef class _ArrayOfBytes(_Array):
    """An array whose bytes are there."""

    cdef bytes held
    cdef const unsigned char *numbers

    @staticmethod
    cdef _ArrayOfBytes of(str kind, int itemsize, tuple shape, bytes held):
        cdef _ArrayOfBytes made = _ArrayOfBytes.__new__(_ArrayOfBytes)
        made.held, made.numbers = held, <const unsigned char *>PyBytes_AS_STRING(held)
        made.begin(kind, itemsize, shape)
        return made

    @staticmethod
    cdef _ArrayOfBytes packed(bytes held, fdy_array *array):
        cdef _ArrayOfBytes made = _ArrayOfBytes.__new__(_ArrayOfBytes)
        made.held, made.numbers = held, array.numbers
        made.begin(
            {b"i": "int", b"u": "uint", b"f": "float"}[bytes([array.kind])], array.size,
            tuple([array.shape[i] for i in range(array.dimensions)]))
        return made

    cdef const unsigned char *memory(self, Py_ssize_t first) noexcept:
        return self.numbers + first * self.itemsize


cdef _ArrayOfBytes _array_of_integers(list values):
    """Integers of 32 bits, or of 64 where one does not fit."""
    cdef Py_ssize_t i, n = PyList_GET_SIZE(values)
    cdef int overflow = 0
    cdef long long number
    cdef bint wide = False
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 * n)
    cdef int64_t *numbers = <int64_t *>PyBytes_AS_STRING(made)
    for i in range(n):
        value = <object>PyList_GET_ITEM(values, i)
        if not PyLong_CheckExact(value):
            raise Unknown("a list of integers has something else")
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            raise Unknown("an integer has more than 64 bits")
        wide = wide or not -(1 << 31) <= number < 1 << 31
        numbers[i] = number
    if wide:
        return _ArrayOfBytes.of("int", 8, (n,), made)
    cdef bytes narrow = PyBytes_FromStringAndSize(NULL, 4 * n)
    cdef int32_t *to = <int32_t *>PyBytes_AS_STRING(narrow)
    for i in range(n):
        to[i] = <int32_t>numbers[i]
    return _ArrayOfBytes.of("int", 4, (n,), narrow)


@cython.final
cdef class _ArrayOfCells(_Array):
    """Token ids, or log-probabilities, of an answer's rows; short rows are filled up with -1 and NaN."""

    cdef list chat     # of ChatRow; None: all rows of `rows`
    cdef _Rows rows
    cdef Py_ssize_t width
    cdef bint ids

    @staticmethod
    cdef _ArrayOfCells of(list chat, _Rows rows, Py_ssize_t count, Py_ssize_t width, str kind, int itemsize):
        cdef _ArrayOfCells made = _ArrayOfCells.__new__(_ArrayOfCells)
        made.chat, made.rows, made.width, made.ids = chat, rows, width, kind == "int"
        made.begin(kind, itemsize, (count, width))
        return made

    cdef int fill(self, char *to, Py_ssize_t first, Py_ssize_t count) except -1:
        cdef Py_ssize_t row = first // self.width, column = first % self.width, begin, n
        cdef _Rows rows = self.rows
        cdef float single
        cdef double score
        cdef int64_t id
        while count:
            if self.chat is not None:
                rows = (<ChatRow>self.chat[row]).rows
                begin, n = rows.begin((<ChatRow>self.chat[row]).row), rows.ends[(<ChatRow>self.chat[row]).row]
            else:
                begin, n = rows.begin(row), rows.ends[row]
            while column < self.width and count:
                if self.ids:
                    id = rows.cells[begin + column].id if begin + column < n else -1
                    memcpy(to, &id, self.itemsize)
                else:
                    score = rows.cells[begin + column].score if begin + column < n else NAN
                    single = <float>score
                    memcpy(to, &score if self.itemsize == 8 else <void *>&single, self.itemsize)
                to += self.itemsize
                column += 1
                count -= 1
            column = 0
            row += 1
        return 0


cdef int _write_compact_logprobs(_Writer writer, value) except -1:
    """Write the log-probabilities of an answer, chat's or a completion's."""
    cdef list chat = None
    cdef _Rows rows = None
    cdef Py_ssize_t i, j, count, begin, end, width = 0
    cdef bint wide_ids = False, wide = False
    cdef double score
    cdef long long id
    if type(value) is CompletionLogprobs and (<CompletionLogprobs>value).whole is None:
        rows = (<CompletionLogprobs>value).rows
        count = rows.rows
    elif type(value) is Model and (<Model>value).whole is None:
        chat = (<Model>value).values.get("content")
        if not chat or (<Model>value).values.keys() != {"content"}:
            raise Unknown("log-probabilities are of another form")
        count = PyList_GET_SIZE(chat)
        for row in chat:
            if type(row) is not ChatRow or (<ChatRow>row).whole is not None:
                raise Unknown("log-probabilities are of another form")
    else:
        raise Unknown("log-probabilities are of another form")
    for i in range(count):
        if chat is not None:
            rows = (<ChatRow>chat[i]).rows
            begin, end = rows.begin((<ChatRow>chat[i]).row), rows.ends[(<ChatRow>chat[i]).row]
        else:
            begin, end = rows.begin(i), rows.ends[i]
        width = max(width, end - begin)
        for j in range(begin, end):
            id, score = rows.cells[j].id, rows.cells[j].score
            wide_ids = wide_ids or not -(1 << 31) <= id < 1 << 31
            wide = wide or (score == score and <double><float>score != score)
    rows = None if chat is not None else rows
    writer.literal(b'{"token_ids":', 13)
    writer.leave(_ArrayOfCells.of(chat, rows, count, width, "int", 8 if wide_ids else 4))
    writer.literal(b',"logprobs":', 12)
    writer.leave(_ArrayOfCells.of(chat, rows, count, width, "float", 8 if wide else 4))
    return writer.literal(b"}", 1)


@cython.final
cdef class _ArrayOfPrompt(_Array):
    """Token ids, log-probabilities or ranks of a prompt, row by row."""

    cdef PromptLogprobs source
    cdef Py_ssize_t width
    cdef int which    # 0: ids, 1: log-probabilities, 2: ranks

    @staticmethod
    cdef _ArrayOfPrompt of(PromptLogprobs source, int which):
        cdef _ArrayOfPrompt made = _ArrayOfPrompt.__new__(_ArrayOfPrompt)
        made.source, made.which = source, which
        made.width = 1 if which == 2 else min(source.width, source.most)
        cdef tuple shape = (source.count, made.width)
        made.begin("float" if which == 1 else "int", 8, shape[:1] if which == 2 else shape)
        return made

    cdef int fill(self, char *to, Py_ssize_t first, Py_ssize_t count) except -1:
        cdef Py_ssize_t row = first // self.width, column = first % self.width
        while count:
            self.source.load(row)
            while column < self.width and count:
                if self.which == 0:
                    memcpy(to, &self.source.ids[column], 8)
                elif self.which == 1:
                    memcpy(to, &self.source.scores[column], 8)
                else:
                    memcpy(to, &self.source.rank, 8)
                to += 8
                column += 1
                count -= 1
            column = 0
            row += 1
        return 0


cdef int _write_compact_prompts(_Writer writer, value) except -1:
    cdef list sources = _prompt_parts(value)
    cdef PromptLogprobs source
    if sources is None or len(sources) != 1:
        raise Unknown("a prompt's log-probabilities are of another form")
    source = sources[0]
    cdef bint raw = source.rows is None and source.width <= source.most
    names, arrays = ("token_ids", "logprobs", "ranks"), (source.of_ids, source.of_scores, source.of_ranks)
    for which in range(3):
        writer.put((("," if which else "{") + f'"{names[which]}":').encode())
        if raw:
            array = <PackedArray>arrays[which]
            writer.leave(_ArrayOfBytes.packed(array.held, &array.array))
        else:
            writer.leave(_ArrayOfPrompt.of(source, which))
    return writer.literal(b"}", 1)


@cython.final
cdef class _ArrayOfMasks(_Array):
    """The ids of all masks, one behind the other; checked while they are written, before anything is sent."""

    cdef list rows
    cdef JoinedMasks joined    # in their place
    cdef Py_ssize_t row, place
    cdef fdu_bytes source      # of a packed row

    @staticmethod
    cdef _ArrayOfMasks of(list rows, JoinedMasks joined, Py_ssize_t count):
        cdef _ArrayOfMasks made = _ArrayOfMasks.__new__(_ArrayOfMasks)
        made.rows, made.joined = rows, joined
        if joined is not None:
            made.source.at, made.source.end = joined.packed, joined.packed + joined.size
        made.begin("int", 4, (count,))
        made.size = -1
        return made

    cdef int fill(self, char *to, Py_ssize_t first, Py_ssize_t count) except -1:
        cdef int64_t id
        cdef int32_t narrow
        cdef size_t n
        cdef int overflow = 0
        cdef Py_ssize_t end
        cdef bint packed
        while count:
            if self.joined is not None:
                packed, row = True, None
                end = self.joined.length(self.row)
            else:
                row = self.rows[self.row]
                packed = type(row) is PackedMasks and (<PackedMasks>row).lists is None
                end = len(row)
            if packed and self.place == 0:
                if row is not None:
                    self.source.at = (<PackedMasks>row).packed
                    self.source.end = self.source.at + (<PackedMasks>row).size
                fdu_list(&self.source, &n)
            while self.place < end and count:
                if packed:
                    fdu_integer(&self.source, &id)
                else:
                    value = row[self.place]
                    if not PyLong_CheckExact(value):
                        raise Unknown("a list of integers has something else")
                    id = PyLong_AsLongLongAndOverflow(value, &overflow)
                if overflow or not -(1 << 31) <= id < 1 << 31:
                    raise Unknown("a mask's token id has more than 32 bits")
                narrow = <int32_t>id
                memcpy(to, &narrow, 4)
                to += 4
                self.place += 1
                count -= 1
            if self.place == end:
                self.row += 1
                self.place = 0
        return 0


cdef int _write_compact_masks(_Writer writer, value) except -1:
    cdef Py_ssize_t i, count, total = 0
    cdef JoinedMasks joined = None
    cdef list rows = None
    if type(value) is JoinedMasks and (<JoinedMasks>value).lists is None:
        joined = value
        count = joined.count
    else:
        rows = (<Packed>value).unpacked() if isinstance(value, Packed) else value
        if not PyList_CheckExact(rows):
            raise Unknown("a field was assigned another type")
        count = PyList_GET_SIZE(rows)
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, 8 * (count + 1))
    cdef int64_t *ends = <int64_t *>PyBytes_AS_STRING(offsets)
    ends[0] = 0
    for i in range(count):
        total += len(rows[i]) if joined is None else joined.length(i)
        ends[i + 1] = total
    writer.literal(b'{"offsets":', 11)
    writer.leave(_ArrayOfBytes.of("int", 8, (count + 1,), offsets))
    writer.literal(b',"token_ids":', 13)
    writer.leave(_ArrayOfMasks.of(rows, joined, total))
    return writer.literal(b"}", 1)

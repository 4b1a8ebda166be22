# The table of token texts: for each id, made once, its text and the JSON that never changes.

cdef struct text_record:
    # One block of memory: the record, and behind it what stands around a score.
    uint32_t key_size     # a JSON string: what is shown for the id
    uint32_t tail_size    # ,"bytes":[...] with the UTF-8 of the text as the tokenizer gave it
    text_record *same     # the first record with an equal key: it identifies equal texts
    Py_ssize_t place      # of the last cell of a row that shows this text, while that row is written


cdef enum:
    BEFORE_KEY = 9     # bytes of {"token":
    BEHIND_KEY = 11    # and of ,"logprob":


cdef inline const char *_head_of(const text_record *record) noexcept:
    return <const char *>(record + 1)


cdef inline size_t _head_size(const text_record *record) noexcept:
    return BEFORE_KEY + record.key_size + BEHIND_KEY


cdef inline const char *_key_of(const text_record *record) noexcept:
    return _head_of(record) + BEFORE_KEY


cdef inline const char *_tail_of(const text_record *record) noexcept:
    return _head_of(record) + _head_size(record)


cdef long long MOST_IDS = 1 << 22
"""Limit of token ids; a larger id belongs to no vocabulary."""


@cython.final
cdef class Texts:
    """Cached texts of token ids; each is asked for once.

    Parameters
    ----------
    spell : callable
        From a token id to ``(shown, text)``: the text that is shown, and the one that the tokenizer gave.
        What it raises goes through, and nothing is kept.
    limit : int, optional
        Bytes to be kept at most.  Beyond, nothing more is kept, and Unknown is raised for ids not in it.
    """

    cdef object spell
    cdef text_record **records
    cdef Py_ssize_t room
    cdef dict firsts    # what is shown -> address of its first record
    cdef readonly size_t limit, size    # bytes that it may take, and that it takes
    cdef readonly Py_ssize_t known      # ids in it

    def __init__(self, spell, size_t limit=128 << 20):
        if self.firsts is not None:
            raise RuntimeError("a table of texts is filled already")
        self.spell, self.limit, self.firsts = spell, limit, {}

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.room):
            PyMem_Free(self.records[i])
        PyMem_Free(self.records)

    cdef inline text_record *numbered(self, long long id) except NULL:
        """The cached record of an id; Unknown if the id cannot be cached."""
        if 0 <= id < self.room and self.records[id] != NULL:
            return self.records[id]
        if not 0 <= id < MOST_IDS:
            raise Unknown("a token id is out of range")
        return self.ask(id)

    cdef text_record *ask(self, Py_ssize_t id) except NULL:
        if self.size >= self.limit:
            raise Unknown("the table of token texts is full")
        shown, text = self.spell(id)
        if not PyUnicode_CheckExact(shown) or not PyUnicode_CheckExact(text):
            raise Unknown("a token has no text")
        try:
            raw, key = text.encode(), _json_string(shown)
        except UnicodeEncodeError:
            raise Unknown("a token's text is no Unicode") from None
        tail = b',"bytes":[' + b",".join([b"%d" % byte for byte in raw]) + b"]"
        return self.keep(id, key, b'{"token":' + key + b',"logprob":' + tail, len(tail))

    cdef text_record *keep(self, Py_ssize_t id, bytes key, bytes text, size_t tail_size) except NULL:
        if id < self.room and self.records[id] != NULL:  # made meanwhile: spelling calls other code
            return self.records[id]
        self.make_room(id)
        cdef size_t size = sizeof(text_record) + len(text)
        cdef text_record *record = <text_record *>PyMem_Malloc(size)
        if record == NULL:
            raise MemoryError
        memset(record, 0, sizeof(text_record))
        record.key_size, record.tail_size = <uint32_t>len(key), <uint32_t>tail_size
        memcpy(<char *>_head_of(record), <const char *>text, len(text))
        try:
            first = self.firsts.setdefault(key, <size_t>record)
        except MemoryError:
            PyMem_Free(record)
            raise
        record.same = <text_record *><size_t>first
        self.records[id] = record
        self.known += 1
        self.size += size + (128 if record.same == record else 0)
        return record

    cdef int make_room(self, Py_ssize_t id) except -1:
        if id < self.room:
            return 0
        cdef Py_ssize_t room = max(2 * self.room, (id // 4096 + 1) * 4096)
        cdef text_record **records = <text_record **>PyMem_Realloc(
            self.records, room * sizeof(text_record *))
        if records == NULL:
            raise MemoryError
        memset(records + self.room, 0, (room - self.room) * sizeof(text_record *))
        self.size += (room - self.room) * sizeof(text_record *)
        self.records, self.room = records, room
        return 0

    def shown(self, long long id):
        """The text that an answer shows for a token id."""
        cdef const text_record *record = self.numbered(id)
        return _json_loads(PyUnicode_DecodeUTF8(_key_of(record), record.key_size, NULL))


cdef bytes _json_string(str text):
    cdef _Writer writer = _Writer.begin(PYTHON)
    try:
        writer.string(text)
        return writer.out.data[:writer.out.used]
    finally:
        writer.end()


from json import loads as _json_loads

# The table of token texts: for each id, made once, its text and the JSON that never changes.

cdef struct text_record:
    # One block of memory: the record, and behind it the text, its key, and what stands around a score.
    uint32_t text_size    # UTF-8 of the text as the tokenizer gave it
    uint32_t key_size     # a JSON string: what is shown for it
    uint32_t head_size    # {"token":<key>,"logprob":
    uint32_t tail_size    # ,"bytes":[...]
    text_record *same     # the first record with an equal key: it identifies equal texts
    Py_ssize_t place      # of the last cell of a row that shows this text, while that row is written


cdef inline const char *_text_of(const text_record *record) noexcept:
    return <const char *>(record + 1)


cdef inline const char *_key_of(const text_record *record) noexcept:
    return <const char *>(record + 1) + record.text_size


cdef inline const char *_head_of(const text_record *record) noexcept:
    return _key_of(record) + record.key_size


cdef inline const char *_tail_of(const text_record *record) noexcept:
    return _head_of(record) + record.head_size


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
        head = b'{"token":' + key + b',"logprob":'
        tail = b',"bytes":[' + b",".join([b"%d" % byte for byte in raw]) + b"]"
        return self.keep(id, raw, key, head, tail)

    cdef text_record *keep(self, Py_ssize_t id, bytes raw, bytes key, bytes head, bytes tail) except NULL:
        if id < self.room and self.records[id] != NULL:  # made meanwhile: spelling calls other code
            return self.records[id]
        self.make_room(id)
        cdef size_t size = sizeof(text_record) + len(raw) + len(key) + len(head) + len(tail)
        cdef text_record *record = <text_record *>PyMem_Malloc(size)
        if record == NULL:
            raise MemoryError
        memset(record, 0, sizeof(text_record))
        record.text_size, record.key_size = <uint32_t>len(raw), <uint32_t>len(key)
        record.head_size, record.tail_size = <uint32_t>len(head), <uint32_t>len(tail)
        memcpy(<char *>_text_of(record), <const char *>raw, len(raw))
        memcpy(<char *>_key_of(record), <const char *>key, len(key))
        memcpy(<char *>_head_of(record), <const char *>head, len(head))
        memcpy(<char *>_tail_of(record), <const char *>tail, len(tail))
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

    def shown(self, id):
        """The text that an answer shows for a token id."""
        return _shown(self.numbered(_token_id(id)))


cdef inline long long _token_id(token) except? -2:
    cdef int overflow = 0
    if not PyLong_CheckExact(token):
        raise Unknown("a token id is no integer")
    cdef long long id = PyLong_AsLongLongAndOverflow(token, &overflow)
    if overflow:
        raise Unknown("a token id is out of range")
    return id


cdef bytes _json_string(str text):
    cdef _Writer writer = _Writer.begin(PYTHON)
    try:
        writer.string(text)
        return writer.out.data[:writer.out.used]
    finally:
        writer.end()


cdef str _shown(const text_record *record):
    """The shown text as a string: the tokenizer's, or the rule's for an id without text."""
    cdef const char *key = _key_of(record)
    if record.key_size == record.text_size + 2 and not memcmp(key + 1, _text_of(record), record.text_size):
        return PyUnicode_DecodeUTF8(_text_of(record), record.text_size, NULL)
    return _json_loads(PyUnicode_DecodeUTF8(key, record.key_size, NULL))


from json import loads as _json_loads

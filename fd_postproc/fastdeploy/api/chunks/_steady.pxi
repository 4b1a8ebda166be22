# Chunks of streams in their steady state: from the engine's message to the connection, in one pass.
#
# A result that asks for nothing but one more chunk is not unpacked.  Its tokens and log-probabilities are
# read where they lie, its text is put between the parts of its stream's template, and one call writes it.
# Nothing is changed before the chunk is whole.  Whatever is not as expected is unpacked and goes FastDeploy's
# way.

from cpython.bytes cimport PyBytes_FromStringAndSize

cdef enum:
    RULE_ANY, RULE_ID, RULE_OUTPUTS, RULE_METRICS, RULE_FALSE, RULE_200, RULE_FALSY, RULE_0, RULE_NOT_0
    RULE_TOKENS, RULE_TOP, RULE_DRAFTS, RULE_UNKNOWN
    MOST_KEYS = 32
    MOST_NEW = 64       # tokens of one result
    FRAME = 20          # bytes before a chunk: its size in hexadecimal digits, and the end of a line
    LEVELS = 16

cdef struct key_rule:
    const char *name
    size_t size
    int rule

cdef struct rules_of:
    key_rule rules[MOST_KEYS]
    int count
    uint32_t required

cdef struct one_result:
    const char *id
    size_t id_size, tokens
    int64_t ids[MOST_NEW]
    double time
    const unsigned char *top    # NULL: none
    size_t top_size
    fdu_rows rows
    bint drafts

RESULT_KEYS = {
    "request_id": RULE_ID, "prompt": RULE_ANY, "prompt_token_ids": RULE_ANY, "prompt_logprobs": RULE_ANY,
    "output_type": RULE_ANY, "outputs": RULE_OUTPUTS, "metrics": RULE_METRICS, "finished": RULE_FALSE,
    "num_cached_tokens": RULE_ANY, "num_input_image_tokens": RULE_ANY, "num_input_video_tokens": RULE_ANY,
    "error_code": RULE_200, "error_msg": RULE_ANY, "ic_req_data": RULE_ANY,
    "prompt_token_ids_len": RULE_ANY, "trace_carrier": RULE_ANY,
}
OUTPUT_KEYS = {
    "index": RULE_ANY, "send_idx": RULE_NOT_0, "token_ids": RULE_TOKENS, "decode_type": RULE_FALSY,
    "logprob": RULE_ANY, "top_logprobs": RULE_TOP, "draft_top_logprobs": RULE_DRAFTS, "logprobs": RULE_ANY,
    "draft_token_ids": RULE_ANY, "text": RULE_ANY, "reasoning_content": RULE_ANY,
    "reasoning_token_num": RULE_0, "sampling_mask": RULE_FALSY, "num_cache_tokens": RULE_FALSY,
    "num_image_tokens": RULE_FALSY, "speculate_metrics": RULE_ANY,
}
"""Keys of an ordinary result and of its outputs, and what they may hold."""

cdef rules_of _result_rules, _output_rules
cdef list _names = []    # the memory that the rules point to


cdef int _fill_rules(rules_of *rules, dict table, required) except -1:
    for name, rule in table.items():
        text = name.encode()
        _names.append(text)
        rules.rules[rules.count].name = text
        rules.rules[rules.count].size = len(text)
        rules.rules[rules.count].rule = rule
        if name in required:
            rules.required |= <uint32_t>1 << rules.count
        rules.count += 1
    return 0


_fill_rules(&_result_rules, RESULT_KEYS, ("request_id", "outputs", "metrics", "finished"))
_fill_rules(&_output_rules, OUTPUT_KEYS, ("token_ids", "top_logprobs", "draft_top_logprobs"))


cdef int _rule(const rules_of *rules, const char *name, size_t size, int *at, uint32_t *seen) noexcept:
    """The rule of a key; keys come in the same order again and again."""
    cdef int i, here
    for i in range(rules.count):
        here = (at[0] + i) % rules.count
        if rules.rules[here].size == size and not memcmp(rules.rules[here].name, name, size):
            if seen[0] >> here & 1:
                return RULE_UNKNOWN
            seen[0] |= <uint32_t>1 << here
            at[0] = here + 1
            return rules.rules[here].rule
    return RULE_UNKNOWN


cdef inline bint _read_byte(fdu_bytes *source, unsigned char one, unsigned char other) noexcept:
    if source.at < source.end and (source.at[0] == one or source.at[0] == other):
        source.at += 1
        return True
    return False


cdef bint _read_result(fdu_bytes *source, const rules_of *rules, one_result *result) noexcept:
    """Whether a result, or its outputs, is one more chunk and nothing else."""
    cdef size_t pairs, i, size
    cdef const char *name
    cdef uint32_t seen = 0
    cdef int at = 0
    if not fdu_map(source, &pairs):
        return False
    for i in range(pairs):
        if not (fdu_text(source, &name, &size)
                and _read_value(source, _rule(rules, name, size, &at, &seen), result)):
            return False
    return seen & rules.required == rules.required


cdef bint _read_value(fdu_bytes *source, int rule, one_result *result) noexcept:
    cdef size_t i
    cdef int64_t integer
    if rule == RULE_ANY:
        return fdu_pass(source, LEVELS)
    if rule == RULE_ID:
        return fdu_text(source, &result.id, &result.id_size)
    if rule == RULE_OUTPUTS:
        return _read_result(source, &_output_rules, result)
    if rule == RULE_METRICS:
        return _read_metrics(source, result)
    if rule == RULE_FALSE:
        return _read_byte(source, 0xC2, 0xC2)
    if rule == RULE_200:
        return fdu_integer(source, &integer) and integer == 200
    if rule == RULE_FALSY:
        return _read_byte(source, 0xC0, 0x00)
    if rule == RULE_0:
        return _read_byte(source, 0x00, 0x00)
    if rule == RULE_NOT_0:
        return fdu_integer(source, &integer) and integer != 0
    if rule == RULE_TOKENS:
        if not fdu_list(source, &result.tokens) or not 0 < result.tokens <= MOST_NEW:
            return False
        for i in range(result.tokens):
            if not fdu_integer(source, &result.ids[i]):
                return False
        return True
    if rule == RULE_TOP:
        if _read_byte(source, 0xC0, 0xC0):
            return True
        result.top = source.at
        if not fdu_logprobs(source, &result.rows):
            return False
        result.top_size = <size_t>(source.at - result.top)
        return True
    if rule == RULE_DRAFTS:
        result.drafts = not _read_byte(source, 0xC0, 0xC0)
        return not result.drafts or fdu_pass(source, LEVELS)
    return False


cdef bint _read_metrics(fdu_bytes *source, one_result *result) noexcept:
    cdef size_t pairs, i, size
    cdef const char *name
    cdef bint found = False
    if not fdu_map(source, &pairs):
        return False
    for i in range(pairs):
        if not fdu_text(source, &name, &size):
            return False
        if size == 29 and not memcmp(name, b"engine_recv_latest_token_time", 29):
            if found or not fdu_float(source, &result.time):
                return False
            found = True
        elif size == 17 and not memcmp(name, b"speculate_metrics", 17):
            if not _read_byte(source, 0xC0, 0xC0):
                return False
        elif not fdu_pass(source, LEVELS):
            return False
    return found


@cython.final
cdef class Premises:
    """What all streams of a server take for granted; asked once a message.

    Parameters
    ----------
    hold : callable
        Whether it is still so.
    requests : RequestMap
    decode_status : dict
        Of the data processor: each answer's state.
    new_text, text_class : callable, type
        What makes the text of new tokens, and the class of an answer's text.
    style : FloatStyle
        How streams print floats.
    interval : tuple of (int, float) or None
        Tokens of a chunk at least, and seconds that they wait for others at most.
    """

    cdef object hold, requests, new_text, text_class, loop
    cdef ByteTokens tokens_of    # whose method makes the texts; None: something else does
    cdef Py_ssize_t tokens
    cdef double seconds
    cdef list holding     # streams with tokens that wait; of one that is no longer waiting, too
    cdef dict decode_status
    cdef FloatStyle style
    cdef unsigned long long message
    cdef bint held, more

    def __init__(self, hold, requests, dict decode_status not None, new_text, text_class,
                 FloatStyle style not None, interval=None):
        self.hold, self.requests, self.decode_status = hold, requests, decode_status
        self.new_text, self.text_class, self.style = new_text, text_class, style
        owner = getattr(new_text, "__self__", None)
        self.tokens_of = owner if isinstance(owner, ByteTokens) else None
        self.holding = []
        if interval is not None:
            self.tokens, self.seconds = interval
            self.loop = _get_running_loop()

    cdef bint holds(self) except -1:
        if self.message != _message:
            self.held, self.more = self.hold(), self.requests.more()
            self.message = _message
        return self.held

    cdef int keep(self, SteadyStream stream) except -1:
        """Release a stream's tokens in time."""
        stream.due = <double>self.loop.time() + self.seconds
        if not self.holding:
            self.loop.call_later(self.seconds, self.release)
        self.holding.append(stream)
        return 0

    def release(self):
        """Write tokens that have waited long enough."""
        cdef double now = <double>self.loop.time() + _EARLY
        cdef SteadyStream stream
        cdef list later = []
        for one in self.holding:
            stream = <SteadyStream>one
            if stream.kept == 0 or stream in later:
                continue
            if stream.due > now:
                later.append(stream)
                continue
            try:
                if stream.release():
                    self.requests.write(stream.lane)
            except Exception as error:
                note(f"tokens that waited are not written: {type(error).__name__}")
        self.holding = later
        if later:
            self.loop.call_later(max(min([(<SteadyStream>one).due for one in later]) - now, 0), self.release)


TEXT, ARRIVAL, LOGPROBS, COUNT, TOTAL = range(5)
cdef enum:
    IS_TEXT, IS_ARRIVAL, IS_LOGPROBS, IS_COUNT, IS_TOTAL
    MOST_SLOTS = 5
    MOST_IDS_OURS = 1024    # ids of an answer that are not in its list yet


@cython.final
cdef class SteadyStream:
    """A stream of one choice, of which every chunk but for some values is the same.

    What a chunk needs lies here, in few places: at ten steps a second each place is fetched from memory.
    It is taken over (`take_over`) when the stream's task waits, and given back when that may go on.

    Parameters
    ----------
    lane : Lane
    premises : Premises
    parts : list of bytes
        Of a chunk, around the values.
    slots : list of int
        Which value is between two parts: TEXT, ARRIVAL, LOGPROBS, COUNT (tokens until now), TOTAL.
    build : callable
        From packed log-probabilities to what is written.
    prompt : int
        Tokens of the prompt.
    end_of_audio : int or None
        A token that is not ordinary at the end of a result.
    drafts : bool
        Whether draft log-probabilities are asked for.
    """

    cdef SteadyStream after    # whose result came behind this one's in the message before
    cdef const char *name      # of `id`
    cdef Py_ssize_t name_size
    cdef bint is_set, is_ours, drafts, whole
    cdef unsigned long long left    # the message in which a result was left to the stream's task
    cdef QuickQueue queue
    cdef object waiter, cycle, flow, send
    cdef double start
    cdef long long count, prompt
    cdef int64_t *ids               # of the answer, from the first window on
    cdef Py_ssize_t room, used, read, prefix, given    # given: how many of them its list has
    cdef Py_ssize_t kept            # tokens that wait for others
    cdef Premises premises
    cdef bytes template, chunk_made
    cdef Py_ssize_t ends[MOST_SLOTS + 1]
    cdef int slots[MOST_SLOTS]
    cdef int slot_count
    cdef GrowingText answer
    cdef object build, lane, end_of_audio, audio
    cdef ChatColumns columns
    cdef str id
    cdef list counts, starts, pending, status
    cdef Py_ssize_t first           # which of the answer's ids the first one is
    cdef double due, arrival        # until when tokens wait; of the last of them
    cdef str text
    cdef list top

    def __init__(self, lane, Premises premises not None, list parts not None, list slots not None, *, build,
                 prompt, end_of_audio, audio, drafts):
        if len(parts) != len(slots) + 1 or len(slots) > MOST_SLOTS:
            raise ValueError(f"{len(slots)} values are not between {len(parts)} parts")
        self.lane, self.premises, self.queue, self.build = lane, premises, lane.queue, build
        self.columns = build if isinstance(build, ChatColumns) else None
        self.prompt, self.end_of_audio, self.audio, self.drafts = prompt, end_of_audio, audio, drafts
        self.cycle, self.flow, self.pending = lane.cycle, lane.flow, lane.pending
        self.counts, self.starts = lane.counts, lane.starts
        self.text, self.top, self.template = "", None, b"".join(parts)
        self.slot_count = len(slots)
        for i, slot in enumerate(slots):
            self.slots[i] = slot
        end = 0
        for i, part in enumerate(parts):
            end += len(part)
            self.ends[i] = end

    def __dealloc__(self):
        PyMem_Free(self.ids)

    def chunk(self, str text not None, double arrival, top, long long count):
        """The chunk of these values."""
        cdef one_result result
        cdef _Writer writer = _Writer.begin(self.premises.style)
        memset(&result, 0, sizeof(result))
        if type(top) is PackedRows and (<PackedRows>top).lists is None:
            _rows_in_message(<PackedRows>top, &result)
            top = None
        writer.unset = True
        try:
            data = text.encode()
            self.write(writer, data, len(data), arrival, &result, top, count)
            return writer.out.data[:writer.out.used]
        finally:
            writer.end()

    cdef int write(self, _Writer writer, const char *text, size_t size, double arrival,
                   const one_result *result, top, long long count) except -1:
        """Write a chunk; its log-probabilities are `top`, or where that is None those of the result."""
        cdef const char *template = PyBytes_AS_STRING(self.template)
        cdef Py_ssize_t begin = 0
        cdef int i, slot
        for i in range(self.slot_count):
            writer.literal(template + begin, self.ends[i] - begin)
            begin, slot = self.ends[i], self.slots[i]
            if slot == IS_TEXT:
                if fdj_string(&writer.out, text, size):
                    raise MemoryError
            elif slot == IS_ARRIVAL:
                writer.double(arrival)
            elif slot == IS_LOGPROBS:
                self.write_logprobs(writer, result, top)
            else:
                writer.number(count if slot == IS_COUNT else count + self.prompt)
        return writer.literal(template + begin, self.ends[self.slot_count] - begin)

    cdef int write_logprobs(self, _Writer writer, const one_result *result, top) except -1:
        if top is None and result.top != NULL:
            if self.columns is not None:
                return self.columns.write(writer, &result.rows, result.top + result.top_size)
            top = _kept_rows(result.top, result.top_size, &result.rows)
        piece = None if top is None else self.build(top)
        if piece is None:
            return writer.literal(b"null", 4)
        if not isinstance(piece, Piece):
            raise Unknown("log-probabilities are written by FastDeploy's model")
        return (<Piece>piece).write(writer)

    cdef bint take_over(self) except -1:
        """Take the answer's state from its lists; False if its task does not wait, or they are of another kind."""
        cdef Py_ssize_t i
        cdef PyObject *found
        cdef list status, ids
        waiter, start = self.lane.waiter, self.starts[0]
        if waiter is None or waiter is not self.queue.waiter or self.queue.items or waiter.done():
            return False
        if not PyFloat_CheckExact(start) or not start or (self.end_of_audio is not None and self.audio):
            return False
        found = PyDict_GetItemWithError(self.premises.decode_status, self.id)
        if found == NULL or not PyList_CheckExact(<object>found) or PyList_GET_SIZE(<object>found) != 4:
            return False
        status = <list>found
        answer, ids = status[3], status[2]
        if type(answer) is not self.premises.text_class or answer.marks is not None:
            return False
        self.first, self.prefix, self.read = status[0], 0, <Py_ssize_t>status[1] - <Py_ssize_t>status[0]
        self.used = self.given = PyList_GET_SIZE(ids) - self.first
        if self.first < 0 or not 0 <= self.read <= self.used:
            return False
        self.make_room(self.used)
        for i in range(self.used):
            self.ids[i] = ids[self.first + i]
        self.answer = answer.append.__self__
        self.count, self.start, self.whole = self.counts[0], start, False
        self.waiter, self.send, self.status = waiter, self.cycle.transport.write, status
        self.is_ours = True
        return True

    cdef int make_room(self, Py_ssize_t count) except -1:
        if count > self.room:
            grown = <int64_t *>PyMem_Realloc(self.ids, 2 * count * sizeof(int64_t))
            if grown == NULL:
                raise MemoryError
            self.ids, self.room = grown, 2 * count
        return 0

    cpdef int give_back(self) except -1:
        """Bring the answer's state up to date, for its task."""
        cdef Py_ssize_t i
        cdef list ids
        if self.is_ours:
            self.is_ours = False
            ids = self.status[2]
            for i in range(self.given, self.used):
                ids.append(self.ids[i])
            self.status[0], self.status[1] = self.first + self.prefix, self.first + self.read
            self.counts[0] = self.count
            self.status = self.send = self.waiter = self.answer = None
        return 0

    cdef bint waits(self) except -1:
        """Whether its task waits, all before is written, and nothing stands in the way."""
        if self.left == _message or (self.is_ours and self.queue.waiter is not self.waiter):
            return False
        if self.used > MOST_IDS_OURS:
            self.give_back()
        return ((self.is_ours or self.take_over()) and not self.cycle.disconnected
                and not self.flow.write_paused and self.premises.holds())

    cdef bint takes(self, const one_result *result) except -1:
        """Write a result's chunk; False if its task has to see it, and nothing has changed."""
        cdef Py_ssize_t i, tokens = <Py_ssize_t>result.tokens
        try:
            if (self.waits() and not (self.drafts and result.drafts)
                    and (self.end_of_audio is None or result.ids[tokens - 1] != self.end_of_audio)):
                self.make_room(self.used + tokens)
                for i in range(tokens):
                    self.ids[self.used + i] = result.ids[i]
                if self.made(result, tokens):
                    return True
        except Exception:    # something that only the generator can answer
            pass
        self.give_back()
        return False

    cdef bint made(self, const one_result *result, Py_ssize_t tokens) except -1:
        """Make the chunk of new ids, which lie behind the others; False if their text is not known."""
        cdef Py_ssize_t count = self.used + tokens, prefix = self.read, read = count
        cdef Py_ssize_t window = self.read if self.whole else self.prefix    # its first id
        cdef const char *data
        cdef Py_ssize_t begin = 0, size
        cdef double arrival = result.time - self.start
        cdef bint whole = True
        cdef bytes chunk = None
        cdef _Writer text = _Writer.begin(self.premises.style), writer = _Writer.begin(self.premises.style)
        writer.unset = True
        try:
            if self.premises.tokens_of is not None:
                begin = self.premises.tokens_of.new_bytes(
                    &text.out, self.ids + window, self.read - window, count - window)
                whole = begin >= 0
                if begin == <Py_ssize_t>text.out.used:
                    prefix, read = self.prefix, self.read
            if self.premises.tokens_of is None or not whole:
                told = self.premises.new_text([self.ids[i] for i in range(self.prefix, count)], 0,
                                              self.read - self.prefix)
                if told is None:
                    return False
                new, prefix, read = told
                prefix, read, whole, begin = self.prefix + prefix, self.prefix + read, False, 0
                text.out.used = 0
                data = PyUnicode_AsUTF8AndSize(new, &size)
                text.literal(data, size)
            data, size = text.out.data + begin, text.out.used - begin
            if fdj_need(&self.answer.bytes, size):
                raise MemoryError
            if self.premises.tokens <= tokens and not self.kept:
                chunk = self.framed(writer, data, size, arrival, result, None, self.count + tokens)
            else:
                chunk = self.kept_with(writer, data, size, arrival, result, tokens)
            fdj_put(&self.answer.bytes, data, size)
        finally:
            writer.end()
            text.end()
        self.used, self.prefix, self.read, self.whole = count, prefix, read, whole
        self.count += tokens
        if chunk is not None:
            if self.chunk_made is None:
                _touched.append(self)
            self.chunk_made = chunk if self.chunk_made is None else self.chunk_made + chunk
        return True

    cdef bytes kept_with(self, _Writer writer, const char *data, Py_ssize_t size, double arrival,
                         const one_result *result, Py_ssize_t tokens):
        """Keep a result with those before it; their chunk if they are enough."""
        cdef bytes chunk = None
        cdef str text = self.text + PyUnicode_DecodeUTF8(data, size, NULL)
        top = None
        if self.build is not None:
            top = None if result.top == NULL else _kept_rows(result.top, result.top_size, &result.rows)
            if top is None or self.build(top) is None:
                raise Unknown("log-probabilities are missing")
            top = _with_rows(self.top, top)
        if self.kept + tokens >= self.premises.tokens:
            chunk = self.framed_text(writer, text, arrival, top, self.count + tokens)
            self.forget()
            return chunk
        if not self.kept:
            self.premises.keep(self)
        self.text, self.top, self.kept, self.arrival = text, top, self.kept + tokens, arrival
        return None

    cdef bytes framed_text(self, _Writer writer, str text, double arrival, top, long long count):
        cdef one_result none
        memset(&none, 0, sizeof(none))
        cdef bytes data = text.encode()
        return self.framed(writer, data, len(data), arrival, &none, top, count)

    cdef bytes framed(self, _Writer writer, const char *text, size_t text_size, double arrival,
                      const one_result *result, top, long long count):
        """A chunk as it is on the wire: its size, itself, and the end of a line."""
        cdef size_t begin = FRAME - 2, size
        writer.out.used = 0
        writer.literal(b"                    ", FRAME)
        self.write(writer, text, text_size, arrival, result, top, count)
        size = writer.out.used - FRAME
        writer.literal(b"\r\n", 2)
        cdef char *data = writer.out.data
        data[begin], data[begin + 1] = b"\r", b"\n"
        while size:
            begin -= 1
            data[begin] = b"0123456789abcdef"[size & 15]
            size >>= 4
        return PyBytes_FromStringAndSize(data + begin, writer.out.used - begin)

    cdef int forget(self) except -1:
        self.text, self.top, self.kept = "", None, 0
        return 0

    cpdef bint release(self) except -1:
        """Give the lane a chunk of tokens that wait for others; whether there were any."""
        global _chunks_written
        if not self.kept:
            return False
        cdef _Writer writer = _Writer.begin(self.premises.style)
        writer.unset = True
        try:
            self.pending.append(self.framed_text(writer, self.text, self.arrival, self.top,
                                                 self.count if self.is_ours else self.counts[0]))
            _chunks_written += 1
        finally:
            writer.end()
            self.forget()
        return True

    def leave(self):
        """Leave the stream to its task: all that waits is given to the lane, and the lists are up to date."""
        try:
            self.release()
        finally:
            self.give_back()

    cdef int flush(self) except -1:
        """Write a message's chunks, or leave them to those of the next one, which is here already."""
        cdef bytes chunk = self.chunk_made
        self.chunk_made = None
        if not self.premises.more and PyList_GET_SIZE(self.pending) == 0 and self.send is not None:
            self.send(chunk)
        else:
            self.pending.append(chunk)
            self.premises.requests.write(self.lane)
        return 0


cdef int _rows_in_message(PackedRows packed, one_result *result) except -1:
    """Have a result's log-probabilities be those that were kept."""
    result.top, result.top_size = packed.packed, packed.size
    result.rows.rows, result.rows.width = packed.rows, packed.width
    result.rows.ids, result.rows.scores = packed.packed + packed.ids, packed.packed + packed.scores
    result.rows.ranks = packed.packed + packed.ranks
    return 0


cdef list _with_rows(list top, more):
    """Log-probabilities with those of later tokens."""
    if type(more) is PackedRows:
        more = (<PackedRows>more).unpacked()
    return more if top is None or more is None else [one + other for one, other in zip(top, more)]


cdef dict _steady = {}    # by the id of a result
cdef SteadyStream _last = None    # whose result was read last
cdef list _touched = []   # streams with chunks that are not written
cdef unsigned long long _message = 0
cdef unsigned long long _chunks_written = 0


def set_steady(str name not None, SteadyStream stream):
    """Have a stream's chunks written from the message, or (None) no longer."""
    global _last
    if stream is not None:
        stream.id, stream.is_set = name, True
        stream.name = PyUnicode_AsUTF8AndSize(name, &stream.name_size)
        _steady[name] = stream
        return
    stream = _steady.pop(name, None)
    if stream is not None:
        stream.is_set, stream.after = False, None
        if _last is stream:
            _last = None


def steady_totals():
    """How many chunks were written from the message, and how many streams are in their steady state now."""
    return _chunks_written, len(_steady)


cdef SteadyStream _stream_of(const one_result *result):
    """The stream of a result, which mostly is the one that came behind the last one before; or None."""
    global _last
    cdef PyObject *found
    cdef SteadyStream stream = None if _last is None else _last.after
    if (stream is None or not stream.is_set or <size_t>stream.name_size != result.id_size
            or memcmp(stream.name, result.id, result.id_size)):
        found = PyDict_GetItemWithError(_steady, PyUnicode_DecodeUTF8(result.id, result.id_size, NULL))
        if found == NULL:
            return None
        stream = <SteadyStream>found
        if _last is not None:
            _last.after = stream
    _last = stream
    return stream


cdef object _unwritten(fdu_bytes *source):
    """A message's groups of results, without those that are written here.

    An `Unknown` that it raises says what FastDeploy's msgpack still has to unpack: its `rest` are the groups
    that are left before, and the places of the next group and of its first result.
    """
    global _message, _chunks_written
    cdef size_t groups, i = 0, first = 0
    cdef list made = []
    if not fdu_list(source, &groups):
        return _unpacked(source, 0, True)
    _message += 1
    try:
        for i in range(groups):
            group = _unwritten_group(source, &first)
            if group is not None:
                made.append(group)
    except Unknown as error:
        error.rest = made, i, first
        raise
    finally:
        for stream in _touched:
            _chunks_written += 1
            try:
                (<SteadyStream>stream).flush()
            except Exception as error:
                note(f"a connection is not written to: {type(error).__name__}")
        _touched.clear()
    return made


cdef object _unwritten_group(fdu_bytes *source, size_t *first):
    """The results of a group from the `first` one on that is not written here; None if all are."""
    cdef const unsigned char *begin = source.at
    cdef PyObject *found
    cdef one_result result
    cdef SteadyStream stream
    cdef size_t count, i
    cdef list left = None
    first[0] = 0
    if not fdu_list(source, &count) or count == 0:
        source.at = begin
        return _unpacked(source, 1, True)
    for i in range(count):
        begin = source.at
        if left is None:
            result.top, result.drafts = NULL, False
            if _read_result(source, &_result_rules, &result):
                stream = _stream_of(&result)
                if stream is not None and stream.takes(&result):
                    continue
            source.at = begin
            left, first[0] = [], i
        one = _unpacked(source, 2, True)
        left.append(one)
        if type(one) is dict:
            found = PyDict_GetItemWithError(_steady, one.get("request_id"))
            if found != NULL:
                (<SteadyStream>found).left = _message
    return left

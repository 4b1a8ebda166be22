# A result: the numbers of a step and its request's template, until it is read; FastDeploy's object then.
cimport cython
from cpython.dict cimport PyDict_Copy
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy
from fd_postproc._core cimport Step
from fd_postproc.headers.lists cimport int_row, owned
from fd_postproc.headers.msgpack cimport (
    fdm_array, fdm_copy, fdm_float, fdm_integer, fdm_out, fdm_put_logprobs, fdm_room, fdm_token,
)
from fd_postproc.headers.wire cimport fdw_block

cdef extern from "Python.h":
    int _set_attribute "PyObject_GenericSetAttr"(object o, object name, PyObject *value) except -1
    char *PyBytes_AS_STRING(object o) noexcept
    Py_ssize_t PyBytes_GET_SIZE(object o) noexcept

cdef enum:
    _INDEX, _SEND, _TOKENS, _LOGPROB, _TOP, _TEXT, _DRAFT, _MASK, _LATEST, _EXECUTE, _FORWARD
    _MOST_KINDS = 16

STAMPS = ("engine_recv_latest_token_time", "llm_engine_recv_latest_token_timestamp",
          "model_execute_time", "model_forward_time")
cdef dict _VARYING = {  # by the dictionary they are in
    "outputs": {"index": _INDEX, "send_idx": _SEND, "token_ids": _TOKENS, "logprob": _LOGPROB,
                "top_logprobs": _TOP, "text": _TEXT, "draft_top_logprobs": _DRAFT, "sampling_mask": _MASK},
    "metrics": dict(zip(STAMPS, (_LATEST, _LATEST, _EXECUTE, _FORWARD))),
}
cdef bytes _CUT = urandom(16)  # which no client knows, so that no text of a client's has it


cdef int _stamp(metrics, latest, execute, forward) except -1:
    """Set the stamps of an object."""
    metrics.engine_recv_latest_token_time = metrics.llm_engine_recv_latest_token_timestamp = latest
    metrics.model_execute_time, metrics.model_forward_time = execute, forward
    return 0


@cython.final
@cython.internal
cdef class Template:
    """What the results of a request have in common, as FastDeploy's object, dictionary and bytes."""

    cdef Plan plan
    cdef tuple facts    # what it was made of, besides
    cdef object req_data, metrics  # these
    cdef bint scored    # whether there are log-probabilities
    cdef object sample  # FastDeploy's RequestOutput
    cdef dict shown     # its dictionary; None: FastDeploy makes each result's
    cdef bytes packed   # that, without what varies; None: it cannot be packed
    cdef Py_ssize_t n   # of values that vary
    cdef unsigned char kinds[_MOST_KINDS]
    cdef Py_ssize_t ends[_MOST_KINDS + 1]  # of the bytes before each of them, and of all

    @staticmethod
    cdef Template of(Plan plan, tuple facts, sample, bint scored):
        cdef Template self = Template.__new__(Template)
        self.plan, self.facts, self.sample, self.scored = plan, facts, sample, scored
        self.req_data, self.metrics = sample.ic_req_data, sample.metrics
        try:
            if plan.shows_as_known():
                self._cut(sample.to_dict())
        except Exception:  # showing or packing a result raises the same
            pass
        return self

    cdef int _cut(self, dict shown) except -1:
        cdef dict marked = dict(shown)
        cdef list kinds = []
        for name in [name for name in shown if name in _VARYING]:
            values = marked[name] = dict(shown[name])
            for key in [key for key in values if key in _VARYING[name]]:
                values[key] = Raw(_CUT)
                kinds.append(_VARYING[name][key])
        if all([type(one) in (float, int, str, bool, type(None)) for one in shown["metrics"].values()]):
            self.shown = shown  # of other values FastDeploy makes copies
        cdef list parts = encode(marked).split(_CUT)
        cdef Py_ssize_t i, end = 0
        if not len(parts) == len(kinds) + 1 <= _MOST_KINDS:
            return 0
        self.n = len(kinds)
        for i in range(self.n + 1):
            end += len(parts[i])
            self.ends[i] = end
            if i < self.n:
                self.kinds[i] = kinds[i]
        self.packed = b"".join(parts)
        return 0


cdef class Result:
    """A result: numbers until other code reads it, then all that FastDeploy's object is.

    It is a base of `Plan.result`, before FastDeploy's RequestOutput.  Two attributes are always here.  As
    soon as another one is read, set or deleted, FastDeploy's classes make all of them, once, and the numbers
    count no more.  Where the output alone is read, it alone is made: FastDeploy's loops read no more.

    Attributes
    ----------
    request_id : str
    finished : bool
    raw : RequestOutput
        Itself: a result is its own ScheduledResponse.
    """

    cdef public object request_id, finished
    cdef Template template   # None: the attributes count
    cdef object draft, mask  # draft log-probabilities and sampling mask, as lists
    cdef bint has_output     # whether the output is an attribute already
    cdef bint has_text       # "", which the sender's thread gives to what has tokens
    cdef int32_t index       # its slot
    cdef int64_t sent        # tokens of the request before these
    cdef double latest       # when its last token came, s
    cdef double execute      # s from its arrival until then
    cdef double forward      # s from the start of its inference until then
    cdef int32_t rows, cols
    cdef int32_t *ids        # a copy: a result that waits long must not keep its whole step

    def __dealloc__(self):
        PyMem_Free(self.ids)

    @property
    def raw(self):
        return self

    # ---- numbers

    cdef bint is_unread(self) noexcept:
        """Whether it is numbers, and no object has been made of them."""
        return self.template is not None and not self.has_output

    cdef int take_room(self, Py_ssize_t rows, Py_ssize_t cols) except -1:
        cdef Py_ssize_t cells = rows * cols
        self.rows, self.cols = <int32_t>rows, <int32_t>cols
        self.ids = <int32_t *>PyMem_Malloc((2 * cells + rows if self.template.scored else rows) * 4)
        if self.ids == NULL:
            raise MemoryError
        return 0

    cdef inline float *scores(self) noexcept:
        return <float *>(self.ids + <Py_ssize_t>self.rows * self.cols)

    cdef inline int32_t *ranks(self) noexcept:
        return self.ids + 2 * <Py_ssize_t>self.rows * self.cols

    cdef int copy(self, Step step, Py_ssize_t slot, Py_ssize_t rows) except -1:
        """Copy the first `rows` rows of a slot."""
        cdef fdw_block *b = &step.raw.block
        cdef Py_ssize_t cols = step.raw.cols, first = b.offsets[slot], cells = rows * cols, j
        if not self.template.scored:
            self.take_room(rows, 1)
            for j in range(rows):
                self.ids[j] = b.ids[(first + j) * cols]
            return 0
        self.take_room(rows, cols)
        memcpy(self.ids, b.ids + first * cols, cells * sizeof(int32_t))
        memcpy(self.scores(), b.scores + first * cols, cells * sizeof(float))
        memcpy(self.ranks(), b.ranks + first, rows * sizeof(int32_t))
        return 0

    # ---- bytes

    cdef int put(self, fdm_out *out, encode) except -1:
        """Write it as msgpack packs its dictionary; `encode` makes the bytes of other objects."""
        cdef Template template = self.template
        cdef Py_ssize_t i, j, begin = 0
        cdef unsigned char *p
        cdef int kind
        for i in range(template.n + 1):
            fdm_copy(out, PyBytes_AS_STRING(template.packed) + begin, template.ends[i] - begin)
            if i == template.n:
                return 0
            begin, kind = template.ends[i], template.kinds[i]
            if kind == _TOP and template.scored:
                fdm_put_logprobs(out, self.ids, self.scores(), self.ranks(), self.rows, self.cols)
                continue
            if kind == _DRAFT or kind == _MASK:
                content = encode(self.draft if kind == _DRAFT else self.mask)
                fdm_copy(out, PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
                continue
            fdm_room(out, 9 + 5 * self.rows)
            p = out.at + out.n
            if kind == _TOKENS:
                p = fdm_array(p, self.rows)
                for j in range(self.rows):
                    p = fdm_token(p, self.ids[j * self.cols])
            elif kind == _INDEX:
                p = fdm_integer(p, self.index)
            elif kind == _SEND:
                p = fdm_integer(p, self.sent)
            elif kind == _LOGPROB and template.scored:
                p = fdm_float(p, self.scores()[(self.rows - 1) * self.cols])
            elif kind >= _LATEST:
                p = fdm_float(p, self.latest if kind == _LATEST
                              else self.execute if kind == _EXECUTE else self.forward)
            else:  # None, or the empty text
                p[0] = 0xa0 if kind == _TEXT and self.has_text else 0xc0
                p += 1
            out.n = p - out.at
        return 0

    # ---- FastDeploy's object

    cdef object _output(self, Template template):
        cdef Plan plan = template.plan
        output = plan.outputs(index=self.index, send_idx=self.sent, draft_token_ids=[],
                              token_ids=owned(int_row(self.ids, self.cols, self.rows)))
        if self.has_text:
            output.text = ""
        if self.draft is not None:
            output.draft_top_logprobs = self.draft
        if self.mask is not None:
            output.sampling_mask = self.mask
        if template.scored:
            output.top_logprobs = plan.lists_of(self.ids, self.scores(), self.ranks(), self.rows, self.cols)
            output.logprob = self.scores()[(self.rows - 1) * self.cols]
        return output

    cdef object _metrics(self, Template template):
        metrics = template.plan.copy_metrics(template.sample.metrics)
        _stamp(metrics, self.latest, self.execute, self.forward)
        return metrics

    cdef dict _filled(self):
        """The attributes besides the two that are always here."""
        cdef dict own = PyObject_GenericGetDict(self, NULL)
        cdef Template template = self.template
        if template is None:
            return own
        made = {**vars(template.sample), "prompt_token_ids": [], "metrics": self._metrics(template)}
        del made["request_id"], made["finished"]
        made["outputs"] = own["outputs"] if self.has_output else self._output(template)
        own.update(made)
        self.template = None
        return own

    def __setattr__(self, name, value):
        if self.template is not None:
            self._filled()
        _set_attribute(self, name, <PyObject *>value)

    def __delattr__(self, name):
        self._filled()
        _set_attribute(self, name, NULL)

    def __reduce__(self):
        """Pickle and copy as an instance of FastDeploy's class; the peer may not have ours."""
        return object.__new__, (self.stock,), vars(self)

    def __repr__(self):
        """The id: FastDeploy formats each result up to four times a step, for lines that are not shown."""
        return "RequestOutput(request_id=" + str(self.request_id) + ", ...)"

    def to_dict(self):
        """FastDeploy's dictionary, of its template and the values that differ from it."""
        cdef Template template = self.template
        if template is None or template.shown is None or not template.plan.shows_as_known():
            self._filled()
            return self.stock.to_dict(self)
        cdef dict made = PyDict_Copy(template.shown), metrics = PyDict_Copy(made["metrics"])
        for name, stamp in zip(STAMPS, (self.latest, self.latest, self.execute, self.forward)):
            if name in metrics:
                metrics[name] = stamp
        made["outputs"], made["metrics"], made["prompt_token_ids"] = self.outputs.to_dict(), metrics, []
        return made


cdef Result _numbers(Template template):
    """A result that is still without its numbers."""
    cdef Result made = (<PyTypeObject *>template.plan.result).tp_new(
        template.plan.result, <PyObject *>_no_arguments, NULL)
    made.template = template
    return made


cdef tuple _no_arguments = ()


def pair(list results not None, dict rows_of not None):
    """Give results their draft log-probabilities, by request and slot."""
    cdef Result result
    for one in results:
        result = one if isinstance(one, Result) and (<Result>one).is_unread() else None
        # FastDeploy's tests give stand-ins for outputs, without a slot: the request alone decides then.
        slot = getattr(one.outputs, "index", None) if result is None else result.index
        rows = rows_of.get((one.request_id, slot))
        if result is None:
            one.outputs.draft_top_logprobs = rows
        else:
            result.draft = rows


def attribute_of(Result result not None, str name):
    """``__getattr__`` of results: what is not there yet is made."""
    cdef dict own
    cdef Template template = result.template
    if template is not None:
        if name == "outputs":
            own = PyObject_GenericGetDict(result, NULL)
            own[name] = output = result._output(template)
            result.has_output = True
            return output
        own = result._filled()
        if name in own:
            return own[name]
    raise AttributeError(f"{type(result).__name__!r} object has no attribute {name!r}")


def attributes_of(Result result not None, names):
    """``__dict__`` of results: a copy of what FastDeploy's object has, in the order of these names."""
    own = {"request_id": result.request_id, "finished": result.finished, **result._filled()}
    return {**{name: own[name] for name in names if name in own}, **own}

# The stream interval: results that wait for later ones of their request, and leave as one.
cimport cython
from cpython.object cimport PyObject
from libc.string cimport memcpy

cdef frozenset _MAY_DIFFER = frozenset((
    "request_id", "output_type", "outputs", "metrics", "num_cached_tokens", "num_input_image_tokens",
    "num_input_video_tokens", "ic_req_data", "prompt_token_ids_len", "trace_carrier", "index", "send_idx",
    "token_ids", "logprob", "top_logprobs", "draft_top_logprobs", "sampling_mask"))
cdef tuple _ROWS = ("top_logprobs", "draft_top_logprobs", "sampling_mask")


@cython.final
@cython.internal
cdef class _Held:
    """Results of a request that wait, and since when."""

    cdef list results
    cdef Py_ssize_t tokens
    cdef double since


@cython.final
@cython.internal
cdef class Interval:
    """Rule of which results of a request wait; all but `joined` is under the scheduler's mutex.

    The first result of a request, its end and what cannot be joined leave at once, with those that waited
    before them.  The others wait until there are `tokens` of them, or the first has waited for `seconds`.
    Results wait and are joined only for API processes that have said that they take joined results.
    """

    cdef Plan plan
    cdef object usual  # a result to compare with; the plan's own has its list made only in copies
    cdef Py_ssize_t tokens
    cdef double seconds
    cdef set begun   # requests that have had a result
    cdef dict held   # _Held by request, in the order of `since`
    cdef dict processes     # of the API server by request: FastDeploy's own table
    cdef frozenset readers  # those of them that take joined results
    cdef object failure  # what `joined` met last, where it left results as they are

    def __init__(self, Plan plan not None, Py_ssize_t tokens, double seconds):
        self.plan, self.tokens, self.seconds, self.begun, self.held = plan, tokens, seconds, set(), {}
        self.processes, self.readers = {}, frozenset()
        self.usual = plan.results.of(plan.result)

    cdef bint holds(self, name, PyObject *result, double now, bint leaves) except -1:
        """Hold a result back; False if it leaves now, as others of its request do if `leaves`."""
        cdef _Held held = _dict_get(self.held, name)
        if <object>at_offset(result, self.plan.r_finished)[0] is True:
            self.begun.discard(name)
            return False
        if name not in self.begun or self._is_first(result):
            self.begun.add(name)
            return False
        cdef Py_ssize_t more = 0 if leaves or not self.joins(name) else self._tokens_of(result)
        if more == 0 or more + (0 if held is None else held.tokens) >= self.tokens:
            return False
        if held is None:
            held = self.held[name] = _Held.__new__(_Held)
            held.results, held.since = [], now
        held.results.append(<object>result)
        held.tokens += more
        return True

    cdef bint joins(self, name) except -1:
        """Whether the API process of a request has said that it takes joined results."""
        return self.processes.get(name) in self.readers

    cdef bint _is_first(self, PyObject *result) except -1:
        """Whether a result is an answer's first: after an abort an id may come again."""
        output = self._output_of(result)
        if type(output) is Accepted:
            return (<Accepted>output).sent == 0
        return getattr(output, "send_idx", None) == 0

    cdef object _output_of(self, PyObject *result):
        """What a result has for an output; None without one."""
        cdef PyObject *output = at_offset(result, self.plan.r_outputs)[0]
        return None if output == NULL else <object>output

    cdef list waiting(self, name):
        """The results of a request that wait; they do until `let_go`."""
        cdef _Held held = _dict_get(self.held, name)
        return [] if held is None else held.results

    cdef int let_go(self, name) except -1:
        """Forget the results of a request that waited: they are in the scheduler's table."""
        self.held.pop(name, None)
        return 0

    cdef double due(self) except? -1:
        """When the next results have waited for long enough."""
        for held in self.held.values():
            return (<_Held>held).since + self.seconds
        return float("inf")

    cdef bint release(self, dict responses, double now) except -1:
        """Put what has waited for long enough into the scheduler's table, in front of what came after it."""
        cdef bint leaves = False
        while self.held and self.due() <= now:
            name = next(iter(self.held))
            responses[name] = [*self.waiting(name), *responses.get(name, ())]
            self.let_go(name)
            leaves = True
        return leaves

    cdef int rejoin(self, dict responses) except -1:
        """Put what waited in front of results that came past it, from FastDeploy's other threads."""
        for name in [name for name in responses if name in self.held] if self.held else ():
            responses[name] = [*self.waiting(name), *responses[name]]
            self.let_go(name)
        return 0

    cdef int forget(self, dict known) except -1:
        """Forget requests that ended in other ways, once there are more than the scheduler has."""
        if len(self.begun) > len(known):
            self.begun.intersection_update(known)
        return 0

    cdef Py_ssize_t _tokens_of(self, PyObject *result) except -1:
        """The number of a result's tokens; 0 if there are none, or it cannot be joined with others."""
        cdef Plan plan = self.plan
        one = self._output_of(result)
        if not _is_usual(plan, result) or at_offset(result, plan.r_finished)[0] == <PyObject *>True:
            return 0
        if type(one) is Accepted:
            return (<Accepted>one).rows
        if (type(getattr(one, "sampling_mask", None)) not in (list, type(None))
                or not _differ_as_allowed(plan.results, <object>result, self.usual)
                or not _differ_as_allowed(plan.outputs, one, plan.accepted.pattern)):
            return 0
        return len(one.token_ids)

    cdef list joined(self, list results):
        """The results of a request, with those next to each other joined that can be."""
        cdef list made = [], run = []
        before = None
        for result in results:
            try:
                kind = self._kind_of(result)
            except Exception as error:
                kind, self.failure = None, error
            if run and (kind is None or kind != before):
                self._join(run, made)
                run = []
            run.append(result)
            before = kind
        self._join(run, made)
        return made

    cdef int _join(self, list run, list made) except -1:
        """Append one result of several; the several, unchanged, if that fails."""
        try:
            made.append(self._one_of(run))
        except Exception as error:
            made.extend(run)
            self.failure = error
        return 0

    cdef object _kind_of(self, result):
        """What results have in common that can be one; None if it stays alone."""
        if (Py_TYPE(result) != <PyTypeObject *>self.plan.results.cls
                or not self._tokens_of(<PyObject *>result)):
            return None
        output = self._output_of(<PyObject *>result)
        if type(output) is Accepted:
            return result.output_type, (<Accepted>output).cols, (<Accepted>output).scores != NULL
        return result.output_type, *[getattr(output, name, None) is None for name in _ROWS]

    cdef object _one_of(self, list results):
        """One result of several of a kind: the last one, with the tokens of all."""
        cdef Py_ssize_t at = self.plan.r_outputs
        last = results[len(results) - 1]
        if len(results) == 1:
            return last
        cdef list parts = [self._output_of(<PyObject *>one) for one in results]
        if type(parts[0]) is Accepted:
            put(<PyObject *>last, at, _joined_rows(parts))
            return last
        values_of = {"send_idx": parts[0].send_idx,
                     "token_ids": [token for part in parts for token in part.token_ids]}
        for name in _ROWS:
            values = [getattr(part, name, None) for part in parts]
            if values[0] is not None and name == "sampling_mask":
                # Without speculation a step's mask lies there by itself.
                values = [mask if mask and type(mask[0]) is list else [mask] for mask in values]
                values_of[name] = [mask for value in values for mask in value]
            elif values[0] is not None:
                values_of[name] = self.plan.lists(
                    *[[row for part in column for row in part] for column in zip(*values)])
        made = last.outputs
        for name, value in values_of.items():  # once nothing can fail any more
            setattr(made, name, value)
        return last


cdef bint _differ_as_allowed(FieldCopier fields, one, pattern) except -1:
    """Whether an object has a new one's values where results that can be joined have."""
    for name in fields.names:
        if name not in _MAY_DIFFER:
            value, usual = getattr(one, name, None), getattr(pattern, name, None)
            if value is not usual and (type(value) not in (int, str, float, list) or value != usual):
                return False
    return True


cdef Accepted _joined_rows(list parts):
    """What a request has accepted in several steps."""
    cdef Accepted part, first = parts[0], made = Accepted.__new__(Accepted)
    cdef Py_ssize_t rows = 0, cols = first.cols
    for one in parts:
        part = one if type(one) is Accepted else None
        if part is None or part.cols != cols or (part.scores != NULL) != (first.scores != NULL):
            raise ValueError("a result has changed while it was joined with others")
        rows += part.rows
    made.outputs, made.sent, made.index = first.outputs, first.sent, first.index
    made.take_room(rows, cols, first.scores != NULL)
    rows = 0
    for part in parts:
        memcpy(made.ids + rows * cols, part.ids, part.rows * cols * sizeof(int32_t))
        if first.scores != NULL:
            memcpy(made.scores + rows * cols, part.scores, part.rows * cols * sizeof(float))
            memcpy(made.ranks + rows, part.ranks, part.rows * sizeof(int32_t))
        rows += part.rows
    return made

# The stream interval: results that wait for later ones of their request, and leave as one.
cimport cython
from libc.string cimport memcpy


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

    The first result of a request, its end and what is not numbers any more leave at once, with those that
    waited before them.  The others wait until there are `tokens` of them, or the first has waited for
    `seconds`.
    Results wait and are joined only for API processes that have said that they take joined results.
    """

    cdef Plan plan
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

    cdef bint holds(self, name, Result result, double now, bint leaves) except -1:
        """Hold a result back; False if it leaves now, as others of its request do if `leaves`."""
        cdef _Held held = _dict_get(self.held, name)
        if result.finished is True:
            self.begun.discard(name)
            return False
        if name not in self.begun or self._is_first(result):
            self.begun.add(name)
            return False
        cdef Py_ssize_t more = 0 if leaves or not self.joins(name) else _tokens_of(result)
        if more == 0 or more + (0 if held is None else held.tokens) >= self.tokens:
            return False
        if held is None:
            held = self.held[name] = _Held.__new__(_Held)
            held.results, held.since = [], now
        held.results.append(result)
        held.tokens += more
        return True

    cdef bint joins(self, name) except -1:
        """Whether the API process of a request has said that it takes joined results."""
        return self.processes.get(name) in self.readers

    cdef bint _is_first(self, Result result) except -1:
        """Whether a result is an answer's first: after an abort an id may come again."""
        return (result.sent if result.is_unread() else getattr(result.outputs, "send_idx", None)) == 0

    cdef int put_before(self, list later, name, dict responses) except -1:
        """Put the results of a request that wait into the scheduler's table, in front of later ones."""
        cdef _Held held = _dict_get(self.held, name)
        responses[name] = later if held is None else [*held.results, *later]
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
            self.put_before(list(responses.get(name, ())), name, responses)
            leaves = True
        return leaves

    cdef int rejoin(self, dict responses) except -1:
        """Put what waited in front of results that came past it, from FastDeploy's other threads."""
        for name in [name for name in responses if name in self.held] if self.held else ():
            self.put_before(list(responses[name]), name, responses)
        return 0

    cdef int forget(self, dict known) except -1:
        """Forget requests that ended in other ways, once there are more than the scheduler has."""
        if len(self.begun) > len(known):
            self.begun.intersection_update(known)
        return 0

    cdef list joined(self, list results):
        """The results of a request, with those next to each other joined that can be."""
        cdef list made = [], run = []
        for result in results:
            if run and not self._go_together(run[0], result):
                self._join(run, made)
                run = []
            run.append(result)
        self._join(run, made)
        return made

    cdef bint _go_together(self, one, other) except -1:
        if not _tokens_of(one) or not _tokens_of(other):
            return False
        cdef Result first = one, second = other
        return (first.cols == second.cols and first.template.scored == second.template.scored
                and _are_joined_so(first.draft, second.draft, tuple)
                and _are_joined_so(first.mask, second.mask, list)
                and first.template.sample.output_type == second.template.sample.output_type)

    cdef int _join(self, list run, list made) except -1:
        """Append one result of several; the several, unchanged, if that fails."""
        try:
            made.append(run[0] if len(run) == 1 else _joined(run))
        except Exception as error:
            made.extend(run)
            self.failure = error
        return 0


cdef bint _are_joined_so(one, other, kind) except -1:
    """Whether two results have neither, or lists that can follow each other."""
    return one is other is None or (isinstance(one, kind) and isinstance(other, kind))


cdef Py_ssize_t _tokens_of(one) except -1:
    """The number of a result's tokens; 0 if it cannot be joined with others."""
    return (<Result>one).rows if isinstance(one, Result) and (<Result>one).is_unread() else 0


cdef Result _joined(list results):
    """One result of several that go together: the last one, with the tokens of all."""
    cdef Result one, first = results[0], last = results[len(results) - 1]
    cdef Template template = last.template
    cdef Py_ssize_t rows = 0, cols = first.cols
    for one in results:
        rows += one.rows
    if template is None:
        raise ValueError("a result was looked at while it was joined with others")
    cdef Result made = _numbers(template)
    made.request_id, made.finished = last.request_id, last.finished
    made.latest, made.execute, made.forward = last.latest, last.execute, last.forward
    made.index, made.sent = last.index, first.sent
    made.take_room(rows, cols)
    rows = 0
    for one in results:
        memcpy(made.ids + rows * cols, one.ids, one.rows * cols * sizeof(int32_t))
        if template.scored:
            memcpy(made.scores() + rows * cols, one.scores(), one.rows * cols * sizeof(float))
            memcpy(made.ranks() + rows, one.ranks(), one.rows * sizeof(int32_t))
        rows += one.rows
    if first.draft is not None:
        drafts = [(<Result>part).draft for part in results]
        made.draft = template.plan.lists(
            *[[row for part in column for row in part] for column in zip(*drafts)])
    if first.mask is not None:  # without speculation a step's mask lies there by itself
        masks = [(<Result>part).mask for part in results]
        made.mask = [mask for some in masks
                     for mask in (some if some and type(some[0]) is list else [some])]
    return made

# Results handed over by the token thread, in FastDeploy's scheduler, to the thread that sends them.
cimport cython
from cpython.list cimport PyList_CheckExact, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact


cdef double POLL = 0.01
"""Seconds from one look to the next, while others wake the sender of results for nothing."""


class HalfPut(Exception):
    """Raised when a put failed; `rest` are the results that are not in the scheduler's tables.

    The cause is what was raised.
    """

    def __init__(self, rest):
        super().__init__(len(rest))
        self.rest = rest


@cython.final
cdef class Handover:
    """Fast path into a scheduler of FastDeploy's and out of it, for the results of a step.

    The tables are the scheduler's own.  Results of ours lie in them as they are: they have the attributes of
    a response.  FastDeploy's methods format debug lines of each result, and look up each id four times: in a
    running engine that took longer than making the results did.  They are called for the results of requests
    that end, in an empty scheduler of the same class, for what they log and recycle.

    `delivery.Delivery` makes one of these only for a scheduler on which both have been seen to do the same.

    Parameters
    ----------
    scheduler : object
    put_results, get_results : function
        FastDeploy's, of its class.
    log : logging.Logger
        Where they write debug lines.
    result : type
        Our subclass of RequestOutput.
    """

    cdef readonly object scheduler, put_results, get_results, log
    cdef object empty
    cdef object steps_not_empty  # woken by what is put here alone
    cdef Interval interval  # None: every result leaves at once
    cdef bint is_taken      # whether `take` fetches what waits
    cdef readonly object failure  # why the last `take` left results that it could not join; None: it did not
    cdef type result

    def __init__(self, scheduler, put_results, get_results, log, type result not None):
        self.scheduler, self.put_results, self.get_results = scheduler, put_results, get_results
        self.log, self.result = log, result
        self.steps_not_empty = Condition(scheduler.mutex)
        self.empty = object.__new__(type(scheduler))
        self.empty.mutex = Lock()
        self.empty.responses_not_empty = Condition(self.empty.mutex)
        self.empty.wait_response_timeout = 0

    def hold(self, Plan plan not None, Py_ssize_t tokens, double seconds):
        """Let results wait for later ones of their request, which `take` joins; see `Interval`."""
        self.interval = Interval(plan, tokens, seconds)

    def join_for(self, dict processes not None, frozenset readers not None):
        """Let results wait for the `readers` among the API processes that `processes` has by request."""
        if self.interval is not None:
            self.interval.processes, self.interval.readers = processes, readers

    def release(self):
        """Stop holding results back, and wake the sender."""
        with self.scheduler.mutex:
            self.is_taken = False
            if self.interval is not None and self.interval.release(self.scheduler.responses, float("inf")):
                self._notify()

    def put(self, list results not None):
        """Put the results of a step; False, with nothing changed, if the scheduler must.

        Raises
        ------
        HalfPut
            With the results that the scheduler has to put in its own way.
        """
        cdef Py_ssize_t placed = 0
        try:
            return self._put(results, &placed)
        except Exception as error:
            raise HalfPut(results[placed:]) from error

    def take(self):
        """Wait for results: lists by request, maybe none; None if the scheduler must.

        On a decode node FastDeploy puts an empty list into the scheduler every millisecond, which wakes who
        waits there.  So after one wake for nothing the sender waits for what is put here, and looks every
        `POLL` seconds for what others have put.

        If it raises, everything is still in the scheduler's tables, or waits for the interval.
        """
        if not self._is_stock("get_results", self.get_results):
            if self.is_taken:
                self.release()
            return None
        scheduler = self.scheduler
        timeout, begin = scheduler.wait_response_timeout, monotonic()
        looks = 0

        def look():
            nonlocal looks
            looks += 1
            return self._look() or looks > 1  # True: woken for nothing, or too late

        with scheduler.responses_not_empty:
            self.is_taken = self.interval is not None
            responses = scheduler.responses_not_empty.wait_for(look, min(timeout, self._due() - begin))
            while responses is True and (now := monotonic()) < begin + timeout:
                self.steps_not_empty.wait(min(begin + timeout, self._due(), now + POLL) - now)
                responses = self._look() or True
            if responses is True or not responses:
                return {}
            try:
                taken_out = self._by_request(responses)
            except BaseException:
                self._prepend(responses)
                raise
        if self.interval is not None:
            self.interval.failure = None
            for name, waiting in taken_out.items():
                if len(waiting) > 1 and self.interval.joins(name):
                    taken_out[name] = self.interval.joined(waiting)
            self.failure = self.interval.failure
        return taken_out

    cdef int _prepend(self, dict responses) except -1:
        """Put lists into the scheduler's table, in front of what is there."""
        table = self.scheduler.responses
        table.update({name: [*waiting, *table.get(name, ())] for name, waiting in responses.items()})
        self._notify()
        return 0

    cdef object _look(self):
        """Take responses out of the table; None if none are there."""
        scheduler = self.scheduler
        if self.interval is not None:
            self.interval.rejoin(scheduler.responses)
            self.interval.release(scheduler.responses, monotonic())
        responses = scheduler.responses
        scheduler.responses, scheduler.batch_responses_per_step = {}, []
        return responses or None

    cdef double _due(self) except? -1:
        """When to look again, even if nothing is put."""
        return float("inf") if self.interval is None else self.interval.due()

    cdef int _notify(self) except -1:
        """Wake the threads that wait for responses."""
        self.scheduler.responses_not_empty.notify_all()
        self.steps_not_empty.notify_all()
        return 0

    cdef bint _is_stock(self, name, stock) except -1:
        """Whether the scheduler's method is FastDeploy's, and its debug lines are not shown."""
        method = getattr(self.scheduler, name)
        return (type(method) is MethodType and method.__func__ is stock
                and not self.log.isEnabledFor(10))

    cdef bint _put(self, list results, Py_ssize_t *placed) except -1:
        """Put results into the tables; `placed` counts those that are there."""
        cdef Interval interval = self.interval if self.is_taken else None
        cdef list ended = []
        cdef dict known
        if not self._is_stock("put_results", self.put_results):
            return False
        for result in results:
            if type(result) is not self.result:
                return False
            name, finished = (<Result>result).request_id, (<Result>result).finished
            if not PyUnicode_CheckExact(name) or (finished is not False and finished is not True):
                return False
            if finished is True:
                ended.append(result)
        scheduler = self.scheduler
        with scheduler.mutex:
            known = scheduler.requests
            for result in results:
                if PyDict_GetItemWithError(known, (<Result>result).request_id) == NULL:
                    return False  # an expired one: its warning is FastDeploy's
            if ended:
                self._let_empty_hold({})
                self.put_results(self.empty, ended)
            wakes = True  # also if something raises
            try:
                wakes = self._place(results, interval, scheduler.responses, placed)
            finally:
                there = results if placed[0] == PyList_GET_SIZE(results) else results[:placed[0]]
                scheduler.batch_responses_per_step.append(there)
                if wakes:
                    self._notify()
        return True

    cdef bint _place(self, list results, Interval interval, dict table, Py_ssize_t *placed) except -1:
        """Put checked results into the table, or let them wait; whether the sender has to look now."""
        cdef double now = 0 if interval is None else monotonic()
        cdef bint is_idle = interval is not None and not interval.held
        for result in results:
            name = (<Result>result).request_id
            waiting = _dict_get(table, name)
            if interval is None or not interval.holds(name, result, now, waiting is not None):
                if waiting is not None:
                    waiting.append(result)
                elif interval is None:
                    table[name] = [result]
                else:
                    interval.put_before([result], name, table)
            placed[0] += 1
        if interval is None:
            return True
        interval.forget(self.scheduler.requests)
        interval.release(table, now)
        return bool(table) or (is_idle and interval.held)  # else the sender knows when to look again

    cdef dict _by_request(self, dict responses):
        """Lists of results by request, FastDeploy's own without their wrapping.

        What can fail comes before the first request is recycled; `responses` stays as it is.
        """
        cdef bint ends, wrapped
        cdef dict made = {}
        cdef list ended = []
        for name, waiting in responses.items():
            ends, wrapped = False, not PyList_CheckExact(waiting)
            for one in waiting:
                if type(one) is self.result:
                    ends = ends or (<Result>one).finished is not False
                else:
                    wrapped, ends = True, ends or bool(one.finished)
            if ends:
                ended.append(name)
            made[name] = [one.raw for one in waiting] if wrapped else waiting
        for name in ended:
            if self.interval is not None:  # of an abort, too: the id may be used again
                self.interval.begun.discard(name)
            self._recycle(name, responses[name])
        return made

    cdef int _recycle(self, name, waiting) except -1:
        """Recycle an ended request; a failure does not lose other requests' results."""
        try:
            self._let_empty_hold({name: waiting})
            self.get_results(self.empty)
        except Exception as error:
            self.log.error(f"fd_postproc: request {name} was not recycled: {type(error).__name__}: {error}")
        return 0

    cdef int _let_empty_hold(self, responses) except -1:
        """Give the empty scheduler responses, and what it shares with the other one."""
        empty, scheduler = self.empty, self.scheduler
        empty.requests, empty._recycle = scheduler.requests, scheduler._recycle
        empty.responses, empty.batch_responses_per_step = responses, []
        return 0


def by_process(Plan plan not None, dict results not None, dict processes not None, prepare, bint is_usual):
    """Sort results by the process of the API server that gets them, where the engine makes no text.

    Parameters
    ----------
    plan : Plan
    results : dict of str to list of results
        By request.
    processes : dict of str to int
        Of requests; those that end are taken out, at last: if something raises, all are still there.
    prepare : function
        ``prepare(name, results)`` gives those that are sent, if one of them is not of ours, or has neither a
        token nor an end.
    is_usual : bool
        Whether results of ours get an empty text; else all are given to `prepare`.

    Returns
    -------
    dict of (int or None) to list of list of results
    """
    cdef bint ends
    cdef dict batches = {}
    cdef list ended = []
    for name, contents in results.items():
        ends = False
        if is_usual and _are_usual(plan, contents):
            for content in contents:
                _give_text(content)
                ends |= (<Result>content).finished is True
        else:
            contents = prepare(name, contents)
            for content in contents:
                ends |= bool(getattr(content, "finished", False))
        if not contents:
            continue
        process = processes.get(name)
        batch = batches.get(process)
        if batch is None:
            batch = batches[process] = []
        (<list>batch).append(contents)
        if ends:
            ended.append(name)
    for name in ended:
        processes.pop(name, None)
    return batches


cdef bint _are_usual(Plan plan, contents) except -1:
    """Whether every result is ours, with a token or the end of its request."""
    cdef Result result
    if not PyList_CheckExact(contents):
        return False
    for content in <list>contents:
        if type(content) is not plan.result:
            return False
        result = content
        if result.is_unread():
            continue
        output = result.outputs
        if type(output) is not plan.outputs or not PyList_CheckExact(output.token_ids):
            return False
        if result.finished is not True and (result.finished is not False or not output.token_ids):
            return False
    return True


cdef int _give_text(Result result) except -1:
    """Set the empty text of a result with tokens."""
    if result.is_unread():
        result.has_text = True
    elif result.outputs.token_ids:
        result.outputs.text = ""
    return 0

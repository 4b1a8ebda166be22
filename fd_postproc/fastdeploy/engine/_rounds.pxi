# Results on their way from FastDeploy's scheduler to its server: what the sender's thread does in a round.
cimport cython
from cpython.list cimport PyList_CheckExact, PyList_GET_SIZE
from cpython.object cimport PyObject


@cython.final
cdef class Collection:
    """What ``get_results`` of a scheduler does, for results of ours.

    FastDeploy's own method is called for each request that ends, with that request alone: what is recycled
    and logged is its business.  `deliveries.collection_of` makes one of these only for a scheduler on which
    both have been seen to do the same.

    Parameters
    ----------
    stock : function
        ``get_results`` of the scheduler's class.
    log : logging.Logger
        Where it writes debug lines.
    results : FieldCopier
        Of our subclass of RequestOutput.
    """

    cdef readonly object stock, log
    cdef type result
    cdef Py_ssize_t finished

    def __init__(self, stock, log, FieldCopier results not None):
        self.stock, self.log, self.result = stock, log, results.cls
        self.finished = field_offset(results.cls, "finished")

    def get(self, scheduler):
        """Wait for results: a dict of lists by request, maybe empty; None: the scheduler has to be asked."""
        if (getattr(scheduler.get_results, "__func__", None) is not self.stock
                or self.log.isEnabledFor(10)):  # logging.DEBUG: somebody reads the lines
            return None
        return self.fetched(scheduler)

    def fetched(self, scheduler):
        """The same of any scheduler whose tables are those of the class."""
        condition = scheduler.responses_not_empty

        def take():
            responses = scheduler.responses
            scheduler.responses, scheduler.batch_responses_per_step = {}, []
            return responses or None

        with condition:
            responses = condition.wait_for(take, scheduler.wait_response_timeout)
            return {} if responses is None else self._by_request(scheduler, responses)

    cdef dict _by_request(self, scheduler, dict responses):
        """The same dict and lists, with results in place of responses."""
        cdef list contents
        cdef Py_ssize_t i
        cdef bint ends
        for name, waiting in responses.items():
            if not PyList_CheckExact(waiting):
                waiting = responses[name] = list(waiting)
            contents, ends = waiting, False
            for response in contents:
                ends = ends or self._ends(response.raw)
            if ends:
                self._recycle(scheduler, name, contents)
            for i in range(PyList_GET_SIZE(contents)):
                contents[i] = contents[i].raw
        return responses

    cdef bint _ends(self, raw) except -1:
        if Py_TYPE(raw) != <PyTypeObject *>self.result:
            return bool(raw.finished)
        cdef PyObject *finished = at_offset(<PyObject *>raw, self.finished)[0]
        return bool(raw.finished) if finished == NULL else <object>finished is not False

    cdef int _recycle(self, scheduler, name, waiting) except -1:
        """What fails here must not take along the other requests' results, which are out of the tables."""
        try:
            self.stock(OneRequest(scheduler, {name: waiting}))
        except Exception as error:
            self.log.error(f"fd_postproc: request {name} was not recycled: {type(error).__name__}: {error}")
        return 0


class OneRequest:
    """A scheduler that holds one request's responses, for FastDeploy's ``get_results``; its lock is held."""

    def __init__(self, scheduler, responses):
        self._scheduler, self._responses = scheduler, responses

    def __getattr__(self, name):
        return getattr(self._scheduler, name)

    @property
    def responses_not_empty(self):
        return self

    def __enter__(self):
        return True

    def __exit__(self, *error):
        return None

    def wait_for(self, predicate, timeout=None):
        return self._responses, []


@cython.final
cdef class Rounds:
    """What FastDeploy's sender does with results before it sends them, where no text is made in the engine.

    Parameters
    ----------
    plan : Plan
    """

    cdef Plan plan
    cdef Py_ssize_t o_text, r_finished

    def __init__(self, Plan plan not None):
        self.plan = plan
        self.o_text = field_offset(plan.outputs.cls, "text")
        self.r_finished = field_offset(plan.results.cls, "finished")

    def batches(self, results, workers):
        """Lists of results by the process of the API server that they are for.

        Parameters
        ----------
        results : dict of str to list of results
            By request.
        workers : dict of str to int
            Processes of requests; those that end are taken out.

        Returns
        -------
        dict of (int or None) to list of list of results, or None
            None, and nothing is touched, if one of the results is none of ours, has no outputs, or neither a
            token nor an end.
        """
        if type(results) is not dict or type(workers) is not dict:
            return None
        for contents in (<dict>results).values():
            if not PyList_CheckExact(contents):
                return None
            for content in <list>contents:
                if not self._is_usual(<PyObject *>content):
                    return None
        cdef dict batches = {}
        cdef bint ends
        for name, contents in (<dict>results).items():
            ends = False
            for content in <list>contents:
                if self._give_text(<PyObject *>content):
                    ends = True
            if PyList_GET_SIZE(contents) == 0:
                continue
            worker = (<dict>workers).get(name)
            batch = batches.get(worker)
            if batch is None:
                batch = batches[worker] = []
            (<list>batch).append(contents)
            if ends:
                (<dict>workers).pop(name, None)
        return batches

    cdef bint _is_usual(self, PyObject *result) noexcept:
        cdef Plan plan = self.plan
        cdef PyObject *output
        cdef PyObject *tokens
        cdef PyObject *finished
        if Py_TYPE(<object>result) != <PyTypeObject *>plan.results.cls:
            return False
        output = at_offset(result, plan.r_outputs)[0]
        finished = at_offset(result, self.r_finished)[0]
        if finished == NULL or (<object>finished is not True and <object>finished is not False):
            return False
        if _accepted(output) != NULL:
            return True
        if output == NULL or Py_TYPE(<object>output) != <PyTypeObject *>plan.outputs.cls:
            return False
        tokens = at_offset(output, plan.o_tokens)[0]
        if tokens == NULL or not PyList_CheckExact(<object>tokens):
            return False
        return PyList_GET_SIZE(<object>tokens) > 0 or <object>finished is True

    cdef bint _give_text(self, PyObject *result) noexcept:
        """Give a result with tokens its text, which is empty; whether it is its request's last."""
        cdef PyObject *output = at_offset(result, self.plan.r_outputs)[0]
        if self.plan.accepted.give_text(result):
            return <object>at_offset(result, self.r_finished)[0] is True
        if PyList_GET_SIZE(<object>at_offset(output, self.plan.o_tokens)[0]) > 0:
            put(output, self.o_text, "")
        return <object>at_offset(result, self.r_finished)[0] is True

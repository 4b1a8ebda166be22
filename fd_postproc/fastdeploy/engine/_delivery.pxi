# Results handed to FastDeploy's scheduler, all of a step at once.
cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact


@cython.final
cdef class Delivery:
    """What ``put_results`` of a scheduler does with the results of a step.

    FastDeploy's own method wraps each result, formats debug lines of each, and looks up each id four times:
    in a running engine that took longer than making the results did.  It is called for the results that end
    their requests, beside the scheduler, for the line that it logs of them.  `deliveries.delivery_to` makes
    one of these only for a scheduler on which both have been seen to do the same.

    Parameters
    ----------
    scheduler : object
    stock : function
        ``put_results`` of its class.
    response : type
        What it wraps a result in: an object with the attributes ``raw`` and ``schedule_time``.
    log : logging.Logger
        Where it writes debug lines.
    time : function
        Its clock.
    results : FieldCopier
        Of our subclass of RequestOutput.
    """

    cdef readonly object scheduler, stock, log, time
    cdef readonly type response
    cdef type result
    cdef Py_ssize_t request_id, finished

    def __init__(self, scheduler, stock, type response not None, log, time, FieldCopier results not None):
        self.scheduler, self.stock, self.response, self.log = scheduler, stock, response, log
        self.time, self.result = time, results.cls
        self.request_id = field_offset(results.cls, "request_id")
        self.finished = field_offset(results.cls, "finished")

    def put(self, list results not None):
        """Whether the results were delivered.  If not, nothing was touched: the scheduler has to be asked."""
        scheduler = self.scheduler
        if (getattr(scheduler.put_results, "__func__", None) is not self.stock
                or self.log.isEnabledFor(10)):  # logging.DEBUG: somebody reads the lines
            return False
        return self.delivered(results)

    def delivered(self, list results not None):
        """The same without asking whose ``put_results`` the scheduler has."""
        cdef list ended = []
        for result in results:
            if not self._is_known(<PyObject *>result):
                return False
            if <object>at_offset(<PyObject *>result, self.finished)[0] is True:
                ended.append(result)
        now = self.time()
        cdef list wrapped = []
        for result in results:
            wrapped.append(self._wrapped(result, now))
        with self.scheduler.mutex:
            return self._put(results, wrapped, ended)

    cdef bint _is_known(self, PyObject *result) noexcept:
        """Whether it is one of ours, whole enough to be delivered."""
        if Py_TYPE(<object>result) != <PyTypeObject *>self.result:
            return False
        cdef PyObject *name = at_offset(result, self.request_id)[0]
        cdef PyObject *finished = at_offset(result, self.finished)[0]
        return (finished != NULL and (<object>finished is False or <object>finished is True)
                and name != NULL and PyUnicode_CheckExact(<object>name))

    cdef object _wrapped(self, result, now):
        cdef PyObject *made = (<PyTypeObject *>self.response).tp_new(
            self.response, <PyObject *>_no_arguments, NULL)
        response = _owned_object(_untrack(made))  # refers to a result, which refers to nothing
        response.raw = result
        response.schedule_time = now
        return response

    cdef bint _put(self, list results, list wrapped, list ended) except -1:
        scheduler = self.scheduler
        cdef dict known = scheduler.requests, table = scheduler.responses
        cdef list steps = scheduler.batch_responses_per_step
        cdef Py_ssize_t i, n = PyList_GET_SIZE(results)
        cdef PyObject *name
        cdef PyObject *waiting
        for i in range(n):
            name = at_offset(PyList_GET_ITEM(results, i), self.request_id)[0]
            if PyDict_GetItemWithError(known, <object>name) == NULL:
                return False  # an expired one: its warning is FastDeploy's
        if ended:
            self.stock(Beside(scheduler), ended)
        steps.append(results[:])
        for i in range(n):
            name = at_offset(PyList_GET_ITEM(results, i), self.request_id)[0]
            waiting = PyDict_GetItemWithError(table, <object>name)
            if waiting != NULL:
                (<object>waiting).append(wrapped[i])
            else:
                first = [wrapped[i]]
                _untrack(<PyObject *>first)
                table[<object>name] = first
        scheduler.responses_not_empty.notify_all()
        return True


class Beside:
    """A scheduler's requests with tables of its own, for FastDeploy's ``put_results``; the lock is held."""

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self.responses, self.batch_responses_per_step = {}, []

    def __getattr__(self, name):
        return getattr(self._scheduler, name)

    @property
    def mutex(self):
        return self

    @property
    def responses_not_empty(self):
        return self

    def __enter__(self):
        return True

    def __exit__(self, *error):
        return None

    def notify_all(self):
        pass

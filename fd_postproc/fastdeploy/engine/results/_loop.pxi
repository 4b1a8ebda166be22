# The batch loop: results of a step.
cimport cython
from cpython.dict cimport PyDict_SetItem
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_Append, PyList_CheckExact, PyList_GET_SIZE
from cpython.long cimport (
    PyLong_AsLongLong, PyLong_AsLongLongAndOverflow, PyLong_CheckExact, PyLong_FromLong,
    PyLong_FromLongLong,
)
from cpython.object cimport PyObject, PyObject_HasAttr
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t
from fd_postproc._core cimport Step
from fd_postproc.headers.wire cimport fdw_block


@cython.final
cdef class Batch:
    """Batch loop: turns one step into results.

    A request in its steady state - running, not its first token, none of its tokens ends it - is advanced
    here.

    Parameters
    ----------
    plan : Plan
    step : Step
    context : context.Context
    advance : callable
        ``advance(slot, task, code, batch)`` gives the result of every other request, or None.  What those
        before it have added to `sums` may be taken first.
    give_up : callable
        ``give_up(slot, task, error)`` gives that of a request that raised.

    Attributes
    ----------
    sums : Sums
        What FastDeploy's attributes and metrics are to get.
    failures : dict of str to Exception
        What failed first of each kind that does not disturb a request.
    """

    cdef Plan plan
    cdef readonly Step step
    cdef readonly Sums sums
    cdef readonly dict failures
    cdef readonly object output_type
    cdef readonly dict masks
    cdef object advance, give_up
    cdef object stop_flags
    cdef object tasks
    cdef object counter      # tokens_counter, a dict or Counter; None: no request is steady
    cdef object record       # FastDeploy's _record_metrics, or None: done here
    cdef object log_decoding  # gives the scheduler's log a request's tokens; None: no log, or summed up
    cdef object now
    cdef double clock
    cdef int64_t least_count
    cdef bint in_pairs       # a decode instance: its requests were prefilled elsewhere
    cdef tuple dropped       # sets of request ids whose tokens a decode instance drops
    cdef dict steps_of       # acceptance tables; None without speculation
    cdef dict heads_of
    cdef list templates      # by slot, of its request's results
    cdef Py_ssize_t most_heads
    cdef bint streamed       # the step came over ZeroMQ

    def __init__(self, Plan plan not None, Step step not None, context, advance, give_up):
        self.plan, self.step, self.advance, self.give_up = plan, step, advance, give_up
        self.sums, self.failures = Sums(), {}
        self.stop_flags, self.tasks = context.stop_flags, context.tasks
        self.output_type, self.masks = context.output_type, context.masks
        if context.steady is not None and plan.inline_stamps:
            try:
                self._prepare(context.steady)
            except Exception as error:
                self.counter = None
                self._failed("the fast path", error)

    cdef int _prepare(self, steady) except -1:
        """Prepare to advance requests."""
        self.now = steady.now
        self.templates = steady.templates
        self.record, self.log_decoding = steady.record, steady.log_decoding
        self.sums.decode_log = steady.decode_log
        self.in_pairs, self.dropped = steady.decode_role, steady.dropped
        self.steps_of, self.heads_of = steady.steps_of, steady.heads_of
        self.streamed = steady.streamed
        if steady.metrics is not None:
            self.sums.fuse(steady.metrics)
        if self.sums.gaps is not None:
            self.record = None
        self.least_count = 2 if self.in_pairs else 1
        self.most_heads = min(<Py_ssize_t>steady.most_heads, <Py_ssize_t>_MOST_HEADS)
        if len(self.templates) < self.step.raw.batch:
            self.templates.extend([None] * (self.step.raw.batch - len(self.templates)))
        self.clock = self.now
        counter = steady.tokens_counter
        self.counter = counter if type(counter) in (dict, Counter) else None
        return 0

    cdef int _failed(self, str what, error) except -1:
        if what not in self.failures:
            self.failures[what] = error
        return 0

    def results(self):
        """Make the results, in slot order; a request that fails does not disturb the others."""
        cdef list results = []
        cdef Py_ssize_t i
        cdef Step step = self.step
        for i in range(step.raw.batch):
            try:
                # Other threads change both lists at any time: look once, then keep the task.
                if self.stop_flags[i]:
                    self._let_go(i)
                    continue
                task = self.tasks[i]
                if task is None:
                    self._let_go(i)
                    continue
            except IndexError:
                continue
            try:
                result = self._steady(i, task)
                if result is None:
                    result = self.advance(i, task, step.raw.block.counts[i], self)
            except Exception as error:
                try:
                    result = self.give_up(i, task, error)
                except Exception as failure:
                    result = None
                    self._failed("ending a request that failed", failure)
            if result is not None:
                results.append(result)
        if self.templates is not None:
            for i in range(step.raw.batch, PyList_GET_SIZE(self.templates)):
                self._let_go(i)
        return results

    cdef void _let_go(self, Py_ssize_t i) noexcept:
        """Drop the cached data of a slot's last request."""
        if self.templates is not None and i < PyList_GET_SIZE(self.templates):
            if PyList_GET_ITEM(self.templates, i) != <PyObject *>None:
                self.templates[i] = None

    def is_crowded(self, Py_ssize_t most):
        """Whether a table of requests has more than `most` entries."""
        return (self.counter is None or len(self.counter) > most
                or (self.steps_of is not None and (len(self.steps_of) > most or len(self.heads_of) > most)))

    cdef object _steady(self, Py_ssize_t i, task):
        """The result of a request in steady state; None, without side effects, otherwise."""
        cdef Plan plan = self.plan
        cdef fdw_block *b = &self.step.raw.block
        cdef int32_t count = b.counts[i]
        if self.counter is None or count <= 0 or type(task) is not plan.request:
            return None
        cdef dict own = PyObject_GenericGetDict(task, NULL)
        name = _dict_get(own, "request_id")
        if not PyUnicode_CheckExact(name):
            return None
        sent = _dict_get(self.counter, name)
        if not PyLong_CheckExact(sent):
            return None
        cdef int64_t before = PyLong_AsLongLong(sent)
        stamps, tokens_so_far = _dict_get(own, "metrics"), _dict_get(own, "output_token_ids")
        last = _dict_get(own, "last_token_time")
        if (before < self.least_count or not PyList_CheckExact(tokens_so_far)
                or type(stamps) is not plan.metrics
                or (not self.in_pairs
                    and PyDict_GetItemWithError(own, "disaggregate_info") != <PyObject *>None)
                or (last is not None and not PyFloat_CheckExact(last))
                or not (self._is_plain_streamed(own) if self.streamed else self._is_plain(own))):
            return None
        # Read here: what runs from now on, a collection's code among it, may change the request's metrics.
        arrival = getattr(stamps, "arrival_time", None)
        start = getattr(stamps, "inference_start_time", None)
        if (not PyFloat_CheckExact(arrival) or not PyFloat_CheckExact(start)
                or PyFloat_AS_DOUBLE(start) == 0.0):  # FastDeploy takes that for none
            return None
        for ids in self.dropped:
            if name in ids:
                return None
        cdef Py_ssize_t first = b.offsets[i], j
        if not _none_ends(b.ids + first * self.step.raw.cols, self.step.raw.cols, count,
                          PyDict_GetItemWithError(own, "eos_token_ids")):
            return None

        # Decided: from here on the request changes.
        if self.steps_of is not None:
            self._count_accepted(name, count)
        if self.sums.decode_log is not None:
            self.sums.decoded += count if _decodes(own) else 0
        elif self.log_decoding is not None:
            self._log_decoding(task, count)
        if (plan.running_prefill is not None and not self.streamed
                and _dict_get(own, "status") is plan.running_prefill):
            PyDict_SetItem(own, "status", plan.running_decode)
        cdef double execute = self.clock - PyFloat_AS_DOUBLE(arrival)
        cdef double forward = self.clock - PyFloat_AS_DOUBLE(start)
        _stamp(stamps, self.now, execute, forward)
        cdef Result result = _numbers(self._template(i, own, name, stamps))
        result.request_id, result.finished = name, False
        result.latest, result.execute, result.forward = self.clock, execute, forward
        result.index, result.sent = <int32_t>i, before
        result.copy(self.step, i, count)
        if self.masks and i in self.masks:
            result.mask = self.masks[i]
        self._record(task, own, last, i)
        for j in range(count):
            PyList_Append(tokens_so_far, PyLong_FromLong(b.ids[(first + j) * self.step.raw.cols]))
        PyDict_SetItem(self.counter, name, PyLong_FromLongLong(before + count))
        self.sums.steps += 1
        self.sums.n_tokens += count
        return result

    cdef bint _is_plain(self, dict own) except -1:
        """Whether a request has no feature that needs work at every step."""
        inputs = _dict_get(own, "multimodal_inputs")
        if ((inputs is not None and type(inputs) is not dict)
                or PyDict_GetItemWithError(own, "prefill_chunk_info") != NULL):
            return False
        settings = _dict_get(own, "sampling_params")
        return settings is None or not PyObject_HasAttr(settings, "prefill_chunk_info")

    cdef bint _is_plain_streamed(self, dict own) except -1:
        """Whether that holds over ZeroMQ, where images and chunks matter with the first token only."""
        if PyDict_GetItemWithError(own, "pooling_params") != <PyObject *>None:
            return False
        pair = _dict_get(own, "disaggregate_info")
        return pair is None or (type(pair) is dict and _dict_get(pair, "role") != "prefill")

    cdef int _count_accepted(self, name, int32_t count) except -1:
        """Count as _record_speculative_decoding_accept_num_per_request, above 0."""
        cdef Py_ssize_t head
        cdef list heads
        if count > self.most_heads:
            raise ValueError(f"{count} accepted tokens, at most {self.most_heads} are possible")
        steps = _dict_get(self.steps_of, name)
        PyDict_SetItem(self.steps_of, name, 1 if steps is None else _one_more(steps))
        table = _dict_get(self.heads_of, name)
        if table is None:
            table = [0] * self.most_heads
            PyDict_SetItem(self.heads_of, name, table)
        heads = table
        for head in range(count):
            heads[head] = _one_more(heads[head])
            self.sums.heads[head] += 1
        if count > self.sums.n_heads:
            self.sums.n_heads = count
        return 0

    cdef int _log_decoding(self, task, int32_t count) except -1:
        try:
            self.log_decoding(task, count)
        except Exception as error:
            self._failed("the scheduler's log", error)
        return 0

    cdef Template _template(self, Py_ssize_t i, dict own, name, stamps):
        """What a request's results have in common: the slot's template, if nothing of it has changed."""
        cdef Plan plan = self.plan
        cdef bint scored = self.step.raw.block.scores != NULL
        req_data, length = _dict_get(own, "ic_req_data"), _dict_get(own, "prompt_token_ids_len")
        cached, images, videos = _dict_get(own, "num_cached_tokens"), 0, 0
        inputs = None if self.streamed else _dict_get(own, "multimodal_inputs")
        if inputs is not None:
            images, videos = inputs.get("num_input_image_tokens", 0), inputs.get("num_input_video_tokens", 0)
        cdef tuple facts = (name, length, cached, images, videos, self.output_type, scored)
        before = self.templates[i]
        if (type(before) is Template and (<Template>before).facts == facts
                and (<Template>before).req_data is req_data
                and plan.are_alike(stamps, (<Template>before).metrics)):
            return before
        sample = plan.ordinary(plan.stock, i, 0, name, self.output_type, plan.copy_metrics(stamps))
        sample.ic_req_data = req_data
        if self.streamed:
            sample.trace_carrier = plan.carrier
        else:
            sample.prompt_token_ids_len, sample.num_cached_tokens = length, cached
            sample.num_input_image_tokens, sample.num_input_video_tokens = images, videos
        made = self.templates[i] = Template.of(plan, facts, sample, scored)
        return made

    cdef int _record(self, task, dict own, last, Py_ssize_t i) except -1:
        """Record as _record_metrics does; metric updates are summed up."""
        if self.record is not None:
            try:
                self.record(task, self.now, self.step.token_ids(i))
            except Exception as error:
                self._failed("metrics of a step", error)
            return 0
        if last is not None:
            self.sums.add_gap(self.clock - PyFloat_AS_DOUBLE(last))
        PyDict_SetItem(own, "last_token_time", self.now)
        return 0


def live_requests(Step step not None):
    """Number of requests of a step with an accepted token."""
    cdef Py_ssize_t i, live = 0
    for i in range(step.raw.batch):
        live += step.raw.block.counts[i] > 0
    return live


cdef bint _decodes(dict own) except -1:
    """Whether _is_decode_stage accepts a request, by its attributes."""
    needed, computed = _dict_get(own, "need_prefill_tokens"), _dict_get(own, "num_computed_tokens")
    if PyLong_CheckExact(needed) and PyLong_CheckExact(computed):
        return PyLong_AsLongLong(computed) >= PyLong_AsLongLong(needed)
    return needed is not None and computed >= needed


cdef inline object _one_more(n):
    """n + 1, for an int."""
    return PyLong_FromLongLong(PyLong_AsLongLong(n) + 1)


cdef inline object _dict_get(d, key):
    """d.get(key), without a call."""
    cdef PyObject *value = PyDict_GetItemWithError(d, key)
    return None if value == NULL else <object>value


cdef bint _none_ends(const int32_t *ids, Py_ssize_t pitch, Py_ssize_t count, PyObject *ends) except -1:
    """Whether no token is an end token; False also for values that are no small integers."""
    cdef Py_ssize_t j, k
    cdef int overflow
    cdef long long end
    if ends == NULL or not PyList_CheckExact(<object>ends):
        return False
    for k in range(PyList_GET_SIZE(<object>ends)):
        if not PyLong_CheckExact(<object>PyList_GET_ITEM(<object>ends, k)):
            return False
        end = PyLong_AsLongLongAndOverflow(<object>PyList_GET_ITEM(<object>ends, k), &overflow)
        for j in range(count):
            if ids[j * pitch] == end:
                return False
    return True

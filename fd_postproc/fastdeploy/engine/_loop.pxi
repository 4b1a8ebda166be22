# The batch loop: results of a step.
cimport cython
from cpython.dict cimport PyDict_SetItem
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_Append, PyList_CheckExact, PyList_GET_SIZE
from cpython.long cimport (
    PyLong_AsLongLong, PyLong_AsLongLongAndOverflow, PyLong_CheckExact, PyLong_FromLongLong,
)
from cpython.object cimport PyObject, PyObject_HasAttr
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset
from fd_postproc._core cimport Step
from fd_postproc.headers.lists cimport drop_reference, int_row, new_float, new_list, owned
from fd_postproc.headers.wire cimport fdw_block

# Counted in C during a step, given to FastDeploy's attributes and metrics at its end.
cdef enum:
    _MOST_BUCKETS = 64
    _MOST_HEADS = 64


@cython.final
cdef class Plan:
    """What the batch loop knows of FastDeploy's classes; made once for a class by `shapes.plan_of`.

    Parameters
    ----------
    fd : module
        With the names of ``fastdeploy.output.token_processor``.
    results, outputs, metrics : FieldCopier
        Of our subclasses of RequestOutput, CompletionOutput and RequestMetrics.
    moments : LazyMetrics
        The attribute of results that gives their metrics.
    result, output : object
        Instances whose values every new one begins with.
    inline_stamps : bool
        Whether ``RequestMetrics.record_recv_token`` sets just the four stamps that are known here.
    dicts, output_dicts : DictMaker or None
        Of the dictionaries of results and of their outputs; None: FastDeploy's ``to_dict`` makes them.
    """

    cdef readonly object fd
    cdef readonly FieldCopier results
    cdef readonly FieldCopier outputs
    cdef readonly FieldCopier metrics
    cdef readonly object result
    cdef readonly object output
    cdef readonly bint inline_stamps
    cdef LazyMetrics moments
    cdef DictMaker dicts
    cdef DictMaker output_dicts
    cdef type request
    cdef type lists
    cdef object running_prefill
    cdef object running_decode
    cdef Py_ssize_t r_request_id, r_prompt_ids, r_type, r_outputs, r_metrics, r_cached, r_req_data, r_length
    cdef Py_ssize_t o_index, o_send, o_tokens, o_drafts, o_logprob, o_top, o_draft_top
    cdef Py_ssize_t m_arrival, m_start

    def __init__(self, fd, FieldCopier results not None, FieldCopier outputs not None,
                 FieldCopier metrics not None, LazyMetrics moments not None, result, output,
                 bint inline_stamps, DictMaker dicts=None, DictMaker output_dicts=None):
        self.fd = fd
        self.moments = moments
        self.dicts, self.output_dicts = dicts, output_dicts
        self.results, self.outputs, self.metrics = results, outputs, metrics
        self.result, self.output = result, output
        self.inline_stamps = inline_stamps
        self.request = fd.Request
        self.lists = fd.LogprobsLists
        if self.lists.__bases__ != (tuple,) or self.lists._fields != (
                "logprob_token_ids", "logprobs", "sampled_token_ranks"):
            raise TypeError("LogprobsLists is not the named tuple of three lists that is known here")
        status = getattr(fd, "RequestStatus", None)
        self.running_prefill = getattr(status, "RUNNING_PREFILL", None)
        self.running_decode = getattr(status, "RUNNING_DECODE", None)
        cdef type cls = results.cls
        self.r_request_id = field_offset(cls, "request_id")
        self.r_prompt_ids = field_offset(cls, "prompt_token_ids")
        self.r_type = field_offset(cls, "output_type")
        self.r_outputs = field_offset(cls, "outputs")
        self.r_metrics = field_offset(cls, "metrics")
        self.r_cached = field_offset(cls, "num_cached_tokens")
        self.r_req_data = field_offset(cls, "ic_req_data")
        self.r_length = field_offset(cls, "prompt_token_ids_len")
        cls = outputs.cls
        self.o_index = field_offset(cls, "index")
        self.o_send = field_offset(cls, "send_idx")
        self.o_tokens = field_offset(cls, "token_ids")
        self.o_drafts = field_offset(cls, "draft_token_ids")
        self.o_logprob = field_offset(cls, "logprob")
        self.o_top = field_offset(cls, "top_logprobs")
        self.o_draft_top = field_offset(cls, "draft_top_logprobs")
        cls = metrics.cls
        self.m_arrival = field_offset(cls, "arrival_time")
        self.m_start = field_offset(cls, "inference_start_time")

    def copy_metrics(self, metrics):
        """What a client gets of a request's metrics: a copy, made field by field where that is possible."""
        if self.metrics.fits(<PyObject *>metrics):
            return self.metrics.of(metrics)
        return self.fd.copy.copy(metrics)

    def new_result(self, index, send_idx, request_id, output_type, metrics):
        """A result without tokens."""
        result = _owned_object(self._result(index, send_idx, request_id, output_type))
        give(at_offset(<PyObject *>result, self.r_outputs)[0], self.o_tokens, _untrack(new_list(0)))
        put(<PyObject *>result, self.r_metrics, metrics)
        return result

    def logprobs_lists(self, Step step not None, Py_ssize_t slot, Py_ssize_t rows):
        """LogprobsLists of the first `rows` accepted tokens of a request; None if there are none."""
        if not 0 <= slot < step.raw.batch or step.raw.block.scores == NULL:
            return None
        cdef Py_ssize_t first = step.raw.block.offsets[slot]
        rows = min(rows, step.raw.block.offsets[slot + 1] - first)
        if rows <= 0:
            return None
        cdef Py_ssize_t cols = step.raw.cols
        cdef fdw_block *b = &step.raw.block
        return _owned_object(
            _lists(self.lists, b.ids + first * cols, b.scores + first * cols, b.ranks + first, rows, cols))

    cdef PyObject *_result(self, index, send_idx, request_id, output_type) except NULL:
        """A result whose output has no list of tokens yet."""
        cdef PyObject *output = self.outputs.copy(<PyObject *>self.output)
        cdef PyObject *result = NULL
        try:
            put(output, self.o_index, index)
            put(output, self.o_send, send_idx)
            give(output, self.o_drafts, _untrack(new_list(0)))
            result = self.results.copy(<PyObject *>self.result)
            put(result, self.r_outputs, <object>output)
            put(result, self.r_request_id, request_id)
            put(result, self.r_type, output_type)
            give(result, self.r_prompt_ids, _untrack(new_list(0)))
        except:  # noqa: E722 - out of memory
            _drop_if_any(result)
            raise
        finally:
            drop_reference(output)
        return result


@cython.final
cdef class Sums:
    """What a step adds to FastDeploy's counters and metrics, kept in C until it is taken and observed.

    The fused updates mean the same as one update a request: the same counts in the same buckets, the same
    totals.

    Attributes
    ----------
    steps, decoded : int
        Requests that were advanced, and tokens for the scheduler's log, since they were last taken and told.
    """

    cdef object gaps         # the histogram time_per_output_token, or None: FastDeploy's method is called
    cdef object tokens       # the counter generation_tokens_total
    cdef list buckets
    cdef double bounds[_MOST_BUCKETS]
    cdef int64_t hits[_MOST_BUCKETS]
    cdef Py_ssize_t n_bounds
    cdef double gap_sum
    cdef int64_t n_gaps, n_tokens
    cdef readonly int64_t steps, decoded
    cdef object decode_log   # on_decode_tokens of the scheduler's logger, or None: it is told of each request
    cdef int64_t heads[_MOST_HEADS]
    cdef Py_ssize_t n_heads

    def __cinit__(self):
        memset(self.hits, 0, sizeof(self.hits))
        memset(self.heads, 0, sizeof(self.heads))

    @property
    def fused(self):
        """Whether samples of the metrics are summed up."""
        return self.gaps is not None

    def fuse(self, histogram, counter):
        """Take the histogram apart, if it is prometheus_client's, without labels."""
        bounds = getattr(histogram, "_upper_bounds", None)
        buckets = getattr(histogram, "_buckets", None)
        if (not isinstance(bounds, list) or not isinstance(buckets, list) or len(bounds) != len(buckets)
                or not 0 < len(bounds) <= _MOST_BUCKETS or getattr(histogram, "_labelnames", None) != ()
                or not hasattr(histogram, "_sum")):
            return
        cdef Py_ssize_t i
        for i in range(len(bounds)):
            self.bounds[i] = bounds[i]
        self.n_bounds = len(bounds)
        self.buckets, self.gaps, self.tokens = buckets, histogram, counter

    cdef inline void add_gap(self, double gap) noexcept:
        cdef Py_ssize_t i
        self.gap_sum += gap
        self.n_gaps += 1
        for i in range(self.n_bounds):
            if gap <= self.bounds[i]:
                self.hits[i] += 1
                return

    def tell_decoded(self):
        """Tell the scheduler's log of the tokens that were decoded, all in one call."""
        cdef int64_t decoded = self.decoded
        self.decoded = 0
        self.decode_log(decoded)

    def take(self):
        """What FastDeploy's attributes get, counted from zero again.

        Returns
        -------
        steps, tokens : int
        heads : list of int
            Requests whose first, second, ... token was accepted; empty without speculation.
        """
        cdef Py_ssize_t i
        cdef int64_t steps = self.steps, tokens = self.n_tokens
        cdef list heads = []
        for i in range(self.n_heads):
            heads.append(self.heads[i])
            self.heads[i] = 0
        self.steps = self.n_tokens = self.n_heads = 0
        return steps, tokens, heads

    def observe(self, int64_t tokens):
        """Give FastDeploy's metrics the samples since the last time, and `tokens`, which `take` gave."""
        cdef Py_ssize_t i
        cdef int64_t n
        cdef int64_t gaps = self.n_gaps
        cdef double total = self.gap_sum
        self.n_gaps = 0
        self.gap_sum = 0.0
        if self.gaps is None:
            return
        self.tokens.inc(tokens)
        if gaps:
            self.gaps._sum.inc(total)
            for i in range(self.n_bounds):
                n = self.hits[i]
                self.hits[i] = 0
                if n:
                    self.buckets[i].inc(n)


@cython.final
cdef class Batch:
    """One step being turned into results.

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
    cdef object log_decoding  # tells the scheduler's log of a request's tokens; None: no log, or summed up
    cdef object now
    cdef double clock
    cdef int64_t least_count
    cdef bint in_pairs       # a decode instance: its requests were prefilled elsewhere
    cdef tuple dropped       # sets of request ids whose tokens a decode instance drops
    cdef dict steps_of       # acceptance tables; None without speculation
    cdef dict heads_of
    cdef list commons        # by slot, what its request's metrics were at its last step, but for the stamps
    cdef Py_ssize_t most_heads

    def __init__(self, Plan plan not None, Step step not None, context, advance, give_up):
        self.plan, self.step, self.advance, self.give_up = plan, step, advance, give_up
        self.sums, self.failures = Sums(), {}
        self.stop_flags, self.tasks, self.output_type, self.masks, steady = context
        if steady is not None and plan.inline_stamps:
            try:
                self._prepare(steady)
            except Exception as error:
                self.counter = None
                self._failed("the quick way", error)

    cdef int _prepare(self, steady) except -1:
        """Be ready to advance requests."""
        # By position, not by name: that is half a microsecond less, in every step.
        (self.now, counter, self.commons, metrics, self.record, self.sums.decode_log, self.log_decoding,
         self.in_pairs, self.dropped, self.steps_of, self.heads_of, self.most_heads) = steady
        if metrics is not None:
            self.sums.fuse(metrics.time_per_output_token, metrics.generation_tokens_total)
        if self.sums.gaps is not None:
            self.record = None
        self.least_count = 2 if self.in_pairs else 1
        self.most_heads = min(self.most_heads, <Py_ssize_t>_MOST_HEADS)
        if len(self.commons) < self.step.raw.batch:
            self.commons.extend([None] * (self.step.raw.batch - len(self.commons)))
        self.clock = self.now
        self.counter = counter if type(counter) in (dict, Counter) else None
        return 0

    cdef int _failed(self, str what, error) except -1:
        if what not in self.failures:
            self.failures[what] = error
        return 0

    def results(self):
        """list of results, in slot order.  A request that fails does not disturb the others."""
        cdef list made = []
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
                result = self.give_up(i, task, error)
            if result is not None:
                made.append(result)
        if self.commons is not None:
            for i in range(step.raw.batch, PyList_GET_SIZE(self.commons)):
                self._let_go(i)
        return made

    cdef void _let_go(self, Py_ssize_t i) noexcept:
        """Drop what is kept of a slot's last request."""
        if self.commons is not None and i < PyList_GET_SIZE(self.commons):
            if PyList_GET_ITEM(self.commons, i) != <PyObject *>None:
                self.commons[i] = None

    def is_crowded(self, Py_ssize_t most):
        """Whether a table of requests may have more than `most` entries."""
        return (self.counter is None or len(self.counter) > most
                or (self.steps_of is not None and (len(self.steps_of) > most or len(self.heads_of) > most)))

    cdef object _steady(self, Py_ssize_t i, task):
        """The result of a request in its steady state; None, and nothing touched, if it is not."""
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
                or not plan.metrics.fits(<PyObject *>stamps)
                or (not self.in_pairs
                    and PyDict_GetItemWithError(own, "disaggregate_info") != <PyObject *>None)
                or PyDict_GetItemWithError(own, "multimodal_inputs") != <PyObject *>None
                or PyDict_GetItemWithError(own, "prefill_chunk_info") != NULL
                or (last is not None and not PyFloat_CheckExact(last))):
            return None
        settings = _dict_get(own, "sampling_params")
        if settings is not None and PyObject_HasAttr(settings, "prefill_chunk_info"):
            return None
        cdef PyObject *arrival = at_offset(<PyObject *>stamps, plan.m_arrival)[0]
        cdef PyObject *start = at_offset(<PyObject *>stamps, plan.m_start)[0]
        if (arrival == NULL or not PyFloat_CheckExact(<object>arrival)
                or start == NULL or not PyFloat_CheckExact(<object>start)
                or PyFloat_AS_DOUBLE(<object>start) == 0.0):  # FastDeploy takes that for none
            return None
        for ids in self.dropped:
            if name in ids:
                return None
        cdef Py_ssize_t first = b.offsets[i]
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
        if plan.running_prefill is not None and _dict_get(own, "status") is plan.running_prefill:
            PyDict_SetItem(own, "status", plan.running_decode)
        result = _owned_object(plan._result(i, sent, name, self.output_type))
        cdef PyObject *r = <PyObject *>result
        give(r, plan.r_metrics, self._stamped(i, <PyObject *>stamps))
        put(r, plan.r_req_data, _dict_get(own, "ic_req_data"))
        put(r, plan.r_length, _dict_get(own, "prompt_token_ids_len"))
        put(r, plan.r_cached, _dict_get(own, "num_cached_tokens"))
        cdef list tokens = self._append(at_offset(r, plan.r_outputs)[0], first, count)
        if self.masks and i in self.masks:
            (<object>at_offset(r, plan.r_outputs)[0]).sampling_mask = self.masks[i]
        self._record(task, own, last, tokens)
        for token in tokens:
            PyList_Append(tokens_so_far, token)
        PyDict_SetItem(self.counter, name, before + count)
        self.sums.steps += 1
        self.sums.n_tokens += count
        return result

    cdef int _count_accepted(self, name, int32_t count) except -1:
        """What _record_speculative_decoding_accept_num_per_request does, for a count above 0."""
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

    cdef PyObject *_stamped(self, Py_ssize_t i, PyObject *stamps) except NULL:
        """What RequestMetrics.record_recv_token does; `Plan.inline_stamps` says that this is all.

        Returns what the metrics of the result are made of.
        """
        cdef Plan plan = self.plan
        cdef Moment moment = Moment.__new__(Moment)
        before = self.commons[i]
        moment.common = plan.moments.common_of(stamps, before)
        if moment.common is not before:
            self.commons[i] = moment.common
        moment.latest = self.now
        moment.execute = self.clock - PyFloat_AS_DOUBLE(<object>at_offset(stamps, plan.m_arrival)[0])
        moment.forward = self.clock - PyFloat_AS_DOUBLE(<object>at_offset(stamps, plan.m_start)[0])
        plan.moments.stamp(stamps, moment)
        _take(<PyObject *>moment)
        return <PyObject *>moment

    cdef int _record(self, task, dict own, last, list tokens) except -1:
        """What _record_metrics does; its updates of the metrics are summed up."""
        if self.record is not None:
            try:
                self.record(task, self.now, tokens)
            except Exception as error:
                self._failed("metrics of a step", error)
            return 0
        if last is not None:
            self.sums.add_gap(self.clock - PyFloat_AS_DOUBLE(last))
        PyDict_SetItem(own, "last_token_time", self.now)
        return 0

    cdef list _append(self, PyObject *output, Py_ssize_t first, Py_ssize_t count):
        """Give the tokens to an output; the list that it now holds."""
        cdef Plan plan = self.plan
        cdef fdw_block *b = &self.step.raw.block
        cdef Py_ssize_t cols = self.step.raw.cols
        cdef list tokens = owned(_untrack(int_row(b.ids + first * cols, cols, count)))
        put(output, plan.o_tokens, tokens)
        if b.scores != NULL:
            give(output, plan.o_top, _copied_rows(self.step, first, count))
            give(output, plan.o_logprob, new_float(b.scores[(first + count - 1) * cols]))
        return tokens


def live_requests(Step step not None):
    """Requests of a step that have an accepted token."""
    cdef Py_ssize_t i, live = 0
    for i in range(step.raw.batch):
        live += step.raw.block.counts[i] > 0
    return live


cdef bint _decodes(dict own) except -1:
    """What _is_decode_stage says of a request, by its attributes."""
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


cdef inline object _owned_object(PyObject *made):
    """Hand a new reference over to Cython's counting."""
    o = <object>made
    drop_reference(made)
    return o


cdef bint _none_ends(const int32_t *ids, Py_ssize_t pitch, Py_ssize_t count, PyObject *ends) except -1:
    """Whether no token is an end token; False also if that takes more than comparing small integers."""
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

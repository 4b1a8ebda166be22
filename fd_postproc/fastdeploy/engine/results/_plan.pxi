# The plan: facts about FastDeploy's classes for the batch loop.
cimport cython
from cpython.object cimport PyObject
from fd_postproc._core cimport Step
from fd_postproc.headers.lists cimport new_list
from fd_postproc.headers.wire cimport fdw_block


@cython.final
cdef class Plan:
    """Facts about FastDeploy's classes for the batch loop, made once by `result_classes.plan_of`.

    Parameters
    ----------
    fd : module
        With the names of ``fastdeploy.output.token_processor``.
    results, outputs, metrics : FieldCopier
        Of our subclasses of RequestOutput, CompletionOutput and RequestMetrics.
    accepted : Outputs
    moments : Moments
    result : RequestOutput
        Whose values every new one begins with.
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
    cdef readonly bint inline_stamps
    cdef Outputs accepted
    cdef Moments moments
    cdef DictMaker dicts
    cdef DictMaker output_dicts
    cdef type request
    cdef type lists
    cdef object running_prefill
    cdef object running_decode
    cdef Py_ssize_t r_request_id, r_type, r_outputs, r_metrics, r_cached, r_req_data, r_length
    cdef Py_ssize_t r_finished, o_tokens, o_text
    cdef Py_ssize_t m_arrival, m_start, r_carrier
    cdef readonly object carrier  # a result's default

    def __init__(self, fd, FieldCopier results not None, FieldCopier outputs not None,
                 FieldCopier metrics not None, Outputs accepted not None, Moments moments not None,
                 result, bint inline_stamps, DictMaker dicts=None, DictMaker output_dicts=None):
        self.fd = fd
        self.accepted, self.moments = accepted, moments
        self.dicts, self.output_dicts = dicts, output_dicts
        self.results, self.outputs, self.metrics = results, outputs, metrics
        self.result = result
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
        self.r_type = field_offset(cls, "output_type")
        self.r_outputs = field_offset(cls, "outputs")
        self.r_metrics = field_offset(cls, "metrics")
        self.r_cached = field_offset(cls, "num_cached_tokens")
        self.r_req_data = field_offset(cls, "ic_req_data")
        self.r_length = field_offset(cls, "prompt_token_ids_len")
        self.r_carrier = field_offset(cls, "trace_carrier")
        self.carrier = fd.RequestOutput(request_id="").trace_carrier
        self.r_finished = field_offset(cls, "finished")
        self.o_tokens = field_offset(outputs.cls, "token_ids")
        self.o_text = field_offset(outputs.cls, "text")
        cls = metrics.cls
        self.m_arrival = field_offset(cls, "arrival_time")
        self.m_start = field_offset(cls, "inference_start_time")

    def copy_metrics(self, metrics):
        """Copy a request's metrics for the client, field by field where possible."""
        if self.metrics.fits(<PyObject *>metrics):
            return self.metrics.of(metrics)
        return self.fd.copy.copy(metrics)

    def new_result(self, index, send_idx, request_id, output_type, metrics):
        """Make a result without tokens."""
        result = _owned_object(self._result(request_id, output_type))
        cdef PyObject *output = self.accepted.blank(index, send_idx)
        give(<PyObject *>result, self.r_outputs, output)
        give(output, self.o_tokens, _untrack(new_list(0)))
        put(<PyObject *>result, self.r_metrics, metrics)
        return result

    def logprobs_lists(self, Step step not None, Py_ssize_t slot, Py_ssize_t rows):
        """Make the LogprobsLists of a request's first `rows` accepted tokens, or None."""
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

    cdef PyObject *_result(self, request_id, output_type) except NULL:
        """Make a result without an output."""
        cdef PyObject *result = self.results.copy(<PyObject *>self.result)
        put(result, self.r_request_id, request_id)
        put(result, self.r_type, output_type)
        return result

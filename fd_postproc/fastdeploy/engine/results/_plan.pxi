# The plan: facts about FastDeploy's classes for the batch loop.
cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t
from fd_postproc._core cimport Step
from fd_postproc.headers.lists cimport float_rows, int_row, int_rows, owned
from fd_postproc.headers.wire cimport fdw_block

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
        int type

    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member

    int T_OBJECT_EX

cdef extern from "Python.h":
    ctypedef object (*newfunc)(type, PyObject *, PyObject *)

    ctypedef struct PyTypeObject:
        newfunc tp_new
        Py_ssize_t tp_basicsize


@cython.final
cdef class Plan:
    """Facts about FastDeploy's classes for the batch loop, made once by `result_classes.plan_of`.

    Parameters
    ----------
    fd : module
        With the names of ``fastdeploy.output.token_processor``.
    result : type
        Our subclass of RequestOutput and `Result`.
    others : sequence of str
        Fields of RequestMetrics that steps leave alone.
    inline_stamps : bool
        Whether ``RequestMetrics.record_recv_token`` sets just the four stamps that are known here.
    has_dictionaries : bool
        Whether the code of each ``to_dict`` is known.
    """

    cdef readonly object fd
    cdef readonly type result
    cdef readonly bint inline_stamps, has_dictionaries
    cdef readonly object carrier  # a result's default
    cdef type stock, outputs, metrics, request, lists
    cdef tuple to_dicts           # of `stock`, `outputs` and `metrics`, as they were
    cdef object running_prefill
    cdef object running_decode
    cdef Py_ssize_t *others
    cdef Py_ssize_t n

    def __init__(self, fd, type result not None, others, bint inline_stamps, bint has_dictionaries):
        cdef Py_ssize_t i
        self.fd, self.result = fd, result
        self.inline_stamps, self.has_dictionaries = inline_stamps, has_dictionaries
        self.stock, self.outputs, self.metrics = fd.RequestOutput, fd.CompletionOutput, fd.RequestMetrics
        self.request, self.lists = fd.Request, fd.LogprobsLists
        if self.lists.__bases__ != (tuple,) or self.lists._fields != (
                "logprob_token_ids", "logprobs", "sampled_token_ranks"):
            raise TypeError("LogprobsLists is not the named tuple of three lists that is known here")
        self.to_dicts = self.stock.to_dict, self.outputs.to_dict, self.metrics.to_dict
        status = getattr(fd, "RequestStatus", None)
        self.running_prefill = getattr(status, "RUNNING_PREFILL", None)
        self.running_decode = getattr(status, "RUNNING_DECODE", None)
        self.carrier = fd.RequestOutput(request_id="").trace_carrier
        self.n = len(others)
        PyMem_Free(self.others)
        self.others = <Py_ssize_t *>PyMem_Malloc(max(self.n, 1) * sizeof(Py_ssize_t))
        if self.others == NULL:
            raise MemoryError
        for i in range(self.n):
            self.others[i] = _slot_offset(self.metrics, others[i])

    def __dealloc__(self):
        PyMem_Free(self.others)

    cdef bint shows_as_known(self) except -1:
        """Whether FastDeploy's dictionaries are those of a template."""
        return (self.has_dictionaries and self.stock.to_dict is self.to_dicts[0]
                and self.outputs.to_dict is self.to_dicts[1] and self.metrics.to_dict is self.to_dicts[2])

    cdef bint are_alike(self, one, other) except -1:
        """Whether the metrics of a request, both of FastDeploy's class, differ in their stamps at most.

        By offset: 33 attributes of 256 requests take 0.2 ms a step, and 0.5 to 1 with other work in between.
        """
        cdef Py_ssize_t i
        for i in range(self.n):
            if ((<PyObject **>(<char *><PyObject *>one + self.others[i]))[0]
                    != (<PyObject **>(<char *><PyObject *>other + self.others[i]))[0]):
                return False
        return True

    def copy_metrics(self, metrics):
        """Copy a request's metrics for the client."""
        return self.fd.copy.copy(metrics)

    def new_result(self, index, send_idx, request_id, output_type, metrics):
        """Make a result without tokens."""
        return self.ordinary(self.result, index, send_idx, request_id, output_type, metrics)

    cdef object ordinary(self, cls, index, send_idx, request_id, output_type, metrics):
        """A result without tokens as FastDeploy makes it, of a class."""
        outputs = self.outputs(index=index, send_idx=send_idx, token_ids=[], draft_token_ids=[])
        return cls(
            request_id=request_id, output_type=output_type, outputs=outputs, finished=False, metrics=metrics,
            ic_req_data=None, prompt_token_ids_len=0, trace_carrier=None)

    def logprobs_lists(self, Step step not None, Py_ssize_t slot, Py_ssize_t rows):
        """Make the LogprobsLists of a request's first `rows` accepted tokens, or None."""
        if not 0 <= slot < step.raw.batch or step.raw.block.scores == NULL:
            return None
        cdef Py_ssize_t first = step.raw.block.offsets[slot], cols = step.raw.cols
        cdef fdw_block *b = &step.raw.block
        rows = min(rows, b.offsets[slot + 1] - first)
        if rows <= 0:
            return None
        return self.lists_of(b.ids + first * cols, b.scores + first * cols, b.ranks + first, rows, cols)

    cdef object lists_of(self, const int32_t *ids, const float *scores, const int32_t *ranks,
                         Py_ssize_t rows, Py_ssize_t cols):
        """A LogprobsLists of rows of `cols` columns."""
        return self.lists(owned(int_rows(ids, cols, rows, cols)), owned(float_rows(scores, cols, rows, cols)),
                          owned(int_row(ranks, 1, rows)))


cdef Py_ssize_t _slot_offset(type cls, str name) except -1:
    """Offset of an attribute in ``__slots__``."""
    cdef PyMemberDef *member
    descriptor = getattr(cls, name, None)
    if type(descriptor) is MemberDescriptorType:
        member = (<PyMemberDescrObject *><PyObject *>descriptor).d_member
        if (member.type == T_OBJECT_EX and member.offset > 0
                and member.offset + <Py_ssize_t>sizeof(void *) <= (<PyTypeObject *>cls).tp_basicsize):
            return member.offset
    raise TypeError(f"{cls.__name__}.{name} is not one of its __slots__")

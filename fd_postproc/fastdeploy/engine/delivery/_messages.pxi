# Messages for the API server's processes: bytes made of results, without dictionaries in between.
cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from fd_postproc.headers.msgpack cimport (
    fdm_begin, fdm_copy, fdm_end, fdm_give_up, fdm_out, fdm_put_array, fdm_put_text,
)


@cython.final
cdef class Messages:
    """Packer of results, equal to ``msgpack.packb([[result.to_dict(), ...], ...])``.

    A result of another class, with a value of another type, or with a replaced ``to_dict``, becomes a
    dictionary that msgpack packs, for itself alone.

    Parameters
    ----------
    plan : Plan
        Its results are packed.

    Attributes
    ----------
    packed, asked : int
        Results packed so far, and those among them that msgpack was asked for.
    """

    cdef readonly Plan plan
    cdef readonly int64_t packed, asked
    cdef Py_ssize_t usual_size
    cdef Py_ssize_t routing   # where a result has its routed experts; -1: nowhere
    cdef Py_ssize_t count_at  # the byte of a result's head that counts

    def __init__(self, Plan plan not None):
        self.plan = plan
        self.routing = _offset_of_experts(plan)
        self.count_at = 0 if plan.dicts is None or len(plan.dicts.keys) < 16 else 2

    def pack(self, list batch not None, packb, arrays=None):
        """Pack the message.

        Parameters
        ----------
        batch : list of list of results
        packb : function
            What packs a dictionary.
        arrays : function, optional
            Whether who receives it reads arrays as one value, asked at the first one; otherwise they are
            lists, as msgpack's.

        Returns
        -------
        bytes
        """
        global _asked_for_arrays
        cdef fdm_out out
        cdef Py_ssize_t i, n = PyList_GET_SIZE(batch)
        cdef bint known = self._knows()
        _asked_for_arrays = arrays
        fdm_begin(&out, max(self.usual_size + (self.usual_size >> 3), 4096))
        try:
            fdm_put_array(&out, n)
            for i in range(n):
                results = batch[i]
                self._append(&out, results if type(results) is list else list(results), packb, known)
                if PyList_GET_SIZE(batch) != n:
                    raise RuntimeError("a batch of results has changed while it was packed")
            return self._end(&out)
        finally:
            _asked_for_arrays = None
            fdm_give_up(&out)

    cdef object _end(self, fdm_out *out):
        """The bytes; a message with large arrays says nothing of the usual size."""
        global _array_bytes
        if _array_bytes < LARGE:
            self.usual_size = out.n
        _array_bytes = 0
        return fdm_end(out)

    cdef bint _knows(self):
        """Whether the dictionaries of our result classes are unchanged."""
        plan = self.plan
        return (plan.dicts is not None and plan.dicts.is_asked()
                and plan.output_dicts is not None and plan.output_dicts.is_asked()
                and plan.moments.dicts is not None and plan.moments.dicts.is_asked())

    cdef int _append(self, fdm_out *out, list results, packb, bint known) except -1:
        cdef Py_ssize_t i, before, n = PyList_GET_SIZE(results)
        fdm_put_array(out, n)
        for i in range(n):
            before, result = out.n, results[i]
            if not known or not self.plan.dicts.packed(out, <PyObject *>result):
                out.n = before
                if not known or not self._append_experts(out, result):
                    out.n = before
                    self._ask(out, result, packb)
            if PyList_GET_SIZE(results) != n:
                raise RuntimeError("a request's results have changed while they were packed")
        self.packed += n
        return 0

    cdef bint _append_experts(self, fdm_out *out, result) except -1:
        """Pack a result with routed experts; False, maybe after partial output, if it has something else."""
        cdef Py_ssize_t before = out.n
        cdef bint done
        if self.routing < 0 or Py_TYPE(result) != <PyTypeObject *>self.plan.results.cls:
            return False
        cdef PyObject *field = at_offset(<PyObject *>result, self.routing)[0]
        if field == NULL or field == <PyObject *>None:
            return False
        experts = <object>field
        put(<PyObject *>result, self.routing, None)
        try:  # the rest is packed as that of any result; the sender's thread alone has it
            done = self.plan.dicts.packed(out, <PyObject *>result)
        finally:
            put(<PyObject *>result, self.routing, experts)
        if not done:
            return False
        out.at[before + self.count_at] += 1
        fdm_put_text(out, <PyObject *>EXPERTS)
        return _put_array(out, experts, _reads_arrays())

    cdef int _ask(self, fdm_out *out, result, packb) except -1:
        self.asked += 1
        cdef bytes content = packb(result.to_dict())
        fdm_copy(out, _bytes_at(<PyObject *>content), PyBytes_GET_SIZE(<PyObject *>content))
        return 0


EXPERTS = "routing_data"
"""Attribute of a result that makes one more key in FastDeploy's dictionary, at its end."""


cdef Py_ssize_t _offset_of_experts(Plan plan) except -2:
    """Offset of a result's routed experts; -1 if FastDeploy has none, or puts them elsewhere."""
    if plan.dicts is None or plan.dicts.pattern is None or plan.dicts.only.get(EXPERTS, EXPERTS) is not None:
        return -1
    if len(plan.dicts.keys) % 256 in (15, 255):  # one more needs another head
        return -1
    sample = plan.fd.RequestOutput(request_id="")
    before = list(sample.to_dict())
    setattr(sample, EXPERTS, "experts")
    after = sample.to_dict()
    if list(after) != [*before, EXPERTS] or after[EXPERTS] != "experts":
        return -1
    return field_offset(plan.results.cls, EXPERTS)

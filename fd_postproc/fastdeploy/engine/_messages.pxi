# Messages for the API server's processes: bytes made of results, without dictionaries in between.
cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from fd_postproc.headers.msgpack cimport (
    fdx_begin_in, fdx_copy, fdx_drop, fdx_end_in, fdx_give_up, fdx_out, fdx_put_array, fdx_spares,
)


@cython.final
cdef class Messages:
    """Packs results as ``msgpack.packb([[result.to_dict(), ...], ...])`` does.

    A result of which it is not known how - of another class, with a value of another kind, or while somebody
    has put another ``to_dict`` in its class - becomes a dictionary that msgpack packs, for itself alone.

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
    cdef fdx_spares spares  # of the last messages

    def __init__(self, Plan plan not None):
        self.plan = plan

    def __dealloc__(self):
        fdx_drop(&self.spares)

    def pack(self, list batch not None, packb):
        """The message.

        Parameters
        ----------
        batch : list of list of results
        packb : function
            What packs a dictionary.

        Returns
        -------
        bytes
        """
        cdef fdx_out out
        cdef Py_ssize_t i, n = PyList_GET_SIZE(batch)
        cdef bint known = self._knows()
        fdx_begin_in(&out, &self.spares, max(self.usual_size + (self.usual_size >> 3), 4096))
        try:
            fdx_put_array(&out, n)
            for i in range(n):
                results = batch[i]
                self._append(&out, results if type(results) is list else list(results), packb, known)
                if PyList_GET_SIZE(batch) != n:
                    raise RuntimeError("a batch of results has changed while it was packed")
            self.usual_size = out.n
            return fdx_end_in(&out, &self.spares)
        finally:
            fdx_give_up(&out)

    def pack_step(self, list results not None, packb):
        """The same of one list of results: ``msgpack.packb([result.to_dict(), ...])``."""
        cdef fdx_out out
        fdx_begin_in(&out, &self.spares, max(self.usual_size + (self.usual_size >> 3), 4096))
        try:
            self._append(&out, results, packb, self._knows())
            self.usual_size = out.n
            return fdx_end_in(&out, &self.spares)
        finally:
            fdx_give_up(&out)

    cdef bint _knows(self):
        """Whether our results' dictionaries are what they were made to be."""
        plan = self.plan
        return (plan.dicts is not None and plan.dicts.is_asked()
                and plan.output_dicts is not None and plan.output_dicts.is_asked()
                and plan.moments.is_asked())

    cdef int _append(self, fdx_out *out, list results, packb, bint known) except -1:
        cdef Py_ssize_t i, before, n = PyList_GET_SIZE(results)
        fdx_put_array(out, n)
        for i in range(n):
            before = out.n
            if not known or not self.plan.dicts.packed(out, PyList_GET_ITEM(results, i)):
                out.n = before
                self._ask(out, results[i], packb)
                if PyList_GET_SIZE(results) != n:
                    raise RuntimeError("a request's results have changed while they were packed")
        self.packed += n
        return 0

    cdef int _ask(self, fdx_out *out, result, packb) except -1:
        self.asked += 1
        cdef bytes content = packb(result.to_dict())
        fdx_copy(out, _bytes_at(<PyObject *>content), PyBytes_GET_SIZE(<PyObject *>content))
        return 0

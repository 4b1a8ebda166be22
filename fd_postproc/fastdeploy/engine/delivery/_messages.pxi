# Messages for the API server's processes: results as bytes.
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from fd_postproc.headers.msgpack cimport (
    fdm_begin, fdm_copy, fdm_end, fdm_give_up, fdm_out, fdm_put_array,
)

cdef enum:
    _LARGEST_USUAL = 1 << 22  # bytes of a message that the next one's memory is made for

cdef tuple _MAY_BE_ARRAYS = ("routing_data", "prompt_logprobs")  # what the API server reads as such


@cython.final
cdef class Messages:
    """Packer of results, equal to ``msgpack.packb([[result.to_dict(), ...], ...], default=default)``.

    Msgspec packs what is no longer numbers and a template.  Its hook packs what msgspec refuses and msgpack,
    or FastDeploy's ``default``, does not.  Arrays are packed from their memory.

    Parameters
    ----------
    plan : Plan
        Whose results are packed.
    default : function, optional
        FastDeploy's, for values that msgpack does not know.

    Attributes
    ----------
    packed, asked : int
        Results packed so far, and those among them of which a dictionary was made.
    """

    cdef readonly Plan plan
    cdef readonly int64_t packed, asked
    cdef object default, encode
    cdef Py_ssize_t usual_size

    def __init__(self, Plan plan not None, default=None):
        self.plan, self.default = plan, default
        self.encode = Encoder(enc_hook=self._unknown).encode

    def pack(self, list batch not None, reads_arrays=None):
        """Pack the message.

        Parameters
        ----------
        batch : list of list of results
        reads_arrays : function, optional
            Whether who receives it reads arrays as one value, asked at the first one; otherwise they are
            lists, as msgpack's.

        Returns
        -------
        bytes
        """
        cdef fdm_out out
        cdef list results
        cdef bint known = self.plan.shows_as_known()
        batch = list(batch)  # and copies of what is in it: other code may run meanwhile
        fdm_begin(&out, max(self.usual_size + (self.usual_size >> 3), 4096))
        try:
            fdm_put_array(&out, len(batch))
            for some in batch:
                results = list(some)
                fdm_put_array(&out, len(results))
                for result in results:
                    if (known and type(result) is self.plan.result and (<Result>result).is_unread()
                            and (<Result>result).template.packed is not None):
                        (<Result>result).put(&out, self.encode)
                    else:
                        content = self._of_dictionary(result, reads_arrays)
                        fdm_copy(&out, PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
                self.packed += len(results)
            self.usual_size = min(out.n, <Py_ssize_t>_LARGEST_USUAL)
            return fdm_end(&out)
        finally:
            fdm_give_up(&out)

    cdef bytes _of_dictionary(self, result, reads_arrays):
        self.asked += 1
        shown = result.to_dict()
        for key in _MAY_BE_ARRAYS:
            value = shown.get(key) if isinstance(shown, dict) else None
            if value is not None and reads_arrays is not None and reads_arrays():
                shown = {**shown, key: [self._as_one(one) for one in value] if hasattr(value, "_asdict")
                         else self._as_one(value)}
        return self.encode(shown)

    cdef object _as_one(self, value):
        content = packed_array(value, True)
        return value if content is None else Raw(content)

    def _unknown(self, value):
        """What msgspec is to pack instead of a value that it does not know."""
        for kind in (str, int, float):
            if isinstance(value, kind):  # of a subclass, as NumPy's float64
                return getattr(kind, "__str__" if kind is str else "__" + kind.__name__ + "__")(value)
        content = packed_array(value, False)
        if content is not None:
            return Raw(content)
        if self.default is None:
            raise TypeError(f"{type(value).__name__} cannot be packed")
        return self.default(value)

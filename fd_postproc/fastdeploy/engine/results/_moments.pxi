# A request's metrics at a step: what its steps have in common, and the stamps of this one.
#
# A client gets them as a dictionary; little else looks at them.
cimport cython
from cpython.dict cimport PyDict_Copy, PyDict_SetItem
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from fd_postproc.headers.msgpack cimport fdm_float, fdm_out


@cython.final
@cython.internal
@cython.no_gc
cdef class Common:
    """Metrics of a request that are equal in consecutive steps."""

    cdef Moments moments
    cdef object metrics     # a copy of them as they were at one step
    cdef dict shown         # as a dictionary, cached at the first access
    cdef Pattern pattern    # that as msgpack packs it


@cython.final
@cython.internal
@cython.no_gc
cdef class Moment(Late):
    """Metrics of a request at one step."""

    cdef Common common
    cdef object latest      # when its last token came
    cdef object execute     # seconds from its arrival until then
    cdef object forward     # seconds from the start of its inference until then

    cdef object made(self):
        metrics = _owned_object(self.common.moments.copier.copy(<PyObject *>self.common.metrics))
        self.common.moments.stamp(<PyObject *>metrics, self)
        return metrics

    cdef object shown(self):
        cdef Common common = self.common
        cdef Moments moments = common.moments
        if moments.keys is None:
            return None
        if common.shown is None:
            common.shown = moments.dicts.made(common.metrics)
            if common.shown is None:
                return None
        cdef dict out = PyDict_Copy(common.shown)
        PyDict_SetItem(out, <object>PyTuple_GET_ITEM(moments.keys, 0), self.latest)
        PyDict_SetItem(out, <object>PyTuple_GET_ITEM(moments.keys, 1), self.latest)
        PyDict_SetItem(out, <object>PyTuple_GET_ITEM(moments.keys, 2), self.execute)
        PyDict_SetItem(out, <object>PyTuple_GET_ITEM(moments.keys, 3), self.forward)
        return out

    cdef int packed(self, fdm_out *out) except -1:
        """Copy the packed shared metrics, and overwrite the stamps."""
        cdef Common common = self.common
        cdef Py_ssize_t begin = out.n
        if common.pattern is None:
            common.pattern = common.moments.pattern_of(common.metrics)
        if common.pattern is None or not (
                PyFloat_CheckExact(self.latest) and PyFloat_CheckExact(self.execute)
                and PyFloat_CheckExact(self.forward)):
            return 0
        common.pattern.copy_rest(out, 0)
        self._overwrite(out.at + begin, 0, self.latest)
        self._overwrite(out.at + begin, 1, self.latest)
        self._overwrite(out.at + begin, 2, self.execute)
        self._overwrite(out.at + begin, 3, self.forward)
        return 1

    cdef inline void _overwrite(self, unsigned char *begin, int stamp, value) noexcept:
        cdef Common common = self.common
        fdm_float(begin + common.pattern.begins(common.moments.places[stamp]), PyFloat_AS_DOUBLE(value))


@cython.final
cdef class Moments:
    """Maker of results' metrics.

    Parameters
    ----------
    copier : FieldCopier
        Of our subclass of RequestMetrics.
    stamps : tuple of str
        Its fields for the time of the last token, twice, and for the two durations of `Moment`.
    dicts : DictMaker or None
        Of their dictionaries, with plain values only; None: FastDeploy's ``to_dict`` makes them.
    """

    cdef FieldCopier copier
    cdef DictMaker dicts
    cdef Py_ssize_t stamps[4]
    cdef tuple keys             # of the stamps in a dictionary; None: only `to_dict` knows
    cdef Py_ssize_t places[4]   # which of all keys they are
    cdef Py_ssize_t *others     # fields that are no stamps
    cdef Py_ssize_t n

    def __init__(self, FieldCopier copier not None, tuple stamps not None, DictMaker dicts):
        cdef Py_ssize_t i, k
        self.copier = copier
        for i in range(4):
            self.stamps[i] = field_offset(copier.cls, stamps[i])
        if dicts is not None and set(stamps) <= set(dicts.key_of):
            self.dicts, self.keys = dicts, tuple([dicts.key_of[stamp] for stamp in stamps])
            for k in range(4):
                self.places[k] = dicts.keys.index(self.keys[k])
        others = [other for other in copier.names if other not in stamps]
        self.n = len(others)
        PyMem_Free(self.others)
        self.others = <Py_ssize_t *>PyMem_Malloc(max(self.n, 1) * sizeof(Py_ssize_t))
        if self.others == NULL:
            raise MemoryError
        for i in range(self.n):
            self.others[i] = field_offset(copier.cls, others[i])

    def __dealloc__(self):
        PyMem_Free(self.others)

    cdef Common common_of(self, PyObject *metrics, before):
        """The metrics that steps share: `before`, unless more than stamps has changed."""
        cdef Common common
        if type(before) is Common and self._are_alike(metrics, <PyObject *>(<Common>before).metrics):
            return before
        common = Common.__new__(Common)
        common.moments, common.metrics = self, _owned_object(self.copier.copy(metrics))
        return common

    cdef bint _are_alike(self, PyObject *one, PyObject *other) noexcept:
        cdef Py_ssize_t i
        for i in range(self.n):
            if at_offset(one, self.others[i])[0] != at_offset(other, self.others[i])[0]:
                return False
        return True

    cdef void stamp(self, PyObject *metrics, Moment moment) noexcept:
        """Set the stamps of an object."""
        put(metrics, self.stamps[0], moment.latest)
        put(metrics, self.stamps[1], moment.latest)
        put(metrics, self.stamps[2], moment.execute)
        put(metrics, self.stamps[3], moment.forward)

    cdef Pattern pattern_of(self, metrics):
        """Shared metrics as msgpack packs them, with numbers for stamps; None if they are not supported."""
        cdef Py_ssize_t k
        values = None if self.dicts is None else self.dicts.values_of(<PyObject *>metrics)
        if values is None:
            return None
        for k in range(4):
            values[self.places[k]] = 0.0
        return self.dicts.pattern_of(values)

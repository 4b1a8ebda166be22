# A request's metrics at a step: what its steps have in common, and the stamps of this one.
#
# A client gets them as a dictionary; little else looks at them.
cimport cython
from cpython.dict cimport PyDict_Copy, PyDict_SetItem
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from fd_postproc.headers.msgpack cimport fdm_copy, fdm_float, fdm_out


@cython.final
@cython.internal
@cython.no_gc
cdef class Common:
    """Metrics of a request that are equal in consecutive steps."""

    cdef object metrics     # a copy of them as they were at one step
    cdef dict shown         # as a dictionary, cached at the first access
    cdef bytes packed       # that as msgpack packs it
    cdef Py_ssize_t stamps_at[4]  # where the stamps are in it


@cython.final
@cython.internal
@cython.no_gc
@cython.freelist(512)
cdef class Moment:
    """Metrics of a request at one step."""

    cdef Common common
    cdef object latest      # when its last token came
    cdef object execute     # seconds from its arrival until then
    cdef object forward     # seconds from the start of its inference until then


@cython.final
cdef class LazyMetrics(Lazy):
    """Metrics of a result, which become an object at the first access.

    Parameters
    ----------
    base : type
        Our class of results, with the field.
    name : str
        The field.
    metrics : FieldCopier
        Of our subclass of RequestMetrics.
    stamps : tuple of str
        Its fields for the time of the last token, twice, and for the two durations of `Moment`.
    dicts : DictMaker or None
        Of its dictionaries, with plain values only; None: FastDeploy's ``to_dict`` makes them.
    """

    cdef FieldCopier metrics
    cdef DictMaker dicts
    cdef Py_ssize_t stamps[4]
    cdef tuple keys             # of the stamps in a dictionary
    cdef Py_ssize_t *others     # fields that are no stamps
    cdef Py_ssize_t n

    def __init__(self, type base not None, str name not None, FieldCopier metrics not None,
                 tuple stamps not None, DictMaker dicts):
        Lazy.__init__(self, base, name, Moment)
        self.metrics = metrics
        if dicts is not None and set(stamps) <= set(dicts.key_of):
            self.dicts, self.keys = dicts, tuple([dicts.key_of[stamp] for stamp in stamps])
        for i in range(4):
            self.stamps[i] = field_offset(metrics.cls, stamps[i])
        others = [other for other in metrics.names if other not in stamps]
        self.n = len(others)
        PyMem_Free(self.others)
        self.others = <Py_ssize_t *>PyMem_Malloc(max(self.n, 1) * sizeof(Py_ssize_t))
        if self.others == NULL:
            raise MemoryError
        for i in range(self.n):
            self.others[i] = field_offset(metrics.cls, others[i])

    def __dealloc__(self):
        PyMem_Free(self.others)

    cdef Common common_of(self, PyObject *metrics, before):
        """The metrics that steps share: `before`, unless more than stamps has changed."""
        cdef Common made
        if type(before) is Common and self._are_alike(metrics, <PyObject *>(<Common>before).metrics):
            return before
        made = Common.__new__(Common)
        made.metrics = _owned_object(self.metrics.copy(metrics))
        return made

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

    cdef object made(self, stuff):
        cdef Moment moment = stuff
        made = _owned_object(self.metrics.copy(<PyObject *>moment.common.metrics))
        self.stamp(<PyObject *>made, moment)
        return made

    cdef object shown(self, PyObject *o):
        """The dictionary of an instance's metrics."""
        value = <object>at_offset(o, self.offset)[0]
        if self.dicts is not None:
            made = self._shown_at(value) if type(value) is Moment else self.dicts.made(value)
            if made is not None:
                return made
        return self.of(o).to_dict()

    cdef bint is_asked(self):
        return self.dicts is not None and self.dicts.is_asked()

    cdef int packed(self, fdm_out *out, PyObject *o) except -1:
        """Copy the packed shared metrics, and overwrite the stamps."""
        cdef PyObject *value = at_offset(o, self.offset)[0]
        if self.dicts is None:
            return 0
        if Py_TYPE(<object>value) != <PyTypeObject *>Moment:
            return self.dicts.packed(out, value)
        cdef Moment moment = <Moment><object>value
        cdef Common common = moment.common
        if common.packed is None and not self._pack(common):
            return 0
        if not (PyFloat_CheckExact(moment.latest) and PyFloat_CheckExact(moment.execute)
                and PyFloat_CheckExact(moment.forward)):
            return 0
        cdef Py_ssize_t size = PyBytes_GET_SIZE(<PyObject *>common.packed)
        fdm_copy(out, _bytes_at(<PyObject *>common.packed), size)
        cdef unsigned char *at = out.at + out.n - size
        fdm_float(at + common.stamps_at[0], PyFloat_AS_DOUBLE(moment.latest))
        fdm_float(at + common.stamps_at[1], PyFloat_AS_DOUBLE(moment.latest))
        fdm_float(at + common.stamps_at[2], PyFloat_AS_DOUBLE(moment.execute))
        fdm_float(at + common.stamps_at[3], PyFloat_AS_DOUBLE(moment.forward))
        return 1

    cdef bint _pack(self, Common common) except -1:
        """Pack the shared metrics, with numbers for stamps; False if they are not supported."""
        cdef Py_ssize_t i, k
        values = self.dicts.values_of(<PyObject *>common.metrics)
        if values is None:
            return False
        stamped = {}
        for i in range(self.dicts.n):
            for k in range(4):
                if self.stamps[k] == self.dicts.offsets[i]:
                    values[i], stamped[k] = 0.0, 2 * i
        packed = self.dicts.packed_with(values)
        if packed is None or len(stamped) != 4:
            return False
        common.packed, places = packed
        for k in range(4):
            common.stamps_at[k] = places[stamped[k]]
        return True

    cdef dict _shown_at(self, Moment moment):
        cdef Common common = moment.common
        if common.shown is None:
            common.shown = self.dicts.made(common.metrics)
            if common.shown is None:
                return None
        cdef dict out = PyDict_Copy(common.shown)
        PyDict_SetItem(out, <object>PyTuple_GET_ITEM(self.keys, 0), moment.latest)
        PyDict_SetItem(out, <object>PyTuple_GET_ITEM(self.keys, 1), moment.latest)
        PyDict_SetItem(out, <object>PyTuple_GET_ITEM(self.keys, 2), moment.execute)
        PyDict_SetItem(out, <object>PyTuple_GET_ITEM(self.keys, 3), moment.forward)
        return out

# A save op that is called with tensors like the last time's, of which only the addresses are different.
cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int32_t, int64_t, uint64_t, uint8_t
from libc.stdlib cimport getenv
from libc.string cimport memcmp, memcpy, memset, strcmp, strcpy, strlen
from fd_postproc.headers.dlpack cimport (
    FDL_BOOL, FDL_CAPSULE, FDL_CPU, FDL_CUDA, FDL_FLOAT, FDL_INT, FDL_MANAGED, FDL_PINNED, fdl_exchange,
    fdl_is_contiguous, fdl_tensor,
)
from fd_postproc.headers.pack cimport fdp_fault
from fd_postproc.headers.sysv cimport fds_forks

cdef enum:
    _MOST_DIMENSIONS = 2
    _VARIABLES = 4
    _MOST_TEXT = 64
    _MOST_KEPT = 8      # of one op: FastDeploy's batches come in a few sizes

# What must be the same: a tensor without its address.
ctypedef struct _likeness:
    int32_t device_type     # FDL_CUDA, or FDL_CPU for everything in host memory
    int32_t device_id
    int32_t ndim
    uint8_t code
    uint8_t bits
    int64_t shape[_MOST_DIMENSIONS]
    int64_t strides[_MOST_DIMENSIONS]

cdef const char **_variables = [
    "INFERENCE_MSG_QUEUE_ID", "INFERENCE_MSG_ID", "FD_POSTPROC_DIALECT", "FD_POSTPROC_PEER"]


cdef bint _take(const fdl_tensor *t, _likeness *like, void **data) noexcept:
    """From what DLPack's exchange API reports; False: such a tensor is not remembered."""
    cdef int k
    cdef int64_t stride = 1
    if t.ndim > _MOST_DIMENSIONS or t.lanes != 1:
        return False
    memset(like, 0, sizeof(_likeness))
    if t.device_type == FDL_CPU or t.device_type == FDL_PINNED:
        like.device_type = FDL_CPU
        if not fdl_is_contiguous(t):
            return False
    elif t.device_type == FDL_CUDA or t.device_type == FDL_MANAGED:
        like.device_type = FDL_CUDA
        like.device_id = t.device_id
    else:
        return False
    like.ndim = t.ndim
    like.code, like.bits = t.code, t.bits
    for k in range(t.ndim - 1, -1, -1):
        like.shape[k] = t.shape[k]
        if like.device_type == FDL_CUDA:
            like.strides[k] = stride if t.strides == NULL else t.strides[k]
        stride *= t.shape[k]
    data[0] = <uint8_t *>t.data + t.byte_offset
    return True


cdef bint _take_view(const Py_buffer *view, _likeness *like, void **data) noexcept:
    """From what the buffer protocol reports."""
    cdef char kind
    cdef int k
    if view.format == NULL or view.format[1] != 0 or view.ndim > _MOST_DIMENSIONS:
        return False
    kind = view.format[0]
    if kind not in (c"l", c"i", c"f", c"?") or not PyBuffer_IsContiguous(view, c"C"):
        return False
    memset(like, 0, sizeof(_likeness))
    like.device_type = FDL_CPU
    like.ndim = view.ndim
    like.code = FDL_FLOAT if kind == c"f" else FDL_BOOL if kind == c"?" else FDL_INT
    like.bits = <uint8_t>(8 * view.itemsize)
    for k in range(view.ndim):
        like.shape[k] = view.shape[k]
    data[0] = view.buf
    return True


cdef fdl_exchange *_exchange_of(kind) except? NULL:
    """The functions that a type of tensors offers, if it offers any."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None or not PyCapsule_IsValid(capsule, FDL_CAPSULE):
        return NULL
    cdef fdl_exchange *exchange = <fdl_exchange *>PyCapsule_GetPointer(capsule, FDL_CAPSULE)
    return exchange if exchange.major == 1 else NULL


cdef bint _see(object tensor, fdl_exchange *exchange, _likeness *like, void **data) except -1:
    """Examine a tensor: through its type's functions, or as a buffer.  The memory is the tensor's."""
    cdef fdl_tensor t
    cdef Py_buffer view
    cdef bint good
    if exchange != NULL:
        exchange.look(<PyObject *>tensor, &t)
        return _take(&t, like, data)
    PyObject_GetBuffer(tensor, &view, PyBUF_STRIDES | PyBUF_FORMAT)
    good = _take_view(&view, like, data)
    PyBuffer_Release(&view)
    return good


cdef bint _same_text(const char *text, const char *kept, bint is_set) noexcept:
    return (text != NULL) == is_set and (not is_set or strcmp(text, kept) == 0)


@cython.final
cdef class _Kept:
    """One save: its job, and what its tensors and the environment were like."""

    cdef DeviceJob job
    cdef Lane lane
    cdef object layout
    cdef int flag
    cdef bint skip_prefill
    cdef int32_t stop_word      # of the header; its value if the worker continues
    cdef int32_t goes_on
    cdef fdr_job template
    cdef int n                  # tensors, and the flag behind them
    cdef int places[11]
    cdef int rows_of[11]        # 0 to 2: ids, scores, ranks, of which the rows may be others; -1
    cdef _likeness likenesses[11]
    cdef fdl_exchange *exchanges[11]
    cdef list types
    cdef int first_on_device
    cdef bint is_set[_VARIABLES]
    cdef char texts[_VARIABLES][_MOST_TEXT]

    cdef bint is_like(self, dict given, not_need_stop, layout, int flag, bint skip_prefill, fdr_job *job,
                      bint *goes_on) except -1:
        """Whether it is the same save, except for the addresses, which are put into *job."""
        cdef fdk_array *arrays = &job.kernel.tokens
        cdef void *data[11]
        cdef int64_t rows[3]
        cdef int k
        if layout is not self.layout or flag != self.flag or skip_prefill != self.skip_prefill:
            return False
        for k in range(_VARIABLES):
            if not _same_text(getenv(_variables[k]), self.texts[k], self.is_set[k]):
                return False
        memset(rows, 0, sizeof(rows))
        k = 0
        for tensor in given.values():
            if not self.has(tensor, k, &data[k], rows):
                return False
            k += 1
        if isinstance(not_need_stop, bool):
            goes_on[0] = not_need_stop
        elif self.has(not_need_stop, k, &data[k], rows):
            goes_on[0] = (<uint8_t *>data[k])[0] != 0
        else:
            return False
        if rows[0] != rows[1]:
            return False
        memcpy(job, &self.template, sizeof(fdr_job))
        if rows[0] != 0:
            job.kernel.terms.rows = min(min(rows[0], rows[2]), 0x7FFFFFFF)
        for k in range(self.n):
            arrays[self.places[k]].data = data[k]
        return True

    cdef inline bint has(self, tensor, int k, void **data, int64_t *rows) except -1:
        """Whether tensor k is alike, and its address.  Logprobs on the device may have other rows."""
        cdef _likeness like
        cdef int64_t found
        if type(tensor) is not self.types[k] or not _see(tensor, self.exchanges[k], &like, data):
            return False
        if self.rows_of[k] >= 0:
            found = rows[self.rows_of[k]] = like.shape[0]
            if found > 1:  # one row has no distance to the next
                like.shape[0] = self.likenesses[k].shape[0]
        return memcmp(&like, &self.likenesses[k], sizeof(_likeness)) == 0

    cdef bint keep(self, dict given, not_need_stop, dict inputs) except -1:
        """Examine the tensors; False: they are not of a kind that can be remembered."""
        cdef _likeness *like
        cdef void *data = NULL
        cdef int k = 0
        cdef const char *text
        self.types = []
        self.first_on_device = -1
        self.n = len(given)
        for role, tensor in [*given.items(), (None, not_need_stop)]:
            self.types.append(type(tensor))
            self.rows_of[k] = -1
            if role is None and isinstance(tensor, bool):
                return True
            self.exchanges[k] = NULL if PyObject_CheckBuffer(tensor) else _exchange_of(type(tensor))
            if self.exchanges[k] == NULL and not PyObject_CheckBuffer(tensor):
                return False
            like = &self.likenesses[k]
            if not _see(tensor, self.exchanges[k], like, &data):
                return False
            if role is None:
                return (like.device_type == FDL_CPU and like.code == FDL_BOOL and like.bits == 8
                        and (like.ndim == 0 or like.shape[0] > 0))
            self.places[k] = _PLACES[role]
            if like.device_type == FDL_CUDA:
                if self.exchanges[k].current_stream == NULL:
                    return False
                if self.first_on_device < 0:
                    self.first_on_device = k
                elif self.exchanges[k] != self.exchanges[self.first_on_device]:
                    return False
                if role in _WHOLE and like.shape[0] > 1 and like.ndim == (1 if role == "ranks" else 2):
                    self.rows_of[k] = _WHOLE.index(role)
            elif self.template.sizes[self.places[k]] < 0 or inputs[role].copied:
                return False
            k += 1

    cdef int hold_rows(self) noexcept:
        """Rows may be others only if all three tensors that have them are on the device."""
        cdef int k, n = 0
        for k in range(self.n):
            n += self.rows_of[k] >= 0
        for k in range(self.n):
            if n != 3:
                self.rows_of[k] = -1
        return 0

    cdef bint keep_environment(self) noexcept:
        cdef const char *text
        cdef int k
        for k in range(_VARIABLES):
            text = getenv(_variables[k])
            self.is_set[k] = text != NULL
            if text != NULL:
                if strlen(text) >= _MOST_TEXT:
                    return False
                strcpy(self.texts[k], text)
        return True


@cython.final
cdef class Again:
    """Saves that are like the last one of their op.

    Getting the tensors' shapes as Python objects, checking them against each other, and reading the
    environment take most of an op's time.  The outcome is kept, together with what it depended on; if all of
    that is the same in the next call of the op, only the addresses are needed.

    Parameters
    ----------
    records : deque
        As for `DeviceJob.save`.
    troubles : tuple of list
        While one of them is not empty, or the sender thread has an error to report, nothing is done.
    """

    cdef dict kept
    cdef object records
    cdef tuple troubles

    def __init__(self, records, troubles):
        self.records, self.troubles, self.kept = records, troubles, {}

    def __call__(self, str op, dict given, not_need_stop, layout, int flag, bint skip_prefill):
        """Save, if it is like the last time: whether it was.

        Raises
        ------
        CudaError
            As for `DeviceJob.save`.
        """
        cdef fdr_job job
        cdef bint goes_on = False
        cdef void *stream = NULL
        cdef fdl_exchange *exchange
        cdef uint64_t done
        cdef _Kept kept
        cdef list all_kept = <list>self.kept.get(op)
        if (all_kept is None or _ring == NULL or _forks != fds_forks or fdr_is_broken(_ring)
                or fdr_has_error(_ring)):
            return False
        for trouble in self.troubles:
            if trouble:
                return False
        for kept in all_kept:
            if kept.is_like(given, not_need_stop, layout, flag, skip_prefill, &job, &goes_on):
                break
        else:
            return False
        exchange = kept.exchanges[kept.first_on_device]
        exchange.current_stream(FDL_CUDA, kept.job.device, &stream)
        job.stream = <fdv_stream>stream
        if _ready:
            _choose_stream(&job)
        job.kernel.header[kept.stop_word] = kept.goes_on if goes_on else -kept.goes_on
        if _launch(&job, kept.job, kept.lane, self.records, (given, not_need_stop)) is not None:
            return False  # refused: the full path finds the error text
        done = fdr_finished(_ring)
        if not fdr_has_error(_ring) and not fdr_is_broken(_ring):  # error texts need the records
            while self.records and <uint64_t>(<tuple>self.records[0])[0] < done:
                self.records.popleft()
        return True

    def keep(self, DeviceJob job not None, Lane lane not None, dict given, not_need_stop, layout, int flag,
             bint skip_prefill, int32_t batch, int32_t message_id):
        """Remember a save that was made."""
        cdef _Kept kept = _Kept()
        cdef fdp_fault fault
        cdef list all_kept
        kept.lane, kept.layout, kept.flag, kept.skip_prefill = lane, layout, flag, skip_prefill
        if job.flag_address != 0 or job.prepare(&kept.template, lane, batch, message_id, flag, skip_prefill,
                                                &fault) < 0:
            return
        kept.stop_word = kept.template.kernel.stop_word
        kept.goes_on = message_id
        if kept.stop_word >= 0 and kept.keep_environment() and kept.keep(given, not_need_stop, job.inputs):
            kept.job = job.bare()
            kept.hold_rows()
            all_kept = self.kept.setdefault(job.op, [])
            all_kept.insert(0, kept)
            del all_kept[_MOST_KEPT:]

    def sizes(self):
        """dict: how many saves are kept of each op."""
        return {op: len(kept) for op, kept in self.kept.items()}

    def forget(self):
        """Forget all saves: a queue is gone."""
        self.kept.clear()

# One save op's tensors, and how they get to the kernel.
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.unistd cimport usleep
from fd_postproc.headers.counter cimport fdc_add
from fd_postproc.headers.pack cimport fdp_channel, fdp_fault, fdp_source
from fd_postproc.headers.sysv cimport fds_now
from fd_postproc.headers.wire cimport FDW_LEGACY, fdw_geometry_of

cdef int64_t _CAPTURE_NS = 10_000_000_000  # a save that a capture forbids is retried for this long
cdef dict _TYPES = {"int64": FDK_INT64, "int32": FDK_INT32, "float32": FDK_FLOAT32}
cdef tuple _TABLES = ("tokens", "ids", "scores")  # roles with rows and columns; others: one number per row
cdef tuple _WHOLE = ("ids", "scores", "ranks")    # roles whose rows are not requests
cdef dict _PLACES = {role: place for place, role in enumerate(ROLES)}


cdef inline uint64_t _mixed(uint64_t of, int64_t number) noexcept:
    return of * 1000003 + <uint64_t>number


@cython.final
@cython.no_gc
cdef class Kept:
    """Room for a message of the kernel that is not sent, but compared with the CPU's.

    Attributes
    ----------
    payload : bytes or None
        The message, once its save is finished; None if the kernel made none.
    """

    cdef fdr_kept *c

    def __cinit__(self, Lane lane not None):
        self.c = <fdr_kept *>malloc(sizeof(fdr_kept) + lane.lane.queue.capacity)
        if self.c == NULL:
            raise MemoryError
        self.c.length = -1

    def __dealloc__(self):
        free(self.c)

    @property
    def payload(self):
        return None if self.c.length < 0 else PyBytes_FromStringAndSize(<char *>self.c.payload, self.c.length)


@cython.final
cdef class DeviceJob:
    """A save op's tensors, at least one of them on a CUDA device.

    Parameters
    ----------
    op : str
    inputs : dict
        HostInput or DeviceInput of each role; their sizes match.
    cols, width, rows : int
        Columns of the logprobs, columns of the sampled tokens, logprob rows.
    names : dict
        The op's argument for each role, for error texts.
    flag_address : int, optional
        Where not_need_stop is, if that is on the device.

    Raises
    ------
    NotForKernel
        If tensors are on different devices, or a tensor's strides are not those of rows and columns, which
        the kernel needs.
    CudaError
        If CUDA cannot be used here.
    """

    cdef readonly str op
    cdef readonly dict inputs
    cdef readonly list device_inputs
    cdef readonly int device
    cdef readonly int32_t cols
    cdef readonly int64_t width
    cdef readonly uint64_t forms  # differs where op, columns, types, strides or places of tensors do
    cdef int64_t rows
    cdef int op_number
    cdef fdr_gpu *gpu
    cdef uintptr_t flag_address
    cdef fdk_array arrays[10]
    cdef int64_t host_each[10]  # of those in host memory: bytes a request, ...
    cdef int64_t host_all[10]   # ... or in all; both are -1 of others

    def __init__(self, str op, dict inputs, int32_t cols, int64_t width, int64_t rows, dict names,
                 flag_address=0):
        cdef fdk_array *array
        self.op = op
        self.op_number = _OP_NUMBERS[op]
        self.inputs = inputs
        self.cols, self.width, self.rows = cols, width, rows
        self.flag_address = flag_address
        _require()
        self.device_inputs = [value for value in inputs.values() if not isinstance(value, HostInput)]
        self.device = self._common_device(names)
        self.gpu = _gpu(self.device)
        self.forms = 2 * self.device + (flag_address != 0)
        self.forms = _mixed(_mixed(_mixed(self.forms, self.op_number), width), cols)
        memset(self.arrays, 0, sizeof(self.arrays))
        memset(self.host_each, -1, sizeof(self.host_each))
        memset(self.host_all, -1, sizeof(self.host_all))
        for role, value in inputs.items():
            array = &self.arrays[<int>_PLACES[role]]
            if isinstance(value, HostInput):
                self._add_host(array, role, value)
                self.forms += 4
            else:
                array.data = <const void *><uintptr_t>value.address
                array.row, array.col = _steps(value, role in _TABLES, names[role])
                array.type = _TYPES[value.dtype]
            self.forms = _mixed(_mixed(self.forms + array.type, array.row), array.col)

    cdef int _add_host(self, fdk_array *array, str role, value) except -1:
        cdef int place = _PLACES[role]
        cdef int item = 8 if ROLES[role] == "int64" else 4
        array.row = value.shape[1] if role in _TABLES and len(value.shape) == 2 else 1
        array.col = 1
        array.type = _TYPES[ROLES[role]]
        array.data = <const void *><uintptr_t>value.address
        if role in _WHOLE:
            self.host_all[place] = value.size * item
        else:
            self.host_each[place] = array.row * item
        return 0

    cdef int _common_device(self, dict names) except -1:
        cdef int found = -1, ordinal = 0
        cdef fdv_result code
        cdef str first = ""
        for role, value in self.inputs.items():
            if isinstance(value, HostInput):
                continue
            ordinal = value.device
            if ordinal < 0:
                if value.size == 0:
                    continue
                code = _driver.PointerGetAttribute(&ordinal, FDV_POINTER_ORDINAL, <fdv_address>value.address)
                if code != 0:
                    raise _failed(f"cuPointerGetAttribute of {names[role]}", code)
            if found >= 0 and ordinal != found:
                raise NotForKernel(
                    f"{names[role]} is on CUDA device {ordinal}, but {first} on CUDA device {found}; "
                    "the tensors of one call must be on one device, or in host memory")
            if found < 0:
                found, first = ordinal, names[role]
        return max(found, 0)

    def stream(self):
        """int: the current stream of the tensors' framework.

        Raises
        ------
        NotForKernel
            If they belong to several frameworks whose streams are not the same.
        """
        cdef uintptr_t handle = self.device_inputs[0].stream()
        cdef str framework = self.device_inputs[0].framework
        for value in self.device_inputs:
            if value.framework != framework and value.stream() != handle:
                raise NotForKernel(
                    f"tensors of {framework} and {value.framework}, whose current streams differ: make them "
                    "the same, or give all tensors to one framework (DLPack)")
        return handle

    def save(self, Lane lane not None, int32_t batch, *, int32_t stop_flag, int32_t flag, bint skip_prefill,
             uintptr_t stream, records, keep, Kept kept=None):
        """Launch the kernel; the message is sent later, or put into `kept`.

        ``(ticket, self, lane, keep)`` is appended to `records`; that happens here so that no signal handler's
        exception can come between it and the launch.  The ticket is -1 if the driver lost track of the
        launch.

        Returns
        -------
        None or Refusal
            If the batch or the columns do not fit; nothing was saved.

        Raises
        ------
        NotForKernel
            If the kernel has no room for the batch.
        CudaError
            If the driver refuses.
        """
        cdef fdp_fault fault
        cdef fdr_job job
        cdef int64_t most
        _require()
        if _ring == NULL:
            raise AssertionError("the ring was not started")
        if self.prepare(&job, lane, batch, stop_flag, flag, skip_prefill, &fault) < 0:
            return _refusal(&fault)
        most = fdr_most_requests(&job)
        if 0 <= most < batch:
            raise NotForKernel(
                f"a batch of {batch} is more than the {most} requests that the save kernel has room for; "
                "use host tensors (.cpu())")
        job.stream = <fdv_stream>stream
        job.kept = NULL if kept is None else kept.c
        return _launch(&job, self, lane, records, keep)

    cdef int prepare(self, fdr_job *job, Lane lane, int32_t batch, int32_t stop_flag, int32_t flag,
                     bint skip_prefill, fdp_fault *fault) noexcept:
        """Fill in all of a job but its stream.  0, or -1 with the reason in *fault."""
        cdef fdp_source s
        memset(&s, 0, sizeof(s))
        s.op = self.op_number
        s.batch = batch
        s.cols = self.cols
        s.width = self.width
        s.rows = self.rows
        s.stop_flag = stop_flag
        s.flag = flag
        s.skip_prefill = skip_prefill
        s.depth = fdw_geometry_of(&lane.c_layout, fdp_channel(s.op), FDW_LEGACY, 0).depth
        memset(job, 0, sizeof(fdr_job))
        if fdk_prepare(&job.kernel, &s, &lane.c_layout, lane.dialect_number, 0, lane.sender, lane.service,
                       lane.lane.queue.capacity, fault) < 0:
            return -1
        job.kernel.not_need_stop = <const uint8_t *>self.flag_address
        job.gpu = self.gpu
        job.lane = &lane.lane
        self._place(job, batch)
        return 0

    cdef int _place(self, fdr_job *job, int32_t batch) noexcept:
        """Say where the tensors are, and how large those in host memory."""
        cdef fdk_array *to = &job.kernel.tokens
        cdef int k
        for k in range(10):
            to[k] = self.arrays[k]
            job.sizes[k] = self.host_all[k] if self.host_each[k] < 0 else batch * self.host_each[k]
        return 0


cdef object _launch(fdr_job *job, DeviceJob owner, Lane lane, records, keep):
    """Save; see `DeviceJob.save`."""
    cdef fdr_error error
    cdef uint64_t ticket = 0
    cdef int answer
    cdef int64_t captured_since = 0
    cdef bint waited = False
    while True:
        with nogil:
            answer = fdr_save(_ring, job, &ticket, &error, _SLICE_NS)
        if answer == FDR_SAVED:
            records.append((ticket, owner, lane, keep))
            return None
        if answer == FDR_FAILED and fdv_is_capture(error.driver) and not fdr_is_broken(_ring):
            # The legacy default stream cannot be used while another stream of the device is captured.
            if captured_since == 0:
                captured_since = fds_now()
            if fds_now() - captured_since > _CAPTURE_NS:
                break
            with nogil:
                usleep(1000)
        elif answer == FDR_WAITING:
            if not waited:
                waited = True
                fdc_add(&_ring.held, 1)
        elif answer != FDR_GROWING:
            break
        PyErr_CheckSignals()
        if not _runs():
            raise CudaError("a signal handler forked while this save waited: the parent saves it")
    if answer == FDR_UNFIT:
        return _refusal(&job.fault)
    if answer == FDR_CAPTURED:
        raise CudaError("the stream is being captured into a CUDA graph; call save ops outside of graphs",
                        FDV_CAPTURE_UNSUPPORTED)
    if answer == FDR_STOPPED:
        raise CudaError("the interpreter is exiting: nothing is saved any more")
    if answer == FDR_BROKEN:
        error = _ring.failure
    elif fdr_is_broken(_ring):
        records.append((-1, owner, lane, keep))
    raise _failed((<bytes>error.call).decode(), error.driver)


def _steps(value, bint is_table, str name):
    """Elements from one row to the next, and from one column to the next.

    A tensor with one number per row may have any dimensions that a single stride covers.
    """
    shape, strides = value.shape, value.strides
    if is_table and len(shape) == 2:
        return strides
    step = extent = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size == 1:
            continue
        if extent != 1 and stride != step * extent:
            raise ValueError(
                f"{name} has shape {list(shape)} and strides {list(strides)}, which a single stride does not "
                "cover; use .contiguous()")
        if extent == 1:
            step = stride
        extent *= size
    return step, 1

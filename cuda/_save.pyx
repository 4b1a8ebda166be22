# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True, auto_pickle=False, autotestdict=False
"""Messages from tensors on a CUDA device: the driver, the ring of buffers, and the sender thread behind it.

For `fd_postproc.ops`, which turns what is told here into exceptions and words.  There is one ring in a
process, made at the first save: messages leave in the order of the saves, whatever their queue and device.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals

from fd_postproc._pack cimport fdp_channel, fdp_fault, fdp_source
from fd_postproc._counter cimport fdc_add, fdc_read
from fd_postproc._sysv cimport fds_forks, fds_now, fds_watch_forks
from fd_postproc._wire cimport FDW_COMPACT, FDW_LEGACY, fdw_geometry_of, fdw_layout

import os

from fd_postproc import queues
from fd_postproc._core import _CHANNEL_NUMBERS, _DIALECT_NUMBERS, _OP_NUMBERS, _REASONS, HostInput
from fd_postproc.errors import CudaError
from fd_postproc.tensors import ROLES

cdef extern from "driver.h" nogil:
    ctypedef int fdv_result
    ctypedef int fdv_device
    ctypedef void *fdv_context
    ctypedef void *fdv_module
    ctypedef void *fdv_function
    ctypedef void *fdv_stream
    ctypedef uint64_t fdv_address

    enum:
        FDV_OLDEST_DRIVER
        FDV_OLDEST_MAJOR
        FDV_CAPABILITY_MAJOR
        FDV_CAPABILITY_MINOR
        FDV_POINTER_ORDINAL

    ctypedef struct fdv_driver:
        fdv_result (*Init)(unsigned flags)
        fdv_result (*DriverGetVersion)(int *version)
        fdv_result (*GetErrorName)(fdv_result error, const char **name)
        fdv_result (*GetErrorString)(fdv_result error, const char **text)
        fdv_result (*DeviceGetCount)(int *count)
        fdv_result (*DeviceGet)(fdv_device *device, int ordinal)
        fdv_result (*DeviceGetAttribute)(int *value, int attribute, fdv_device device)
        fdv_result (*PrimaryCtxRetain)(fdv_context *context, fdv_device device)
        fdv_result (*CtxPushCurrent)(fdv_context context)
        fdv_result (*CtxPopCurrent)(fdv_context *context)
        fdv_result (*ModuleLoadData)(fdv_module *module, const void *image)
        fdv_result (*ModuleGetFunction)(fdv_function *function, fdv_module module, const char *name)
        fdv_result (*PointerGetAttribute)(void *value, int attribute, fdv_address address)
        fdv_result (*StreamIsCapturing)(fdv_stream stream, int *status)

    const char *fdv_open(fdv_driver *driver, const char *library, int *symbol)

cdef extern from "fdk_ptx.h":
    const char *fdk_ptx

cdef extern from "ring.h" nogil:
    enum:
        FDK_INT64
        FDK_INT32
        FDK_FLOAT32
        FDK_THREADS
        FDK_MOST_SHARED
        FDR_MOST_SLOTS
        FDR_DRIVER
        FDR_QUEUE
        FDR_TOO_BIG
        FDR_LAYOUT
        FDR_REFUSED
        FDR_WIDE
        FDR_SIZE
        FDR_FAILED
        FDR_SAVED
        FDR_WAITING
        FDR_BROKEN
        FDR_STOPPED

    ctypedef struct fdk_array:
        const void *data
        int64_t row
        int64_t col
        int64_t type

    ctypedef struct fdk_job:
        fdk_array tokens
        fdk_array ids
        fdk_array scores
        fdk_array ranks
        fdk_array counts
        fdk_array offsets
        fdk_array decoded
        fdk_array prompts
        fdk_array preempted
        fdk_array steps
        const uint8_t *not_need_stop

    int fdk_prepare(fdk_job *job, const fdp_source *s, const fdw_layout *layout, int dialect, uint64_t seq,
                    uint64_t sender, int64_t capacity, fdp_fault *fault)
    int64_t fdk_capacity(const fdw_layout *layout, int channel, int dialect)
    int64_t fdk_shared_bytes(int64_t batch, int32_t threads)

    ctypedef struct fdr_lane:
        int msqid
        int compact
        int64_t stock_size
        int64_t capacity
        int64_t frames, messages, bytes, fragments, waits, waited_ns
        int64_t waiting_since
        int64_t lost

    ctypedef struct fdr_gpu:
        int ordinal
        fdv_context context
        fdv_function kernel

    ctypedef struct fdr_error:
        uint64_t ticket
        int32_t kind
        int32_t status
        int64_t index
        int64_t value
        int64_t bound
        const char *call

    ctypedef struct fdr_ring:
        int n
        uint64_t issued
        uint64_t finished
        int broken
        fdr_error failure
        int64_t held, held_ns

    ctypedef struct fdr_input:
        const void *data "from"
        int64_t size
        void *field

    ctypedef struct fdr_job:
        const fdr_gpu *gpu
        fdv_stream stream
        fdr_lane *lane
        fdk_job kernel
        int n_inputs
        fdr_input *inputs

    int fdr_start(fdr_ring *r, const fdv_driver *driver, int n)
    int fdr_drain(fdr_ring *r, int64_t deadline)
    int64_t fdr_stop(fdr_ring *r, int64_t deadline)
    int fdr_save(fdr_ring *r, fdr_job *job, uint64_t *ticket, fdr_error *error, int64_t slice)
    int fdr_take_error(fdr_ring *r, fdr_error *error, int64_t *more)

if fds_watch_forks() != 0:
    raise MemoryError

cdef int64_t _SLICE_NS = 50_000_000  # a call that waits looks for signals this often

cdef dict _REASON_NAMES = _REASONS
cdef dict _TYPES = {"int64": FDK_INT64, "int32": FDK_INT32, "float32": FDK_FLOAT32}
cdef tuple _TABLES = ("tokens", "ids", "scores")  # roles with rows and columns; others have one number a row
cdef tuple _WHOLE = ("ids", "scores", "ranks")    # roles whose rows are not requests
cdef dict _PLACES = {role: place for place, role in enumerate(ROLES)}

# ---- The driver ------------------------------------------------------------------------------------------

cdef fdv_driver _driver
cdef str _NO_DRIVER = "no CUDA driver"
cdef str _obstacle = None    # why the driver cannot be used; "": it can; None: not asked yet
cdef int _forks = 0         # of the process's line when it was asked
cdef dict _gpus = {}         # ordinal -> address of its fdr_gpu, which lives as long as the process
cdef fdr_ring *_ring = NULL


cdef str _error_text(fdv_result code):
    cdef const char *name = NULL
    cdef const char *text = NULL
    if _driver.GetErrorName(code, &name) != 0 or _driver.GetErrorString(code, &text) != 0 or name == NULL:
        return f"error {code}"
    return f"{name.decode()} ({code}): {text.decode()}"


cdef object _failed(str call, fdv_result code):
    return CudaError(f"{call}: {_error_text(code)}", code)


cdef str _look_for_driver():
    cdef int symbol = 0, version = 0, count = 0
    cdef fdv_result code
    cdef const char *missing = fdv_open(&_driver, b"libcuda.so.1", &symbol)
    if missing != NULL and symbol:
        return f"the CUDA driver has no {missing.decode()}: it is too old; CUDA 11.8 (driver 520) is needed"
    if missing != NULL:
        return f"{_NO_DRIVER}: {missing.decode()}"
    code = _driver.DriverGetVersion(&version)
    if code != 0:
        return f"cuDriverGetVersion: {_error_text(code)}"
    if version < FDV_OLDEST_DRIVER:
        return (f"the driver is for CUDA {version // 1000}.{version % 1000 // 10}; the save kernels need "
                "CUDA 11.8 (driver 520) or newer: update the driver")
    code = _driver.Init(0)
    if code == 0:
        code = _driver.DeviceGetCount(&count)
    if code == 0 and count == 0:
        code = 100
    if code == 100:
        return "a CUDA driver but no device: is CUDA_VISIBLE_DEVICES empty, or the container without --gpus?"
    return "" if code == 0 else f"cuInit: {_error_text(code)}"


def obstacle():
    """str: why no message can be made on a CUDA device in this process; empty if it can.

    Asking for the first time initialises the driver.
    """
    global _obstacle, _forks
    if _obstacle is not None and _forks != fds_forks:
        if _obstacle == "":
            return ("this process was forked from one that had initialised the CUDA driver, which CUDA does "
                    "not allow; start it with 'spawn'")
        _obstacle = None
    if _obstacle is None or _obstacle.startswith(_NO_DRIVER):  # which somebody may load later
        _forks = fds_forks
        _obstacle = _look_for_driver()
    return _obstacle


def driver_version():
    """(int, int) or None: CUDA version of the driver; None without one.  Initialises nothing."""
    cdef fdv_driver driver
    cdef int symbol = 0, version = 0
    memset(&driver, 0, sizeof(driver))
    fdv_open(&driver, b"libcuda.so.1", &symbol)
    if driver.DriverGetVersion == NULL or driver.DriverGetVersion(&version) != 0:
        return None
    return version // 1000, version % 1000 // 10


cdef int _require() except -1:
    cdef str why = obstacle()
    if why:
        raise CudaError(f"tensors on a CUDA device cannot be saved here: {why}")
    return 0


cdef const fdr_gpu *_gpu(int ordinal) except NULL:
    """The device with its primary context, which the frameworks use, too, and the kernel loaded into it."""
    known = _gpus.get(ordinal)
    if known is not None:
        return <const fdr_gpu *><uintptr_t>known
    cdef fdv_device device = 0
    cdef fdv_context context = NULL
    cdef fdv_module module = NULL
    cdef fdv_function kernel = NULL
    cdef int major = 0, minor = 0
    cdef fdv_result code = _driver.DeviceGet(&device, ordinal)
    if code != 0:
        raise _failed(f"cuDeviceGet of device {ordinal}", code)
    code = _driver.DeviceGetAttribute(&major, FDV_CAPABILITY_MAJOR, device)
    if code == 0:
        code = _driver.DeviceGetAttribute(&minor, FDV_CAPABILITY_MINOR, device)
    if code != 0:
        raise _failed("cuDeviceGetAttribute", code)
    if major < FDV_OLDEST_MAJOR:
        raise CudaError(
            f"CUDA device {ordinal} has compute capability {major}.{minor}; the save kernels need 7.0")
    code = _driver.PrimaryCtxRetain(&context, device)
    if code != 0:
        raise _failed("cuDevicePrimaryCtxRetain", code)
    code = _driver.CtxPushCurrent(context)
    if code != 0:
        raise _failed("cuCtxPushCurrent", code)
    cdef str call = "cuModuleLoadData"
    code = _driver.ModuleLoadData(&module, fdk_ptx)
    if code == 0:
        call = "cuModuleGetFunction"
        code = _driver.ModuleGetFunction(&kernel, module, b"fdk_pack")
    _driver.CtxPopCurrent(&context)
    if code != 0:
        raise _failed(call, code)
    cdef fdr_gpu *gpu = <fdr_gpu *>calloc(1, sizeof(fdr_gpu))
    if gpu == NULL:
        raise MemoryError
    gpu.ordinal = ordinal
    gpu.context = context
    gpu.kernel = kernel
    _gpus[ordinal] = <uintptr_t>gpu
    return gpu


# ---- The ring --------------------------------------------------------------------------------------------

def start(int slots):
    """Start the sender thread, with so many buffers; nothing if it runs.

    Raises
    ------
    CudaError
        If CUDA cannot be used here.
    """
    global _ring
    _require()
    if _ring != NULL:
        return
    cdef fdr_ring *ring = <fdr_ring *>calloc(1, sizeof(fdr_ring))
    if ring == NULL:
        raise MemoryError
    cdef int status = fdr_start(ring, &_driver, slots)
    if status != 0:
        free(ring)
        raise OSError(status, f"starting the sender thread: {os.strerror(status)}")
    _ring = ring


cdef bint _runs():
    return _ring != NULL and _forks == fds_forks


def finished():
    """int: saves that are done with: sent, or not to be sent any more."""
    return __atomic_load(&_ring.finished) if _runs() else 0


def pending():
    """int: saves that are not yet in their queue.  0 in a child of the process that made them."""
    return <int64_t>(_ring.issued - __atomic_load(&_ring.finished)) if _runs() else 0


cdef extern from *:
    """
    static inline uint64_t fdr_load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    """
    uint64_t __atomic_load "fdr_load"(const uint64_t *p) nogil


def drain(int64_t deadline):
    """Wait until all saves so far are in their queues.

    Parameters
    ----------
    deadline : int
        Monotonic ns; negative: without end.  Signals run their handlers meanwhile.

    Returns
    -------
    bool
        Whether they are.
    """
    cdef int done = 0
    cdef int64_t until
    if not _runs():
        return True
    while True:
        until = fds_now() + _SLICE_NS
        if 0 <= deadline < until:
            until = deadline
        with nogil:
            done = fdr_drain(_ring, until)
        if done or 0 <= deadline <= fds_now():
            return bool(done)
        PyErr_CheckSignals()


def stop(int64_t wait_ns):
    """End the sender thread, once everything is sent or after so long.  No save is possible afterwards.

    Returns
    -------
    int
        Saves that were not sent.
    """
    cdef int64_t left
    if not _runs():
        return 0
    with nogil:
        left = fdr_stop(_ring, fds_now() + wait_ns)
    return left


def broken():
    """bool: whether the driver lost track of a save: no more saves, and no tensor may be let go."""
    return _runs() and _ring.broken != 0


def held():
    """(int, float): saves that waited because all buffers were in use, and for how many seconds."""
    if not _runs():
        return 0, 0.0
    return fdc_read(&_ring.held), fdc_read(&_ring.held_ns) * 1e-9


cdef tuple _error(const fdr_error *e):
    if e.kind == FDR_DRIVER:
        return e.ticket, "driver", _failed((<bytes>e.call).decode(), e.status)
    if e.kind == FDR_QUEUE:
        return e.ticket, "queue", e.status
    if e.kind == FDR_TOO_BIG:
        return e.ticket, "too big", (e.value, e.index, e.bound)
    if e.kind == FDR_LAYOUT:
        return e.ticket, "layout", None
    if e.kind == FDR_REFUSED:
        return e.ticket, "refused", (_REASON_NAMES[e.status], e.index, e.value, e.bound)
    if e.kind == FDR_WIDE:
        return e.ticket, "refused", (_REASON_NAMES[e.status], e.index, None, 0)
    return e.ticket, "size", (e.value, e.bound)


def take_error():
    """The oldest error of the sender thread, which is forgotten then.

    Returns
    -------
    None or (int, str, object, int)
        The save's ticket; what kind of error, and its details; how many later ones were only counted.
    """
    cdef fdr_error e
    cdef int64_t more = 0
    if not _runs() or not fdr_take_error(_ring, &e, &more):
        return None
    return *_error(&e), more


@cython.final
@cython.no_gc
cdef class Lane:
    """Where messages of one channel, dialect and layout go: a queue, opened or made.

    Attributes
    ----------
    msqid, key : int
    channel, dialect : str
    layout : Layout
    """

    cdef readonly str channel
    cdef readonly str dialect
    cdef readonly object layout
    cdef readonly object key
    cdef int dialect_number
    cdef fdw_layout c_layout
    cdef fdr_lane lane
    cdef uint64_t sender

    def __init__(self, str channel, *, str dialect, layout, mode):
        cdef int number = _CHANNEL_NUMBERS[channel]
        self.channel = channel
        self.dialect = dialect
        self.dialect_number = _DIALECT_NUMBERS[dialect]
        self.layout = layout
        self.c_layout.max_batch, self.c_layout.top_k, self.c_layout.max_draft, self.c_layout.spec_batch = (
            layout.max_batch, layout.top_k, layout.max_draft, layout.spec_batch)
        self.key = queues.locate(channel)
        memset(&self.lane, 0, sizeof(self.lane))
        self.lane.msqid = queues.open_queue(self.key, mode=mode, access=0o200)
        self.lane.compact = self.dialect_number == FDW_COMPACT
        self.lane.stock_size = fdw_geometry_of(&self.c_layout, number, FDW_LEGACY, 0).size
        self.lane.capacity = fdk_capacity(&self.c_layout, number, self.dialect_number)
        self.sender = int.from_bytes(os.urandom(8), "little")

    @property
    def msqid(self):
        return self.lane.msqid

    @property
    def stats(self):
        """dict: as `fd_postproc.Sender.stats`, and ``lost``: saves whose message was not sent."""
        return {
            "frames": fdc_read(&self.lane.frames),
            "messages": fdc_read(&self.lane.messages),
            "bytes": fdc_read(&self.lane.bytes),
            "fragments": fdc_read(&self.lane.fragments),
            "waits": fdc_read(&self.lane.waits),
            "wait_seconds": fdc_read(&self.lane.waited_ns) * 1e-9,
            "lost": fdc_read(&self.lane.lost),
        }

    @property
    def waiting_seconds(self):
        """float: for how long its queue has been full; 0.0 if it is not."""
        cdef int64_t since = fdc_read(&self.lane.waiting_since)
        return (fds_now() - since) * 1e-9 if since else 0.0


@cython.final
cdef class DeviceJob:
    """A save op's tensors, at least one of them on a CUDA device, looked at once; saved as often as wanted.

    Parameters
    ----------
    op : str
    inputs : dict
        HostInput or DeviceInput of each role; their sizes fit each other.
    cols, width, rows : int
        Columns of the logprobs, columns of the sampled tokens, logprob rows.
    names : dict
        The op's argument for each role, for error texts.
    flag_address : int, optional
        Where not_need_stop is, if that is on the device.

    Raises
    ------
    ValueError
        If tensors are on different devices, or a tensor's strides are beyond a kernel that goes by rows and
        columns.
    CudaError
        If CUDA cannot be used here.
    """

    cdef readonly str op
    cdef readonly dict inputs
    cdef readonly list device_inputs
    cdef readonly int device
    cdef readonly int32_t cols
    cdef readonly int64_t width
    cdef int64_t rows
    cdef int op_number
    cdef const fdr_gpu *gpu
    cdef uintptr_t flag_address
    cdef fdk_array arrays[10]
    cdef int n_host             # tensors in host memory: which, where, and bytes a request or in all
    cdef int host_place[10]
    cdef const void *host_from[10]
    cdef int64_t host_each[10]
    cdef int64_t host_all[10]   # -1: as many as there are requests

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
        memset(self.arrays, 0, sizeof(self.arrays))
        self.n_host = 0
        for role, value in inputs.items():
            array = &self.arrays[<int>_PLACES[role]]
            if isinstance(value, HostInput):
                self._add_host(array, role, value)
            else:
                array.data = <const void *><uintptr_t>value.address
                array.row, array.col = _steps(value, role in _TABLES, names[role])
                array.type = _TYPES[value.dtype]

    cdef int _add_host(self, fdk_array *array, str role, value) except -1:
        cdef int n = self.n_host
        cdef int item = 8 if ROLES[role] == "int64" else 4
        array.row = value.shape[1] if role in _TABLES and len(value.shape) == 2 else 1
        array.col = 1
        array.type = _TYPES[ROLES[role]]
        self.host_place[n] = _PLACES[role]
        self.host_from[n] = <const void *><uintptr_t>value.address
        self.host_each[n] = array.row * item
        self.host_all[n] = value.size * item if role in _WHOLE else -1
        self.n_host += 1
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
                raise ValueError(
                    f"{names[role]} is on CUDA device {ordinal}, but {first} on CUDA device {found}; "
                    "the tensors of one call must be on one device, or in host memory")
            if found < 0:
                found, first = ordinal, names[role]
        return max(found, 0)

    def stream(self):
        """int: the current stream of the tensors' framework.

        Raises
        ------
        ValueError
            If they are of several frameworks, whose streams are not the same.
        """
        cdef uintptr_t handle = self.device_inputs[0].stream()
        cdef str framework = self.device_inputs[0].framework
        for value in self.device_inputs:
            if value.framework != framework and value.stream() != handle:
                raise ValueError(
                    f"tensors of {framework} and {value.framework}, whose current streams differ: make them "
                    "the same, or give all tensors to one framework (DLPack)")
        return handle

    def save(self, Lane lane not None, int32_t batch, *, int32_t stop_flag, int32_t flag, bint skip_prefill,
             uintptr_t stream, records, keep):
        """Launch the kernel; the message is sent later.

        ``(ticket, self, lane, keep)`` is appended to `records`, here so that no signal's exception can come
        between the launch and that.  The ticket is -1 if the launch is one that the driver lost track of.

        Returns
        -------
        None or tuple
            (reason, index, value, bound) if the batch or the columns do not fit; nothing was saved.

        Raises
        ------
        CudaError
            If the driver refuses.
        """
        cdef fdp_source s
        cdef fdp_fault fault
        cdef fdr_error error
        cdef uint64_t ticket = 0
        cdef fdr_job job
        cdef int answer, capturing = 0
        cdef bint waited = False
        _require()
        if _ring == NULL:
            raise AssertionError("the ring was not started")
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
        if fdk_prepare(&job.kernel, &s, &lane.c_layout, lane.dialect_number, 0, lane.sender,
                       lane.lane.capacity, &fault) < 0:
            return _REASON_NAMES[fault.reason], fault.index, fault.value, fault.bound
        if fdk_shared_bytes(batch, FDK_THREADS) > FDK_MOST_SHARED:
            raise ValueError(
                f"a batch of {batch} is more than the save kernel can hold; use host tensors (.cpu())")
        job.kernel.not_need_stop = <const uint8_t *>self.flag_address
        job.gpu = self.gpu
        job.stream = <fdv_stream>stream
        job.lane = &lane.lane
        self._place(&job, batch)
        answer = _driver.StreamIsCapturing(job.stream, &capturing)
        if answer != 0:
            raise _failed("cuStreamIsCapturing", answer)
        if capturing:
            raise CudaError("the stream is being captured into a CUDA graph; call save ops outside of graphs")
        while True:
            with nogil:
                answer = fdr_save(_ring, &job, &ticket, &error, _SLICE_NS)
            if answer != FDR_WAITING:
                break
            if not waited:
                waited = True
                fdc_add(&_ring.held, 1)
            PyErr_CheckSignals()
        if answer == FDR_SAVED:
            records.append((ticket, self, lane, keep))
            return None
        if answer == FDR_FAILED:
            if _ring.broken:
                records.append((-1, self, lane, keep))
            raise _failed((<bytes>error.call).decode(), error.status)
        if answer == FDR_BROKEN:
            error = _ring.failure
            raise _failed((<bytes>error.call).decode(), error.status)
        if answer == FDR_STOPPED:
            raise CudaError("the interpreter is ending: nothing is saved any more")

    cdef int _place(self, fdr_job *job, int32_t batch) noexcept:
        """Say where the tensors are; those in host memory are copied when a buffer is free."""
        cdef fdk_array *to = &job.kernel.tokens
        cdef int k
        for k in range(10):
            to[k] = self.arrays[k]
        job.n_inputs = self.n_host
        for k in range(self.n_host):
            job.inputs[k].data = self.host_from[k]
            job.inputs[k].size = self.host_all[k] if self.host_all[k] >= 0 else batch * self.host_each[k]
            job.inputs[k].field = &to[self.host_place[k]].data
        return 0


def _steps(value, bint is_table, str name):
    """Elements from a row to the next, and from a column to the next.

    A tensor with one number a row may have any dimensions that are reached with one stride.
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
                f"{name} has shape {list(shape)} and strides {list(strides)}, which no single step goes "
                "through; use .contiguous()")
        if extent == 1:
            step = stride
        extent *= size
    return step, 1

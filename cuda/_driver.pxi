# The CUDA driver: whether it can be used here, and the devices that are.

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
        FDV_NO_DEVICE
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
    ctypedef struct fdr_gpu:
        int ordinal
        fdv_context context
        fdv_function kernel

cdef fdv_driver _driver
cdef str _NO_DRIVER = "no CUDA driver"
cdef str _obstacle = None   # why the driver cannot be used; "": it can; None: not asked yet
cdef int _forks = 0         # fds_forks when it was asked
cdef dict _gpus = {}        # ordinal -> address of its fdr_gpu, which lives as long as the process


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
        code = FDV_NO_DEVICE
    if code == FDV_NO_DEVICE:
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

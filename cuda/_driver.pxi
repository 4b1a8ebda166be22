# The CUDA driver: whether it can be used here, and the devices that are.
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from fd_postproc.headers.sysv cimport fds_forks

cdef fdv_driver _driver
cdef str _NO_DRIVER = "no CUDA driver"
cdef str _obstacle = None   # why the driver cannot be used; "": it can; None: not asked yet
cdef int _forks = 0         # fds_forks when it was asked
cdef object _loading = threading.Lock()
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
    if _obstacle is None or _obstacle.startswith(_NO_DRIVER):  # a driver may be loaded later
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


cdef fdr_gpu *_gpu(int ordinal) except NULL:
    """The device with its primary context, which the frameworks use as well, and the kernel loaded into it.

    Loading takes long, and no other thread waits for it, except for the same device.
    """
    known = _gpus.get(ordinal)
    if known is not None:
        return <fdr_gpu *><uintptr_t>known
    with _loading:
        known = _gpus.get(ordinal)
        return <fdr_gpu *><uintptr_t>known if known is not None else _load(ordinal)


cdef fdr_gpu *_load(int ordinal) except NULL:
    cdef fdv_device device = 0
    cdef fdr_error error
    cdef int major = 0, minor = 0, status
    cdef fdr_gpu *gpu
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
    gpu = <fdr_gpu *>calloc(1, sizeof(fdr_gpu))
    if gpu == NULL:
        raise MemoryError
    gpu.ordinal = ordinal
    with nogil:
        status = fdr_load(&_driver, fdk_images, device, gpu, &error)
    if status < 0:
        free(gpu)
        raise _failed((<bytes>error.call).decode(), error.driver)
    _gpus[ordinal] = <uintptr_t>gpu
    return gpu


def devices_in_use():
    """list of int: devices on which this process has a primary context.  Initialises nothing.

    Empty as long as the driver has not been initialised, or if it cannot be used.
    """
    cdef fdv_driver driver
    cdef int symbol = 0, count = 0, ordinal, active = 0
    cdef unsigned flags = 0
    cdef fdv_device device = 0
    cdef list found = []
    memset(&driver, 0, sizeof(driver))
    if fdv_open(&driver, b"libcuda.so.1", &symbol) != NULL or driver.DeviceGetCount(&count) != 0:
        return found
    for ordinal in range(count):
        if (driver.DeviceGet(&device, ordinal) == 0
                and driver.PrimaryCtxGetState(device, &flags, &active) == 0 and active):
            found.append(ordinal)
    return found


def load(int ordinal):
    """Load the kernel on a device, so that the first save there does not have to.

    Raises
    ------
    CudaError
        If CUDA cannot be used here.
    """
    _require()
    _gpu(ordinal)

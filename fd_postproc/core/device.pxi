# Tensors on a CUDA device: where their numbers are.  Nothing in this file reads them or calls the driver.
cimport cython
from cpython.buffer cimport PyObject_CheckBuffer
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uintptr_t
from fd_postproc.headers.dlpack cimport (
    FDL_CAPSULE, FDL_CUDA, FDL_FLOAT, FDL_INT, FDL_MANAGED, fdl_elements, fdl_exchange, fdl_tensor,
)


@cython.final
@cython.no_gc
cdef class DeviceInput:
    """The place of a tensor's numbers on a CUDA device.

    Attributes
    ----------
    address, size : int
        Where they are for the device, and how many.
    shape, strides : tuple of int
        In elements.
    dtype : str
        ``"int64"``, ``"int32"`` or ``"float32"``.
    device : int
        Its number; -1 if only the driver knows.
    framework : str
        Whose current stream the tensor belongs to: the name of its type's package.
    """

    cdef object keep
    cdef readonly uintptr_t address
    cdef readonly tuple shape
    cdef readonly tuple strides
    cdef readonly Py_ssize_t size
    cdef readonly str dtype
    cdef readonly int device
    cdef readonly str framework
    cdef fdl_exchange *exchange

    def stream(self):
        """int: the current stream of the tensor's framework on its device; 0 is the legacy default stream."""
        cdef void *handle = NULL
        if self.exchange != NULL and self.exchange.current_stream != NULL:
            self.exchange.current_stream(FDL_CUDA, self.device, &handle)
            return <uintptr_t>handle
        return tensors.current_stream(self.keep, self.framework, self.device)


cdef dict _packages = {}


cdef str _package(kind):
    """Top-level package of a type."""
    name = _packages.get(kind)
    if name is None:
        name = _packages[kind] = kind.__module__.partition(".")[0]
    return name


cdef DeviceInput _device_input(tensor, str name, str dtype, const fdl_tensor *t):
    """Make one from what DLPack's exchange API reports."""
    cdef Py_ssize_t k
    cdef DeviceInput out = DeviceInput.__new__(DeviceInput)
    cdef str found = ({16: "int16", 32: "int32", 64: "int64"}.get(t.bits) if t.code == FDL_INT
                      else {16: "float16", 32: "float32", 64: "float64"}.get(t.bits) if t.code == FDL_FLOAT
                      else None) if t.lanes == 1 else None
    out.dtype = tensors.device_dtype(found or str(tensor.dtype), name, dtype, t.device_id)
    out.keep = tensor
    out.address = <uintptr_t>t.data + t.byte_offset
    out.device = t.device_id
    out.framework = _package(type(tensor))
    out.shape = tuple([t.shape[k] for k in range(t.ndim)])
    out.size = fdl_elements(t)
    if out.size < 0:
        raise ValueError(f"{name} has shape {list(out.shape)}: so many elements are in no memory")
    if t.strides != NULL:
        out.strides = tuple([t.strides[k] for k in range(t.ndim)])
    else:
        out.strides = tensors.contiguous_strides(out.shape)
    out.exchange = <fdl_exchange *>PyCapsule_GetPointer(
        type(tensor).__dlpack_c_exchange_api__, FDL_CAPSULE)
    return out


def tensor_input(tensor, str name, str dtype):
    """Find a tensor's numbers in host memory, or on a CUDA device.

    Parameters
    ----------
    tensor, name, dtype
        As for `host_input`.  On a device, integers may be int64 or int32 whatever `dtype`, with any strides;
        nothing is copied.

    Returns
    -------
    HostInput or DeviceInput

    Raises
    ------
    TypeError, ValueError
        As for `host_input`.
    """
    cdef fdl_tensor t
    cdef DeviceInput out
    if not PyObject_CheckBuffer(tensor) and _look(tensor, &t) and t.device_type in (FDL_CUDA, FDL_MANAGED):
        return _device_input(tensor, name, dtype, &t)
    try:
        return host_input(tensor, name, dtype)
    except tensors.OnDevice:
        view = tensors.device_view(tensor, name, dtype)
        if view is None:
            raise
    out = DeviceInput.__new__(DeviceInput)
    out.keep = tensor
    out.exchange = NULL
    out.framework = _package(type(tensor))
    out.address, out.shape, out.strides, out.dtype, out.device = view
    out.size = math.prod(out.shape)
    return out


def on_device(dict inputs):
    """bool: whether any of a save op's tensors is on a CUDA device."""
    for value in inputs.values():
        if type(value) is DeviceInput:
            return True
    return False

"""The CUDA driver of ``stub_cuda.c``, and tensors that live in its devices.

Must be loaded before `fd_postproc.core._save` opens the driver: the dynamic loader then takes it for the
``libcuda.so.1`` that is asked for.
"""

import ctypes
import subprocess
import types
from pathlib import Path

import numpy as np

from tests.lib.c_library import SHARED, STRICT, compiler

SOURCE = Path(__file__).with_name("stub_cuda.c")
NAME = "libcuda.so.1"
WRONG = [
    "", "id", "score", "rank", "count", "header", "row shifted", "first column", "rows of others",
    "too short", "too long", "nothing written", "refuses", "says wide", "last word missing", "stale",
]  # fmt: skip
COUNTED = ["allocations", "allocations begun", "pinned", "events", "loads", "shared", "ids in line"]


def build(folder):
    """Compile it; the library's path."""
    built = Path(folder) / NAME
    command = [*compiler(), *STRICT, *SHARED, SOURCE, f"-Wl,-soname,{NAME}", "-o", built]
    subprocess.run(command, check=True)
    return built


_loaded = None


def load(path=None):
    """The library in this process; the first call names its path."""
    global _loaded
    if _loaded is not None:
        return _loaded
    stub = ctypes.CDLL(path)
    for name in "stub_alloc", "stub_stream", "stub_stream_of":
        getattr(stub, name).restype = ctypes.c_void_p
    _loaded = stub
    return stub


def counted(what):
    """One of the stub's counts."""
    return load().stub_count(COUNTED.index(what))


class Memory:
    """Device memory, with an array's bytes in it if it was put there."""

    def __init__(self, size, device=0):
        self.address = load().stub_alloc(ctypes.c_size_t(size), device)

    def put(self, array, stream=None):
        """Copy an array there; with a stream, when that comes to it."""
        array = np.ascontiguousarray(array)
        to, size = ctypes.c_void_p(self.address), ctypes.c_size_t(array.nbytes)
        if stream is None:
            load().stub_put(to, array.ctypes.data_as(ctypes.c_void_p), size)
        else:
            load().stub_put_later(to, array.ctypes.data_as(ctypes.c_void_p), size, ctypes.c_void_p(stream))

    address = None

    def __del__(self):
        if self.address is None:  # it could not be had
            return
        load().stub_free(ctypes.c_void_p(self.address))


def laid_out(array, gap, device, stream=None):
    """An array in device memory, its elements `gap` + 1 times as far apart as they must be.

    Returns the memory, and the strides in elements.
    """
    array = np.asarray(array)
    wide = np.full((*array.shape[:-1], array.shape[-1] * (gap + 1)), 77, array.dtype) if array.ndim else array
    if array.ndim:
        wide[..., :: gap + 1] = array
    memory = Memory(max(wide.nbytes, 1), device)
    memory.put(wide, stream)
    memory.laid_out = wide.shape, gap, device
    strides = tuple(step // array.itemsize for step in wide.strides)
    return memory, (*strides[:-1], gap + 1) if array.ndim else strides


def copied(tensor):
    """The array of a tensor, as its framework copies it to the host: behind other work on its stream."""
    shape, gap, device = tensor.memory.laid_out
    array = np.empty(shape, tensor.dtype)
    to, size = array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes)
    stream = ctypes.c_void_p(Exchange.stream or None)
    load().stub_get(to, ctypes.c_void_p(tensor.memory.address), size, stream, device)
    return array[..., :: gap + 1] if shape else array


class Other:
    """What all kinds of libraries offer: ``__cuda_array_interface__``; the stream rides in it."""

    stream = 0
    copy_to_host = copied

    def __init__(self, array, *, gap=0, device=0, put_on=None):
        array = np.asarray(array)
        self.memory, strides = laid_out(array, gap, device, put_on)
        self.dtype, self.shape = array.dtype, array.shape
        self.nbytes = array.nbytes
        self.__cuda_array_interface__ = {
            "data": (self.memory.address, False),
            "shape": array.shape,
            "typestr": array.dtype.str,
            "strides": tuple(step * array.itemsize for step in strides) if gap else None,
            "version": 3,
            "stream": self.stream or None,
        }


class Cupy(Other):
    """What CuPy offers."""

    get = copied

    __module__ = "cupy"

    def __init__(self, array, *, device=0, **keywords):
        super().__init__(array, device=device, **keywords)
        self.device = types.SimpleNamespace(id=device)


class _Place:
    def __init__(self, device):
        self.device = device

    def is_cpu_place(self):
        return False

    is_cuda_pinned_place = is_cpu_place

    def is_gpu_place(self):
        return True

    def gpu_device_id(self):
        return self.device

    def __str__(self):
        return f"Place(gpu:{self.device})"


class _Asked:
    """A tensor whose own methods tell everything."""

    def __init__(self, array, *, gap=0, device=0, put_on=None):
        array = np.asarray(array)
        self.memory, self._strides = laid_out(array, gap, device, put_on)
        self.dtype, self.shape = array.dtype, list(array.shape)

    cpu = copied

    def data_ptr(self):
        return self.memory.address

    def is_contiguous(self):
        return False


class Paddle26(_Asked):
    """What Paddle 2.6 offers."""

    __module__ = "paddle"

    def __init__(self, array, *, device=0, **keywords):
        super().__init__(array, device=device, **keywords)
        self.place = _Place(device)
        self.strides = list(self._strides)


class Torch(_Asked):
    """What PyTorch before 2.10 offers."""

    __module__ = "torch"

    class Device:
        type = "cuda"

        def __init__(self, index):
            self.index = index

        def __str__(self):
            return f"cuda:{self.index}"

    def __init__(self, array, *, device=0, **keywords):
        super().__init__(array, device=device, **keywords)
        self.device = self.Device(device)

    def stride(self):
        return self._strides


# ---- DLPack's C exchange API, as Paddle 3.3 and PyTorch 2.10 have it ------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_LOOK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))
_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class _Exchange(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        *[(name, ctypes.c_void_p) for name in ("previous", "allocate", "from_python", "to_python")],
        ("look", _LOOK),
        ("current_stream", _STREAM),
    ]


@_LOOK
def _look(tensor, out):
    t = out[0]
    t.data, t.device_type, t.device_id = tensor.memory.address, 2, tensor.device
    t.ndim, t.lanes = len(tensor.shape), 1
    t.code = {"i": 0, "f": 2, "b": 6}[tensor.dtype.kind]
    t.bits = 8 * tensor.dtype.itemsize
    t.shape, t.strides, t.byte_offset = tensor.c_shape, tensor.c_strides, 0
    return 0


@_STREAM
def _current_stream(device_type, device, out):
    assert device_type == 2
    out[0] = Exchange.stream or None
    return 0


_table = _Exchange(1, 3, None, None, None, None, _look, _current_stream)
_name = ctypes.create_string_buffer(b"dlpack_exchange_api")  # the capsule keeps only its address
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]


class Exchange:
    """What Paddle 3.3 and PyTorch 2.10 offer."""

    __dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_table), _name, None)
    stream = 0

    def __init__(self, array, *, gap=0, device=0, put_on=None):
        array = np.asarray(array)
        self.memory, strides = laid_out(array, gap, device, put_on)
        self.dtype, self.shape, self.device = array.dtype, array.shape, device
        self.c_shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        self.c_strides = (ctypes.c_int64 * max(array.ndim, 1))(*strides)

    cpu = copied
    # Asked only for the flag, which is looked at step by step.
    data_ptr = Torch.data_ptr

    @property
    def place(self):
        return _Place(self.device)

    @property
    def strides(self):
        return list(self.c_strides)

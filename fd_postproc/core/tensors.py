"""Memory of tensors, whatever framework they come from.

No framework is imported: a tensor brings its own methods.  Paddle and PyTorch tensors answer ``data_ptr``,
NumPy arrays the array interface, CuPy arrays and others on a CUDA device its counterpart there.

A tensor's own dtype decides, never that of the array that it makes of itself: Paddle's bfloat16 becomes
uint16 there, with other numbers.
"""

from __future__ import annotations

import ctypes
import sys
from math import prod
from typing import Any

import numpy as np

from ..support.checks import kind_of

ROLES = {
    "tokens": "int64",
    "ids": "int64",
    "scores": "float32",
    "ranks": "int64",
    "counts": "int32",
    "offsets": "int32",
    "decoded": "int32",
    "prompts": "int64",
    "preempted": "int32",
    "steps": "int64",
}
"""Roles of a save op's tensors, in the order of the kernel's arguments, and their dtypes."""


class OnDevice(ValueError):
    """Raised for a tensor that is not in host memory."""


def host_address(tensor: Any, name: str, dtype: str, elements: int) -> int:
    """Address of a tensor's memory, after checking that a C loop may write `elements` elements there.

    Raises
    ------
    TypeError
        If it is not a Paddle or PyTorch tensor or a NumPy array, or of another dtype.
    ValueError
        If it is not in host memory, has none, is not contiguous, read-only or too small.
    """
    if hasattr(tensor, "data_ptr"):
        check_sound(tensor, name)
        _refuse_device(tensor, name)
        if is_negated(tensor):
            raise ValueError(f"{name} is a negative-bit view, which cannot be written to; use .resolve_neg()")
        contiguous, address, read_only = tensor.is_contiguous(), tensor.data_ptr(), False
    elif hasattr(tensor, "__array_interface__"):
        contiguous = tensor.flags.c_contiguous
        address, read_only = tensor.__array_interface__["data"]
    else:
        kind = kind_of(tensor)
        raise TypeError(f"{name} must be a Paddle or PyTorch tensor or a NumPy array, not {kind}")
    found = _dtype_name(tensor.dtype)
    if found != dtype:
        raise TypeError(f"{name} has dtype {found}, expected {dtype}")
    if not contiguous:
        raise ValueError(
            f"{name} is not contiguous (shape {list(tensor.shape)}): give a new one and read that"
        )
    if read_only:
        raise ValueError(f"{name} is read-only")
    size = prod(tensor.shape)
    if size < elements:
        raise ValueError(
            f"{name} has {size} elements (shape {list(tensor.shape)}), "
            f"but a message of this layout can fill {elements}"
        )
    found_at: int = address
    return found_at


def slow_input(tensor: Any, name: str, dtype: str) -> tuple[int, tuple[int, ...], Any]:
    """For `fd_postproc._core.host_input`: a tensor that is not a buffer of the right kind.

    Address, shape, and the object that owns the memory.  The shape is that of the memory: a tensor may get
    another one meanwhile.
    """
    if hasattr(tensor, "data_ptr"):
        check_sound(tensor, name)
    elif getattr(tensor, "dtype", None) is None:
        kind = kind_of(tensor)
        raise TypeError(f"{name} must be a Paddle or PyTorch tensor or a NumPy array, not {kind}")
    elif not hasattr(tensor.dtype, "kind"):
        raise TypeError(
            f"{name} is {kind_of(tensor)}, which offers neither the buffer protocol nor DLPack's exchange "
            "API nor data_ptr(): give it as a NumPy array"
        )
    _refuse_device(tensor, name)
    if hasattr(tensor, "data_ptr"):
        found = _dtype_name(tensor.dtype)
        if found == dtype and tensor.is_contiguous() and not is_negated(tensor):
            return tensor.data_ptr(), tuple(tensor.shape), tensor
        if found == "bfloat16" and dtype != "float32":
            raise TypeError(f"{name} has dtype bfloat16, not integers")
        tensor = host_array(tensor, name)
    array = _converted(tensor, name, dtype)
    return array.__array_interface__["data"][0], array.shape, array


def host_array(tensor: Any, name: str) -> Any:
    """A tensor of host memory as a NumPy array, which shares its memory if it can.

    bfloat16, which NumPy lacks, becomes float32; a negative-bit or conjugate view is resolved.

    Raises
    ------
    ValueError
        If it is on a device: copying it here would block unasked.  Or if it has
        no memory of its own: meta, fake, sparse, nested tensors, and such as were cleared.
    TypeError
        If its framework cannot make an array of its dtype.
    """
    if not hasattr(tensor, "data_ptr"):
        _refuse_device(tensor, name)
        return tensor
    check_sound(tensor, name)
    _refuse_device(tensor, name)
    try:
        if hasattr(tensor, "detach"):
            tensor = tensor.detach()
        for resolve in (
            "resolve_conj",
            "resolve_neg",
        ):  # PyTorch's; they return the tensor if there is nothing to do
            if hasattr(tensor, resolve):
                tensor = getattr(tensor, resolve)()
        if _dtype_name(tensor.dtype) == "bfloat16":
            tensor = tensor.astype("float32") if hasattr(tensor, "place") else tensor.float()
        return array_of(tensor)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        text = (
            f"{name} has dtype {_dtype_name(tensor.dtype)}, which cannot be read in host memory; convert it"
        )
        raise TypeError(text) from None


def on_host(tensor: Any, name: str) -> Any:
    """The tensor itself if it is in host memory, otherwise a copy there, made by its framework.

    The copy waits for the work before it on the framework's current stream.

    Raises
    ------
    OnDevice
        If the framework offers no copy.
    """
    place = _place(tensor)
    if place is None:
        return tensor
    for method in ("cpu", "get", "copy_to_host", "__array__"):  # Paddle and PyTorch, CuPy, Numba, others
        copy = getattr(tensor, method, None)
        if copy is not None:
            return copy()
    raise OnDevice(f"{name} is on {place}, and {kind_of(tensor)} offers no copy in host memory; give it one")


def array_of(tensor: Any) -> Any:
    """A dense tensor of host memory as a NumPy array, at the cost of its own numbers.

    ``numpy()`` of a Paddle tensor (3.3.1, CPU) copies the whole storage that a view lies in, and the array
    keeps that copy.  DLPack shares the view's memory; types that DLPack lacks are cloned, without the rest
    of the storage.  PyTorch's ``numpy()`` shares.
    """
    if not hasattr(tensor, "place"):
        return tensor.numpy()
    try:
        return np.from_dlpack(tensor.detach())
    except (AttributeError, BufferError, RuntimeError, TypeError):  # also of a Paddle or NumPy before DLPack
        return tensor.clone().numpy()


def check_sound(tensor: Any, name: str) -> None:
    """Refuse a Paddle or PyTorch tensor whose ``data_ptr`` is not where its numbers are.

    Raises
    ------
    ValueError
        If it is sparse, nested, meta or fake, was cleared, or its storage was taken away.
    """
    why = _unsound(tensor)
    if why is not None:
        raise ValueError(f"{name} is a {why}")


def _unsound(tensor: Any) -> str | None:
    is_dense = getattr(tensor, "is_dense", None)
    if (
        is_dense is not None
    ):  # Paddle, whose sparse and cleared tensors crash or raise when asked anything else
        if not is_dense():
            return "sparse tensor; use .to_dense()"
        if prod(tensor.shape) and not tensor._is_initialized():
            return "tensor without memory: it was cleared, or never filled"
    elif getattr(tensor, "is_nested", False) is True:
        return "nested tensor; use .to_padded_tensor(), or give its parts one by one"
    elif (layout := str(getattr(tensor, "layout", "torch.strided"))) != "torch.strided":
        return f"tensor of layout {layout.removeprefix('torch.')}; use .to_dense()"
    elif getattr(tensor, "is_meta", False) is True:
        return "meta tensor, which has a shape but no numbers"
    elif type(tensor).__name__ == "FakeTensor":
        return "fake tensor, which has a shape but no numbers"
    if _place(tensor) is None and prod(tensor.shape) and not tensor.data_ptr():
        return "tensor without memory: its storage was resized to nothing"
    return None


_can_be_negated: dict[type, bool] = {}


def is_negated(tensor: Any) -> bool:
    """Whether a tensor's memory holds its numbers negated (PyTorch's negative bit)."""
    kind = type(tensor)
    can = _can_be_negated.get(kind)
    if can is None:
        can = _can_be_negated[kind] = callable(getattr(kind, "is_neg", None))
    return can and tensor.is_neg()


def _refuse_device(tensor: Any, name: str) -> None:
    place = _place(tensor)
    if place is not None:
        raise OnDevice(f"{name} is on {place}; it must be in host memory (use .cpu())")


def _converted(array: Any, name: str, dtype: str) -> Any:
    wanted = np.dtype(dtype)
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16" and wanted.kind == "f":  # ml_dtypes
        array = array.astype(wanted)
    if array.dtype.kind not in ("iu" if wanted.kind == "i" else "f"):
        kind = "integers" if wanted.kind == "i" else "floats"
        raise TypeError(f"{name} has dtype {array.dtype}, not {kind}")
    if wanted.kind == "i" and array.size:
        limits = np.iinfo(wanted)
        for bad in (array.min(), array.max()):
            if not limits.min <= int(bad) <= limits.max:
                raise ValueError(f"{name} holds {bad}, which does not fit {dtype}")
    return as_float32(array, name) if wanted.kind == "f" else np.asarray(array, wanted, order="C")


def as_float32(array: Any, name: str) -> Any:
    """An array of numbers as C-contiguous float32.

    Raises
    ------
    ValueError
        If a finite number in it is beyond float32's range: it would become infinite.
    """
    with np.errstate(over="ignore"):
        out = np.asarray(array, np.float32, order="C")
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        beyond = np.isinf(out) & np.isfinite(array)
        if beyond.any():
            raise ValueError(
                f"{name} holds {array[beyond].flat[0]}, which does not fit float32 (at most 3.4e38)"
            )
    return out


def slow_flag(tensor: Any, name: str) -> bool:
    """For `fd_postproc._core.host_flag`: the value of a tensor without a fast path."""
    if hasattr(tensor, "data_ptr"):
        check_sound(tensor, name)
    found = getattr(tensor, "dtype", None)
    if found is None or _dtype_name(found) != "bool":
        raise TypeError(f"{name} must be a bool tensor, not {found or kind_of(tensor)}")
    if prod(tensor.shape) < 1:
        raise ValueError(f"{name} is empty")
    _refuse_device(tensor, name)
    if not hasattr(tensor, "data_ptr"):  # NumPy
        return bool(tensor.item(0))
    return ctypes.c_bool.from_address(tensor.data_ptr()).value


def _place(tensor: Any) -> str | None:
    """Device of a tensor; None for host memory."""
    if not hasattr(tensor, "data_ptr"):
        return f"device {_cupy_device(tensor)}" if hasattr(tensor, "__cuda_array_interface__") else None
    place = getattr(tensor, "place", None)
    if place is not None:  # Paddle
        return None if place.is_cpu_place() or place.is_cuda_pinned_place() else str(place)
    device = tensor.device
    return None if device.type == "cpu" else str(device)


_dtype_names: dict[Any, str] = {}


def _dtype_name(dtype: Any) -> str:
    """``paddle.int64``, ``torch.int64`` and NumPy's dtype are ``"int64"``; spelling one out takes 1 us."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).rpartition(".")[2]
    return name


# ---- On a CUDA device --------------------------------------------------------------------------------

_TYPESTRS = {"<i8": "int64", "<i4": "int32", "<f4": "float32", "|b1": "bool"}
_ITEM_SIZES = {"int64": 8, "int32": 4, "float32": 4, "bool": 1}


def device_view(
    tensor: Any, name: str, dtype: str
) -> tuple[int, tuple[int, ...], tuple[int, ...], str, int] | None:
    """For `fd_postproc._core.tensor_input`: a tensor that is not in host memory, asked step by step.

    Address, shape, strides in elements, dtype, and device (-1: not known).  None if it is on no CUDA device.
    """
    if is_negated(tensor):
        raise ValueError(f"{name} is a negative-bit view on {_place(tensor)}; use .resolve_neg()")
    if not hasattr(tensor, "data_ptr"):
        interface = tensor.__cuda_array_interface__
        shape = tuple(interface["shape"])
        device = _cupy_device(tensor)
        found = device_dtype(_TYPESTRS.get(interface["typestr"], interface["typestr"]), name, dtype, device)
        item = _ITEM_SIZES[found]
        bytes_apart = interface.get("strides")
        if bytes_apart is None:
            strides = contiguous_strides(shape)
        elif any(step % item for step in bytes_apart):
            raise ValueError(f"{name} has strides {bytes_apart}, no multiples of its {item} bytes an element")
        else:
            strides = tuple(step // item for step in bytes_apart)
        return interface["data"][0], shape, strides, found, device
    place = getattr(tensor, "place", None)
    if place is not None:  # Paddle
        if not place.is_gpu_place():
            return None
        device = place.gpu_device_id()
        strides = tuple(tensor.strides)
    else:
        if tensor.device.type != "cuda":
            return None
        device = tensor.device.index
        strides = tuple(tensor.stride())
    found = device_dtype(_dtype_name(tensor.dtype), name, dtype, device)
    return tensor.data_ptr(), tuple(tensor.shape), strides, found, device


def device_dtype(found: str, name: str, dtype: str, device: int) -> str:
    """`found`, if the kernel can read it as `dtype`.

    TypeError if it cannot: converting here would take unrequested memory and a launch.
    """
    if found == dtype or (dtype != "float32" and found in ("int64", "int32")):
        return found
    wanted = "float32" if dtype == "float32" else "int64 or int32"
    where = "a CUDA device" if device < 0 else f"CUDA device {device}"
    raise TypeError(
        f"{name} on {where} has dtype {found}, expected {wanted}; convert it (.to, .astype or .cast)"
    )


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous array."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def current_stream(tensor: Any, framework: str, device: int) -> int:
    """Handle of the stream that a tensor's framework uses now; 0 is the legacy default stream.

    Frameworks are looked up among the modules that are loaded: the tensor's own must be.
    """
    if framework == "torch":
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    if framework == "paddle":
        # Not paddle.device.cuda.current_stream(), which crashes in a build without CUDA.
        return int(sys.modules["paddle"].base.core._get_current_stream(device).cuda_stream)
    if framework == "cupy":
        stream = sys.modules["cupy"].cuda.get_current_stream
        return int((stream(device) if device >= 0 else stream()).ptr)  # each device has one
    interface = getattr(tensor, "__cuda_array_interface__", None) or {}
    return int(interface.get("stream") or 0)


def _cupy_device(tensor: Any) -> int:
    found = getattr(getattr(tensor, "device", None), "id", None)
    return found if isinstance(found, int) else -1

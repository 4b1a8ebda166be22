"""Host memory of tensors, whatever framework they come from.

No framework is imported: a tensor brings its own methods.  Paddle and PyTorch tensors answer ``data_ptr``,
NumPy arrays the array interface.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any


def host_address(tensor: Any, name: str, dtype: str, elements: int) -> int:
    """Address of a tensor's memory, after checking that a C loop may write `elements` elements there.

    Parameters
    ----------
    tensor : paddle.Tensor, torch.Tensor or numpy.ndarray
    name : str
        What the tensor is called in error texts.
    dtype : str
        ``"int64"`` or ``"float32"``.
    elements : int
        Fewest elements that it must have.

    Raises
    ------
    TypeError
        If it is no tensor, or of another dtype.
    ValueError
        If it is not in host memory, not contiguous, read-only or too small.
    """
    if hasattr(tensor, "data_ptr"):
        _refuse_device(tensor, name)
        contiguous, address, read_only = tensor.is_contiguous(), tensor.data_ptr(), False
    elif hasattr(tensor, "__array_interface__"):
        contiguous = tensor.flags.c_contiguous
        address, read_only = tensor.__array_interface__["data"]
    else:
        kind = type(tensor).__name__
        raise TypeError(f"{name} must be a Paddle or PyTorch tensor or a NumPy array, not {kind}")
    found = _dtype_name(tensor.dtype)
    if found != dtype:
        raise TypeError(f"{name} has dtype {found}, expected {dtype}")
    if not contiguous:
        raise ValueError(f"{name} is not contiguous (shape {list(tensor.shape)}); use .contiguous()")
    if read_only:
        raise ValueError(f"{name} is read-only")
    size = prod(tensor.shape)
    if size < elements:
        raise ValueError(
            f"{name} has {size} elements (shape {list(tensor.shape)}), "
            f"but a message of this layout can fill {elements}"
        )
    return address


def slow_input(tensor: Any, name: str, dtype: str) -> tuple[int, int, Any]:
    """For `fd_postproc._core.host_input`: a tensor that is no buffer of the right kind.

    Returns
    -------
    (int, int, object)
        Address, elements, and the object that owns the memory.
    """
    found = getattr(tensor, "dtype", None)
    if found is None:
        kind = type(tensor).__name__
        raise TypeError(f"{name} must be a Paddle or PyTorch tensor or a NumPy array, not {kind}")
    if hasattr(tensor, "data_ptr"):
        _refuse_device(tensor, name)
        if _dtype_name(found) == dtype and tensor.is_contiguous():
            return tensor.data_ptr(), prod(tensor.shape), tensor
        tensor = tensor.numpy()
    array = _converted(tensor, name, dtype)
    return array.__array_interface__["data"][0], array.size, array


def host_array(tensor: Any, name: str) -> Any:
    """A tensor of host memory as a NumPy array that shares it.

    Raises
    ------
    ValueError
        If it is on a device: copying it here would block without anybody having asked for it.
    """
    if not hasattr(tensor, "data_ptr"):
        return tensor
    _refuse_device(tensor, name)
    return tensor.numpy()


def _refuse_device(tensor: Any, name: str) -> None:
    place = _place(tensor)
    if place is not None:
        raise ValueError(f"{name} is on {place}; it must be in host memory (use .cpu())")


def _converted(array: Any, name: str, dtype: str) -> Any:
    import numpy as np

    wanted = np.dtype(dtype)
    if array.dtype.kind not in ("iu" if wanted.kind == "i" else "f"):
        kind = "integers" if wanted.kind == "i" else "floats"
        raise TypeError(f"{name} has dtype {array.dtype}, not {kind}")
    if wanted.kind == "i" and array.size:
        limits = np.iinfo(wanted)
        for bad in (array.min(), array.max()):
            if not limits.min <= int(bad) <= limits.max:
                raise ValueError(f"{name} holds {bad}, which does not fit {dtype}")
    return np.ascontiguousarray(array, dtype=wanted)


def slow_flag(tensor: Any, name: str) -> bool:
    """For `fd_postproc._core.host_flag`: a tensor that has to be asked step by step."""
    found = getattr(tensor, "dtype", None)
    if found is None or _dtype_name(found) != "bool":
        raise TypeError(f"{name} must be a bool tensor, not {found or type(tensor).__name__}")
    if prod(tensor.shape) < 1:
        raise ValueError(f"{name} is empty")
    if not hasattr(tensor, "data_ptr"):  # NumPy
        return bool(tensor.item(0))
    _refuse_device(tensor, name)
    return ctypes.c_bool.from_address(tensor.data_ptr()).value


def _place(tensor: Any) -> str | None:
    """Where a tensor is, if not in host memory."""
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

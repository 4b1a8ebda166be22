"""Host memory of tensors, whatever framework they come from.

No framework is imported: a tensor brings its own methods.  Paddle and PyTorch tensors answer ``data_ptr``,
NumPy arrays the array interface.
"""

from __future__ import annotations

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
        place = _place(tensor)
        if place is not None:
            raise ValueError(f"{name} is on {place}; it must be in host memory (use .cpu())")
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

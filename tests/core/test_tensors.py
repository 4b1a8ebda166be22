"""Where a tensor's memory is, asked in every way."""

import numpy as np
import pytest

from fd_postproc._core import host_flag, host_input
from fd_postproc.core import tensors
from tests.lib.frameworks import Paddle, made
from tests.lib.rows import each


class OnDevice:
    """A tensor that says that its memory is elsewhere."""

    class Place:
        def is_cpu_place(self):
            return False

        is_cuda_pinned_place = is_cpu_place

        def __str__(self):
            return "Place(gpu:0)"

    place = Place()
    shape = (1,)

    def __init__(self, dtype):
        self.dtype = dtype

    def data_ptr(self):
        raise AssertionError("must not be asked")


@each(
    "call, dtype",
    [
        (lambda tensor: host_input(tensor, "x", "int64"), "int64"),
        (lambda tensor: host_flag(tensor, "x"), "bool"),
        (lambda tensor: tensors.host_array(tensor, "x"), "int64"),
        (lambda tensor: tensors.host_address(tensor, "x", "int64", 1), "int64"),
    ],
)
def test_a_tensor_on_a_device_is_refused(call, dtype):
    with pytest.raises(ValueError, match=r"x is on Place\(gpu:0\); it must be in host memory"):
        call(OnDevice(dtype))


@each("dtype", ["int64", "int32", "float32"])
def test_what_fits_is_not_copied_and_the_rest_is_converted(framework, dtype):
    array = np.arange(12, dtype=dtype).reshape(3, 4)
    tensor = framework.tensor(array)
    found = host_input(tensor, "x", dtype)
    assert (found.shape, found.size) == ((3, 4), 12)
    if hasattr(tensor, "data_ptr"):
        assert found.address == tensor.data_ptr()
    else:
        assert found.address == array.ctypes.data
    if dtype == "int32":
        found = host_input(tensor, "x", "int64")
        assert (found.shape, found.size) == ((3, 4), 12)
        moved = tensor.T if hasattr(tensor, "T") else tensor
        assert host_input(moved, "x", "int32").shape == (4, 3)


@each("value", [True, False])
def test_flags(framework, value):
    assert host_flag(value, "x") is value
    for array in np.array([value]), np.array([value, not value]), np.array(value):
        assert host_flag(framework.tensor(array), "x") is value
    with pytest.raises(ValueError, match="x is empty"):
        host_flag(framework.tensor(np.empty(0, bool)), "x")
    for wrong in framework.tensor(np.array([1])), 1:
        with pytest.raises(TypeError, match="x must be a bool tensor, not"):
            host_flag(wrong, "x")


def test_a_framework_that_offers_no_way_to_its_memory():
    """Such as tinygrad, whose dtype is its own, too."""

    class Dtype:
        def __str__(self):
            return "dtypes.long"

    class Foreign:
        dtype = Dtype()
        shape = (2, 1)

        def numpy(self):
            return np.zeros((2, 1), "i8")

    with pytest.raises(TypeError, match=r"x is .*Foreign.*give it as a NumPy array"):
        host_input(Foreign(), "x", "int64")


def test_a_shape_that_changes_meanwhile_is_that_of_the_numbers():
    class Reshaped(np.ndarray):
        @property
        def shape(self):
            return (9, 9)

    found = host_input(np.arange(6, dtype=np.int32).view(Reshaped), "x", "int64")
    assert (found.shape, found.size) == ((6,), 6)


@pytest.mark.framework
@each(
    "dtype",
    [
        *("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"),
        *("bool", "complex64"),
    ],
)
def test_a_view_of_a_paddle_tensor_has_its_own_numbers(dtype):
    paddle = made(Paddle).paddle
    whole = paddle.to_tensor(np.arange(40).reshape(5, 8), place=paddle.CPUPlace()).astype(dtype)
    whole.stop_gradient = dtype not in ("float32", "bfloat16")
    for view in (whole, whole[3], whole[1:4], whole[:, 2], whole[0, 0], whole[:0]):
        found, expected = tensors.array_of(view), view.detach().numpy()
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


@pytest.mark.framework
@pytest.mark.resident_memory
@each("dtype", ["float32", "bfloat16"])
def test_a_view_of_a_paddle_tensor_takes_no_memory_of_its_neighbours(dtype):
    """Paddle's own ``numpy()`` copies the storage of all of them, 64 times here."""
    paddle = made(Paddle).paddle
    whole = paddle.zeros([64, 1 << 16], dtype="float32").astype(dtype)
    before = resident_bytes()
    arrays = [tensors.array_of(whole[row]) for row in range(64)]
    assert resident_bytes() - before < 4 * whole.size * whole.element_size()
    assert len(arrays) == 64


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

"""Save ops with PyTorch tensors on a real CUDA device.

    pytest -m gpu tests/cuda/test_gpu.py

What needs no device is tested on a stub driver, in save_device.
"""

import ctypes
import importlib.util

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from tests.lib.device_saves import placed
from tests.lib.save_cases import CHANNELS, arguments, random_inputs

pytestmark = [pytest.mark.gpu, pytest.mark.framework]


@pytest.fixture(scope="module")
def torch():
    """PyTorch with a device; skips and says why there is none."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"PyTorch {torch.__version__} finds no CUDA device")
    if hasattr(ctypes.CDLL("libcuda.so.1"), "stub_delay"):
        pytest.skip("this process uses the stub driver; run this file alone")
    if not fp.cuda_available():
        pytest.skip(fp.why_no_cuda())
    return torch


@pytest.fixture
def put(torch):
    """A function that puts an array on the device, by rows that lie `gap` elements apart."""

    def put(array, gap=0):
        tensor = torch.from_numpy(np.ascontiguousarray(array)).cuda()
        if gap and tensor.ndim:
            wide = torch.zeros(
                (*tensor.shape[:-1], tensor.shape[-1] + gap), dtype=tensor.dtype, device="cuda"
            )
            wide[..., : tensor.shape[-1]] = tensor
            tensor = wide[..., : tensor.shape[-1]]
        return tensor

    return put


def received(channel, op, args):
    """The Step that a Receiver makes of what an op sends."""
    with fp.Receiver(channel) as receiver:
        op(*args)
        assert ops.flush(20)
        return receiver.receive(5)


def test_every_op(torch, put, ops_queue, monkeypatch):
    """Random tensors, host and device; frames, which fit any limit."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    rng = np.random.default_rng()
    for op, channel in CHANNELS.items():
        for batch, cols in [(1, 1), (7, 21), (int(rng.integers(8, 256)), 5), (256, 2), (512, 1)]:
            for gap in 0, 3:
                seed = int(rng.integers(1 << 30))
                inputs = random_inputs(op, batch, cols, seed)
                both = arguments(op, inputs), arguments(op, placed(inputs, put, gap=gap))
                host, device = [received(channel, getattr(ops, op), args) for args in both]
                assert host == device, (op, batch, cols, gap, seed)


def test_the_current_stream_is_the_one(torch, put, ops_queue):
    """Tensors that get their values by slow work on a stream of their own."""
    x, new = put(np.zeros((4, 1), np.int64)), put(np.full((4, 1), 7))
    zeros, stop = np.zeros((4, 1), np.int32), put(np.array([False]))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        x.copy_(new)
        ops.save_output(x, stop, zeros, 0, False)
    assert ops.flush(20)
    step = fp.decode(ops_queue.take("plain")[0], "plain")
    assert (step.token_ids(3), step.stop_flag) == ([7], -1)


def test_a_captured_stream_is_refused(torch, put, ops_queue):
    x = put(np.array([[1]]))
    ops.save_output(x, np.array([True]), np.zeros(1, np.int32), 0, False)
    assert ops.flush(20)
    ops_queue.take("plain")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        with pytest.raises(fp.CudaError, match="captured into a CUDA graph"):
            ops.save_output(x, np.array([True]), np.zeros(1, np.int32), 0, False)
        x.add_(1)

"""Save ops with PyTorch tensors on a real CUDA device.

    pytest -m gpu tests/cuda/test_gpu.py

What needs no device is tested on a stub driver, in save_device.
"""

import ctypes
import gc
import importlib.util
import time

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from tests import reference
from tests.lib.rows import each
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


def on_device(inputs, put, **keywords):
    return {
        name: array if name == "not_need_stop" else put(array, **keywords) for name, array in inputs.items()
    }


def steps_of(channel, calls):
    """What a Receiver makes of the messages of some calls."""
    found = []
    with fp.Receiver(channel) as receiver:
        for call in calls:
            call()
            assert ops.flush(20)
            found.append(receiver.receive(5))
    return found


def test_every_op(torch, put, ops_queue, monkeypatch):
    """Random tensors, host and device; frames, which fit any limit."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    rng = np.random.default_rng()
    for op, channel in CHANNELS.items():
        for batch, cols in [(1, 1), (7, 21), (int(rng.integers(8, 256)), 5), (256, 2), (512, 1)]:
            for gap in 0, 3:
                seed = int(rng.integers(1 << 30))
                inputs = random_inputs(op, batch, cols, seed)
                frame = random_frames(op, inputs, put, gap)
                host, device = steps_of(channel, frame)
                assert host == device, (op, batch, cols, gap, seed)


def random_frames(op, inputs, put, gap):
    from_host = arguments(op, inputs)
    from_device = arguments(op, on_device(inputs, put, gap=gap))
    return [lambda: getattr(ops, op)(*from_host), lambda: getattr(ops, op)(*from_device)]


@each("op", [op for op, channel in CHANNELS.items() if channel != "topk"])
@each("dialect", ["packed", "legacy"])
def test_fastdeploys_messages_byte_for_byte(op, dialect, torch, put, ops_queue, monkeypatch):
    """Of a size that fits any limit; topk's never does."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    inputs = random_inputs(op, 5, 3, 11)
    getattr(ops, op)(*arguments(op, on_device(inputs, put)))
    assert ops.flush(20)
    payload, _ = ops_queue.take(CHANNELS[op])
    expected = reference.save(op, *arguments(op, inputs), dialect=dialect)
    assert len(payload) == len(expected.payload)
    for part in expected.written:
        assert payload[part.start : part.stop] == expected.payload[part.start : part.stop], part


def test_the_current_stream_is_the_one(torch, put, ops_queue):
    """Tensors that get their values by slow work on a stream of their own."""
    x, new = put(np.zeros((4, 1), np.int64)), put(np.full((4, 1), 7))
    zeros = np.zeros((4, 1), np.int32)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        x.copy_(new)
        began = time.perf_counter()
        ops.save_output(x, np.array([True]), zeros, 0, False)
        assert time.perf_counter() - began < 0.05  # it does not wait for the device
    assert ops.flush(20)
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(3) == [7]


def test_the_stop_flag_on_the_device(torch, put, ops_queue):
    ops.save_output(
        put(np.array([[1]])), torch.tensor([False], device="cuda"), np.zeros(1, np.int32), 0, False
    )
    assert ops.flush(20)
    assert fp.decode(ops_queue.take("plain")[0], "plain").stop_flag == -1


def test_a_number_that_does_not_fit(torch, put, ops_queue):
    ops.save_output(put(np.array([[1 << 40]])), np.array([True]), np.zeros(1, np.int32), 0, False)
    with pytest.raises(ValueError, match=r"x\[0, 0\] does not fit"):
        ops.flush(20)
    assert ops_queue.waiting() == 0


def test_a_captured_stream_is_refused(torch, put, ops_queue):
    x = put(np.array([[1]]))
    ops.save_output(x, np.array([True]), np.zeros(1, np.int32), 0, False)
    assert ops.flush(20)
    ops_queue.take("plain")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        with pytest.raises(fp.CudaError, match="captured into a CUDA graph"):
            ops.save_output(x, np.array([True]), np.zeros(1, np.int32), 0, False)
        x.add_(1)


def test_10_000_saves_leave_device_memory_where_it_was(torch, put, ops_queue):
    x, preempted = put(np.zeros((64, 1), np.int64)), np.zeros((64, 1), np.int32)

    def save(n):
        with fp.Receiver("plain") as receiver:
            for _ in range(n):
                ops.save_output(x, np.array([True]), preempted, 0, False)
                receiver.receive(5)

    save(100)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    save(10_000)
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < 4 << 20

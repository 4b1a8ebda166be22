"""Save ops with PyTorch's and CuPy's tensors on a real CUDA device, and the same on the stub driver.

    pytest -m gpu tests/cuda/test_gpu.py

Whatever runs there for the first time has run on the stub before.
"""

import contextlib
import ctypes
import importlib
import importlib.util
import time

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.ops import proof as proofs
from fd_postproc.ops.device import saves
from tests.lib.device_saves import FLAG, placed
from tests.lib.save_cases import CHANNELS, arguments, calm, random_inputs
from tests.lib.sending import in_thread
from tests.lib.stub_cuda import Exchange


class Stub:
    """What the stub offers in place of a framework."""

    def __init__(self, request):
        self.stub = request.getfixturevalue("stub")

    def put(self, array, gap=0):
        return Exchange(array, gap=gap)

    @contextlib.contextmanager
    def behind_work(self, tensor, new):
        """On a stream of its own, where the tensor gets its values after slow work."""
        self.stub.stub_delay(ctypes.c_int64(100_000))
        Exchange.stream = self.stub.stub_stream()
        try:
            tensor.memory.put(new, Exchange.stream)
            yield
        finally:
            self.stub.stub_delay(ctypes.c_int64(0))
            Exchange.stream = 0

    @contextlib.contextmanager
    def capture(self, tensor):
        Exchange.stream = self.stub.stub_stream()
        stream = ctypes.c_void_p(Exchange.stream)
        self.stub.stub_capture(stream, 1)
        try:
            yield
        finally:
            assert self.stub.stub_capture(stream, 0) == 0
            Exchange.stream = 0


class Torch:
    def __init__(self, request):
        self.torch = found("torch")
        if not self.torch.cuda.is_available():
            pytest.skip(f"PyTorch {self.torch.__version__} finds no CUDA device")

    def put(self, array, gap=0):
        tensor = self.torch.from_numpy(np.ascontiguousarray(array)).cuda()
        if gap and tensor.ndim:
            shape = (*tensor.shape[:-1], tensor.shape[-1] + gap)
            wide = self.torch.zeros(shape, dtype=tensor.dtype, device="cuda")
            wide[..., : tensor.shape[-1]] = tensor
            tensor = wide[..., : tensor.shape[-1]]
        return tensor

    @contextlib.contextmanager
    def behind_work(self, tensor, new):
        new = self.put(new)
        self.torch.cuda.synchronize()
        with self.torch.cuda.stream(self.torch.cuda.Stream()):
            self.torch.cuda._sleep(200_000_000)
            tensor.copy_(new)
            yield

    @contextlib.contextmanager
    def capture(self, tensor):
        with self.torch.cuda.graph(self.torch.cuda.CUDAGraph()):
            yield
            tensor.add_(1)


class Cupy:
    def __init__(self, request):
        self.cupy = found("cupy")
        if not self.cupy.is_available():
            pytest.skip(f"CuPy {self.cupy.__version__} finds no CUDA device")

    def put(self, array, gap=0):
        tensor = self.cupy.asarray(array)
        if gap and tensor.ndim:
            wide = self.cupy.zeros((*tensor.shape[:-1], tensor.shape[-1] + gap), tensor.dtype)
            wide[..., : tensor.shape[-1]] = tensor
            tensor = wide[..., : tensor.shape[-1]]
        return tensor

    @contextlib.contextmanager
    def behind_work(self, tensor, new):
        new = self.put(new)
        self.cupy.cuda.Device().synchronize()
        with self.cupy.cuda.Stream(non_blocking=True) as stream:
            stream.launch_host_func(time.sleep, 0.2)
            tensor[:] = new
            yield

    @contextlib.contextmanager
    def capture(self, tensor):
        with self.cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            yield
            tensor += 1
            stream.end_capture()


def found(name):
    """A framework; skips and says why it cannot be used."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if hasattr(ctypes.CDLL("libcuda.so.1"), "stub_delay"):
        pytest.skip("this process uses the stub driver; run this file alone")
    if not fp.cuda_available():
        pytest.skip(fp.why_no_cuda())
    return importlib.import_module(name)


ON_DEVICE = [pytest.mark.gpu, pytest.mark.framework]


@pytest.fixture(params=[Stub, *(pytest.param(one, marks=ON_DEVICE) for one in (Torch, Cupy))])
def device(request, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")  # frames fit any limit
    return request.param(request)


def received(channel, op, args, **keywords):
    """The Step that a Receiver makes of what an op sends; it receives meanwhile: the queue may hold less."""
    with fp.Receiver(channel, **keywords) as receiver, in_thread(op, *args, **keywords):
        step = receiver.receive(30)
    assert ops.flush(20)
    return step


def test_every_op(device, ops_queue):
    """Random tensors, host and device."""
    rng = np.random.default_rng()
    for op, channel in CHANNELS.items():
        for batch, cols in [(1, 1), (7, 21), (int(rng.integers(8, 256)), 5), (256, 2), (512, 1)]:
            for gap in 0, 3:
                seed = int(rng.integers(1 << 30))
                inputs = random_inputs(op, batch, cols, seed)
                on_device = placed(inputs, device.put, gap=gap)
                both = arguments(op, inputs), arguments(op, on_device)
                on_host, made = [received(channel, getattr(ops, op), args) for args in both]
                assert on_host == made, (op, batch, cols, gap, seed)


def test_the_most_requests_that_shared_memory_holds(device, ops_queue):
    """All that a block may have without asking for more."""
    layout, batch = fp.Layout(max_batch=2400), 2292
    x = np.arange(batch)[:, None]
    args = device.put(x), FLAG, np.zeros(batch, np.int32), 0, False
    step = received("plain", ops.save_output, args, layout=layout)
    assert [step.token_ids(i) for i in range(batch)] == x.tolist()


def test_the_current_stream_is_the_one(device, ops_queue):
    """Tensors that get their values by slow work on a stream of their own."""
    x, zeros, stop = device.put(np.zeros((4, 1), np.int64)), np.zeros((4, 1), np.int32), np.array([False])
    with device.behind_work(x, np.full((4, 1), 7)):
        ops.save_output(x, device.put(stop), zeros, 0, False)
    assert ops.flush(20)
    step = fp.decode(ops_queue.take("plain")[0], "plain", mtype=2)
    assert (step.token_ids(3), step.stop_flag) == ([7], -1)


def test_a_captured_stream_is_refused(device, ops_queue, mode):
    for value in "1", "auto":
        proof, x = mode(value), device.put(np.array([[1]]))
        args = x, FLAG, np.zeros(1, np.int32), 0, False
        received("plain", ops.save_output, args)
        with device.capture(x), pytest.raises(fp.CudaError, match="captured into a CUDA graph"):
            ops.save_output(*args)
        assert not proof.why_off


def test_the_kernel_proves_itself(device, ops_queue, mode):
    """Nothing is turned off, and each op's kernel is used in the end."""
    proof = mode("auto")
    for op, channel in CHANNELS.items():
        before = sum(lane.stats["frames"] for lane in saves.lanes)
        args = arguments(op, placed(calm(op, 16), device.put))
        for _ in range(2 * proofs.ENOUGH):
            received(channel, getattr(ops, op), args)
        assert not proof.why_off
        assert sum(lane.stats["frames"] for lane in saves.lanes) > before, op

"""Save ops on a real CUDA device, without any framework: tensors are the driver's memory.

    pytest -m gpu tests/cuda/test_gpu_driver.py

Each test is one thing that only a device can tell.  PyTorch's tensors are in test_gpu.py.
"""

import gc
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from tests.lib import real_cuda, stub_cuda
from tests.lib.children import python
from tests.lib.device_saves import FLAG, LAYOUT, assert_message, placed
from tests.lib.save_cases import CHANNELS, arguments, random_inputs
from tests.lib.stub_cuda import Exchange, Other, Torch

SHOWN_ON_THE_STUB = "FD_POSTPROC_TEST_DRIVER"
gpu = pytest.mark.gpu


@pytest.fixture(scope="module")
def driver():
    """The driver with a device; skips and says why there is none."""
    if stub_cuda._loaded is not None and real_cuda._driver is None:
        pytest.skip("this process uses the stub driver; run this file alone")
    try:
        driver = real_cuda.use()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no CUDA device: {error}")
    if not fp.cuda_available():
        pytest.skip(fp.why_no_cuda())
    return driver


@pytest.fixture
def on_stream(driver, monkeypatch):
    """A function that makes a new stream the current one."""
    current = types.SimpleNamespace(cuda_stream=0)
    fake = types.SimpleNamespace(cuda=types.SimpleNamespace(current_stream=lambda device=0: current))
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(Exchange, "stream", 0)
    monkeypatch.setattr(Other, "stream", 0)

    def on_stream():
        stream = driver.stub_stream()
        current.cuda_stream = Exchange.stream = Other.stream = stream
        return stream

    return on_stream


def plain(x):
    return Exchange(np.array([[x]])), FLAG, np.zeros(1, np.int32), 0, False


@gpu
@pytest.mark.parametrize("dialect", ["packed", "legacy", "compact"])
@pytest.mark.parametrize("op", CHANNELS)
def test_every_op(op, dialect, driver, on_stream, ops_queue, monkeypatch):
    """Bytes on the device and by the host's decision, strided and not, of three kinds of tensors."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    on_stream()
    for seed in range(12):
        inputs = random_inputs(op, 2 + seed % 4, 1 + seed % 5, seed, LAYOUT)
        numbers = ["accept_num", "token_num_per_batch", "cu_batch_token_offset", "seq_lens_decoder",
                   "prompt_lens", "preempted_idx", "step_idx"]  # fmt: skip
        chosen = [name for name in inputs if seed % 2 or name not in numbers]
        tensors = placed(inputs, (Exchange, Other, Torch)[seed % 3], chosen, gap=seed % 4 // 2)
        getattr(ops, op)(*arguments(op, tensors), layout=LAYOUT)
        assert_message(ops_queue, op, arguments(op, inputs), dialect)


@gpu
def test_the_kernel_waits_for_its_stream(driver, on_stream, ops_queue):
    stream = on_stream()
    x, new = Exchange(np.zeros((4, 1), np.int64)), np.full((4, 1), 7)
    driver.busy(stream, 200_000)
    x.memory.put(new, stream)
    ops.save_output(x, FLAG, np.zeros((4, 1), np.int32), 0, False)
    assert ops.flush(20)
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(3) == [7]


@gpu
def test_a_capture_in_another_thread(driver, ops_queue):
    """In global mode, as PyTorch's: new buffers and waiting for events leave it sound."""
    begun, enough, ended = threading.Event(), threading.Event(), []

    def capture():
        driver.current(0)
        stream = driver.stub_stream()
        driver.begin_capture(stream)
        begun.set()
        enough.wait(20)
        ended.append(driver.end_capture(stream))

    tensors = [plain(n) for n in range(3)]  # made before: copying to them would spoil it, and freeing others
    assert ops.flush(10)
    gc.collect()
    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait(20)
    try:
        for tensor in tensors:
            ops.save_output(*tensor, layout=fp.Layout(max_batch=20000))
        sent = ops.flush(10)
    finally:
        enough.set()
        thread.join()
    assert (sent, ended) == (True, [0])


@gpu
def test_a_thread_without_a_context(driver, ops_queue):
    tensor = plain(5)
    thread = threading.Thread(target=ops.save_output, args=tensor)
    thread.start()
    thread.join()
    assert ops.flush(10)
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(0) == [5]


@gpu
def test_a_stream_of_our_own(driver, on_stream, ops_queue):
    """Complete tensors are delivered before the work that is behind them on the caller's stream."""
    stream = on_stream()
    tensor = plain(6)
    ops.ready(tensor[0])
    driver.busy(stream, 600_000)
    ops.save_output(*tensor)
    assert ops.flush(0.4)
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(0) == [6]


@gpu
def test_a_number_that_does_not_fit(driver, on_stream, ops_queue):
    on_stream()
    ops.save_output(*plain(1 << 40))
    with pytest.raises(ValueError, match=r"x\[0, 0\] does not fit"):
        ops.flush(20)
    assert ops_queue.waiting() == 0


WAY = """
import numpy as np, os
from tests.lib import real_cuda
real_cuda.use()
from tests.lib.stub_cuda import Exchange
import fd_postproc as fp
from fd_postproc import ops
for n in range(300):
    ops.save_output(Exchange(np.array([[n]])), np.array([True]), np.zeros(1, np.int32), 0, False)
    if n % 20 == 19:
        assert ops.flush(10)
        with fp.Receiver("plain") as receiver:
            assert [receiver.receive(1).token_ids(0)[0] for _ in range(20)] == list(range(n - 19, n + 1))
print("sent")
"""


@gpu
@pytest.mark.parametrize("way", ["mapped", "copy", "watch"])
def test_every_way_out(way, driver, ops_queue):
    environment = {**os.environ, "FD_POSTPROC_CUDA_WAY": way}
    done = subprocess.run(python(WAY), env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "sent\n", done.stderr


@pytest.mark.nightly
def test_these_tests_run_on_the_stub(stub_path):
    """So that the first run on a device is not the first run."""
    if "san" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("a sanitizer has to be loaded first, and so has the stub")
    program = Path(sys.executable).with_name("pytest")
    command = [sys.executable, program, "-q", "-n", "0", "-m", "gpu", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command,
        env={**os.environ, SHOWN_ON_THE_STUB: stub_path, "LD_PRELOAD": stub_path},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout.splitlines()[-1]

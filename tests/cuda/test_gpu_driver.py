"""Save ops on a real CUDA device, without any framework: tensors are the driver's memory.

    pytest -m gpu tests/cuda/test_gpu_driver.py

Each test is one thing that only a device can tell.  PyTorch's tensors are in test_gpu.py.
"""

import gc
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from tests.lib import real_cuda, stub_cuda
from tests.lib.children import python
from tests.lib.device_saves import FLAG, LAYOUT, assert_message, placed
from tests.lib.rows import each
from tests.lib.save_cases import CHANNELS, arguments, random_inputs
from tests.lib.stub_cuda import Exchange, Other, Torch
from tests.lib.waiting import PATIENCE

pytestmark = pytest.mark.gpu


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


@each("dialect", ["packed", "legacy", "compact"])
@each("op", CHANNELS)
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


def test_the_kernel_waits_for_its_stream(driver, on_stream, ops_queue):
    stream = on_stream()
    x, new = Exchange(np.zeros((4, 1), np.int64)), np.full((4, 1), 7)
    driver.busy(stream, 200_000)
    x.memory.put(new, stream)
    ops.save_output(x, FLAG, np.zeros((4, 1), np.int32), 0, False)
    assert ops.flush(20)
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(3) == [7]


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
    assert ops.flush(60)
    gc.collect()
    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait(20)
    try:
        for tensor in tensors:
            ops.save_output(*tensor, layout=fp.Layout(max_batch=20000))
        sent = ops.flush(60)
    finally:
        enough.set()
        thread.join()
    assert (sent, ended) == (True, [0])


def test_two_streams(driver, on_stream, ops_queue):
    """Messages leave in the order of the calls, though the second stream is done first."""
    first = on_stream()
    driver.busy(first, 300_000)
    ops.save_output(*plain(1))
    on_stream()
    ops.save_output(*plain(2))
    assert ops.flush(20)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(1).token_ids(0) for _ in range(2)] == [[1], [2]]


FORK = """
import os, sys, warnings
import numpy as np
warnings.simplefilter("ignore")  # Python 3.12 warns of forking with threads
child = os.fork() if sys.argv[1] == "before" else 1
from tests.lib import real_cuda
real_cuda.use()
from tests.lib.stub_cuda import Exchange
from fd_postproc import CudaError, ops

def save(n):
    tensor = np.array([[n]]) if n > 2 else Exchange(np.array([[n]]))
    ops.save_output(tensor, np.array([True]), np.zeros(1, np.int32), 0, False)

if sys.argv[1] == "after":
    save(1)
    assert ops.flush(60)
    tensor = Exchange(np.array([[2]]))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ops.save_output(tensor, np.array([True]), np.zeros(1, np.int32), 0, False)
        except CudaError as error:
            status = 0 if "forked" in str(error) else 2
            save(3)  # a host tensor is saved all the same
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    save(2)
    assert ops.flush(60)
elif child == 0:  # forked before the driver was initialised: each has its own
    save(1)
    assert ops.flush(60)
    os._exit(0)
else:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    save(2)
    assert ops.flush(60)
print("ended")
"""


@each("when, tokens", [("before", [1, 2]), ("after", [1, 3, 2])])
def test_fork(when, tokens, driver, ops_queue):
    """A child forked before CUDA was used can use it; one forked later is told, and sends host tensors."""
    done = subprocess.run(python(FORK, when), capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "ended\n", done.stderr
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(1).token_ids(0)[0] for _ in tokens] == tokens


def test_a_queue_that_stays_full(driver, on_stream, ops_queue):
    """The call waits once all buffers are in use; nothing is lost, and the order stays."""
    on_stream()
    ops.save_output(*plain(0))
    assert ops.flush(60)
    ops_queue.open("plain").max_size = 40
    thread = threading.Thread(target=lambda: [ops.save_output(*plain(n)) for n in range(1, 20)])
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    assert not ops.flush(0.1)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(5).token_ids(0)[0] for _ in range(20)] == list(range(20))
    thread.join(20)
    assert ops.flush(60)

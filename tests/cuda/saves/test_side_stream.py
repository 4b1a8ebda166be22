"""A stream of our own for tensors that are complete, although more work is on the caller's stream already."""

import ctypes
import subprocess
import sys
import time
import types

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.fastdeploy.worker import overlap
from fd_postproc.ops.device import saves
from tests.lib.children import python
from tests.lib.device_saves import FLAG, LAYOUT, assert_message, placed
from tests.lib.frameworks import FRAMEWORKS, made
from tests.lib.save_cases import arguments, random_inputs
from tests.lib.stub_cuda import Exchange

OP = "save_output_topk"
UNTIL_RELEASED = ctypes.c_int64(-1)


@pytest.fixture
def step(stub, streams, ops_queue):
    """A function that puts a step's tensors on a stream, and the next forward pass behind them.

    That one lasts until `stub_release`.
    """
    stub.stub_busy.restype = None
    kept = []  # until the stream has written into them

    def step(inputs, marked=None, forward=True):
        streams()
        tensors = placed(inputs, Exchange, put_on=streams.now)
        if marked is not None:
            ops.ready(*[tensors[name] for name in marked])
        kept.append(tensors)
        if forward:
            stub.stub_busy(ctypes.c_void_p(streams.now), UNTIL_RELEASED)
        return arguments(OP, tensors)

    yield step
    if saves.extension is not None:
        saves.extension.unmark()


def inputs_of(seed=1):
    return random_inputs(OP, 4, 3, seed)


ALL = ["x", "topk_ids", "logprob_scores", "ranks", "preempted_idx"]


@pytest.mark.parametrize("again", [False, True])
def test_a_step_is_delivered_before_the_next_forward_pass(again, step, ops_queue, slow):
    slow(10)
    for seed in range(1 + again):
        inputs = inputs_of(seed)
        ops.save_output_topk(*step(inputs, ALL), layout=LAYOUT)
        assert ops.flush(10)  # the forward pass takes longer
        assert_message(ops_queue, OP, arguments(OP, inputs), "packed")


@pytest.mark.parametrize("marked", [None, ALL[:-1]])
def test_without_a_mark_of_all_tensors_the_stream_is_the_callers(marked, step, ops_queue, stub):
    inputs = inputs_of()
    ops.save_output_topk(*step(inputs, marked), layout=LAYOUT)
    assert not ops.flush(0.1)
    stub.stub_release()
    assert_message(ops_queue, OP, arguments(OP, inputs), "packed")


def test_the_mark_is_waited_for(step, ops_queue, slow):
    """The tensors get their values by slow work before it."""
    slow(60)
    inputs = inputs_of()
    ops.save_output_topk(*step(inputs, ALL), layout=LAYOUT)
    assert_message(ops_queue, OP, arguments(OP, inputs), "packed")


def test_what_comes_later_on_the_callers_stream_waits_for_the_save(step, ops_queue, streams, slow):
    """A tensor that is overwritten then is saved as it was."""
    inputs = inputs_of()
    args = step(inputs, ALL, forward=False)
    time.sleep(0.05)  # until they have their values
    slow(300)
    ops.save_output_topk(*args, layout=LAYOUT)
    time.sleep(0.1)  # until the kernel has begun, slowly
    slow(0)
    args[0].memory.put(np.zeros((4, 1), np.int64), streams.now)
    assert_message(ops_queue, OP, arguments(OP, inputs), "packed")


def test_marks_are_forgotten_after_the_one_after_the_next(step, ops_queue, stub):
    first = step(inputs_of(1), ALL)
    step(inputs_of(2), ALL)
    ops.save_output_topk(*first, layout=LAYOUT)
    assert ops.flush(10)
    ops_queue.take("topk")
    first = step(inputs_of(1), ALL)
    step(inputs_of(2), ALL)
    step(inputs_of(3), ALL)
    ops.save_output_topk(*first, layout=LAYOUT)
    assert not ops.flush(0.1)
    stub.stub_release()
    assert ops.flush(10)


def test_messages_stay_in_order(step, ops_queue, stub):
    """The second save is done on the device first."""
    first, second = inputs_of(1), inputs_of(1)
    for inputs, token in (first, 11), (second, 22):
        inputs["x"][:] = token
        inputs["preempted_idx"][:] = 0
    args = step(second, ALL)
    ops.save_output_topk(*arguments(OP, placed(first, Exchange)), layout=LAYOUT)
    ops.save_output_topk(*args, layout=LAYOUT)
    assert not ops.flush(0.1)
    stub.stub_release()
    assert ops.flush(10)
    with fp.Receiver("topk", layout=LAYOUT) as receiver:
        assert [receiver.receive(1).token_ids(0) for _ in range(2)] == [[11], [22]]


class Runner:
    """What there is of FastDeploy's."""

    def _postprocess(self, sampler_output):
        return "data", sampler_output, "event"


@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("made_later", [False, True])
def test_the_plug_in_marks_a_steps_logprobs(switch, made_later, stub, streams, ops_queue, monkeypatch):
    """Tensors of requests are in host memory, as FastDeploy has them; what is made later is not marked."""
    monkeypatch.setenv("FD_POSTPROC_CUDA_SIDE_STREAM", switch)
    module = types.SimpleNamespace(GPUModelRunner=type("GPUModelRunner", (Runner,), {}))
    monkeypatch.setitem(sys.modules, "fastdeploy.worker.gpu_model_runner", module)
    original = module.GPUModelRunner._postprocess
    overlap.begin()
    overlap.begin()
    stream = streams()
    inputs = inputs_of()
    names = ["topk_ids", "logprob_scores", "ranks"]
    tensors = placed(inputs, Exchange, names, put_on=stream)
    logprobs = types.SimpleNamespace(
        logprob_token_ids=tensors["topk_ids"],
        logprobs=tensors["logprob_scores"],
        selected_token_ranks=tensors["ranks"],
    )
    output = types.SimpleNamespace(logprobs_tensors=logprobs, cu_batch_token_offset=None)
    assert module.GPUModelRunner()._postprocess(output) == ("data", output, "event")
    if made_later:
        tensors["logprob_scores"] = Exchange(inputs["logprob_scores"], put_on=stream)
    stub.stub_busy(ctypes.c_void_p(stream), UNTIL_RELEASED)
    ops.save_output_topk(*arguments(OP, tensors), layout=LAYOUT)
    told = switch == "1" and not made_later
    assert ops.flush(10 if told else 0.1) is told
    stub.stub_release()
    assert_message(ops_queue, OP, arguments(OP, inputs), "packed")
    overlap.end()
    assert module.GPUModelRunner._postprocess is original
    saves.extension.unmark()


def test_an_error_of_the_plug_ins_mark_is_logged_once_and_harms_nothing(monkeypatch, caplog):
    monkeypatch.setenv("FD_POSTPROC_CUDA_SIDE_STREAM", "1")
    module = types.SimpleNamespace(GPUModelRunner=type("GPUModelRunner", (Runner,), {}))
    monkeypatch.setitem(sys.modules, "fastdeploy.worker.gpu_model_runner", module)
    overlap.begin()
    output = types.SimpleNamespace(logprobs_tensors=types.SimpleNamespace(logprobs="no tensor"))
    for _ in range(2):
        assert module.GPUModelRunner()._postprocess(output)[1] is output
    assert sum("saved on the current stream again" in record.message for record in caplog.records) == 1


def test_a_mark_on_a_machine_without_a_driver(environment):
    """Tensors in host memory need none; of one on a device the caller is told, and goes on."""
    done = subprocess.run(python(NO_DRIVER), env=environment, capture_output=True, text=True, timeout=60)
    if "there is a driver" in done.stdout:
        pytest.skip("there is a driver")
    assert done.stdout.split("\n") == ["None", *3 * ["no CUDA driver"], "True", ""], done.stderr


NO_DRIVER = """
import types
import numpy as np
from tests.lib import stub_cuda
import fd_postproc as fp
from fd_postproc import ops

if "no CUDA driver" not in fp.why_no_cuda():
    raise SystemExit(print("there is a driver"))
stub_cuda._loaded = types.SimpleNamespace(  # tensors whose memory nobody has
    stub_alloc=lambda size, device: 1 << 46, stub_put=lambda *_: None, stub_free=lambda *_: None)
print(ops.ready(np.zeros(3), np.zeros((2, 2), np.float32)))
for kind in stub_cuda.Exchange, stub_cuda.Torch, stub_cuda.Paddle26:
    try:
        ops.ready(np.zeros(3), kind(np.zeros((2, 2), np.int64)))
    except fp.CudaError as error:
        print("no CUDA driver" if "no CUDA driver" in str(error) else error)
print(ops.flush(1))
"""


@pytest.mark.parametrize("framework", [FRAMEWORKS["paddle"], FRAMEWORKS["torch"]])
def test_a_mark_of_a_frameworks_host_tensors(framework, stub):
    framework = made(framework)
    for dtype in np.int64, np.int32, np.float32:
        ops.ready(framework.tensor(np.zeros((2, 3), dtype)))
    ops.ready(framework.tensor(np.zeros((0, 3), np.int64)))


def test_tensors_of_two_devices_cannot_be_marked_together(step):
    with pytest.raises(ValueError, match="several CUDA devices"):
        ops.ready(Exchange(np.zeros(1, np.float32)), Exchange(np.zeros(1, np.float32), device=1))
    ops.ready(np.zeros(3), FLAG.astype(np.int64))  # nothing to do

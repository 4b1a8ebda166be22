"""Tensors on a device that no message can be made of: what is refused at once, what is found out later."""

import contextlib
import ctypes
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops, queues
from fd_postproc.errors import UnsentSave
from fd_postproc.fastdeploy.worker.save_ops import SaveOp
from fd_postproc.ops.device import DeviceSaves, saves
from fd_postproc.ops.proof import Comparison
from tests.lib.device_saves import FLAG, KINDS, save
from tests.lib.rows import each
from tests.lib.save_cases import arguments
from tests.lib.stub_cuda import Cupy, Exchange, Torch

pytestmark = pytest.mark.usefixtures("streams")


def assert_refused(error, text, **changed):
    inputs = {name: Exchange(array) for name, array in TOPK.items()}
    with pytest.raises(error, match=text):
        ops.save_output_topk(*arguments("save_output_topk", {**inputs, "not_need_stop": FLAG, **changed}))


TOPK = {
    "x": np.array([[1], [2]]),
    "topk_ids": np.array([[1, 2, 3], [4, 5, 6]]),
    "logprob_scores": np.zeros((2, 3), np.float32),
    "ranks": np.array([1, 2]),
    "preempted_idx": np.zeros((2, 1), np.int32),
}


@each("shape", [(1 << 40, 1 << 40), (1 << 32, 1 << 32), (-1, 4), (-2, -4), (1 << 62, 2)])
def test_a_shape_whose_product_overflows(shape):
    """2**32 * 2**32 elements are none in 64 bits; what a framework says of a tensor is checked."""
    tensor = Exchange(TOPK["x"])
    tensor.c_shape[:] = shape
    assert_refused(ValueError, r"x has shape \[.*\]: so many elements are in no memory", x=tensor)


@each("kind", KINDS)
def test_dtypes_that_the_kernel_cannot_read(kind, ops_queue):
    for dtype, name in (np.float64, "logprob_scores"), (np.float16, "logprob_scores"), (np.int16, "ranks"):
        wrong = kind(TOPK[name].astype(dtype))
        assert_refused(TypeError, f"{name} on .* has dtype .* convert it", **{name: wrong})
    assert ops_queue.waiting() == 0


def stepping(*strides):
    tensor = Cupy(np.zeros((2, 3), np.int32))
    tensor.__cuda_array_interface__["strides"] = strides
    return tensor


@each(
    "name, tensor, text",
    [
        ("ranks", lambda: Exchange(TOPK["ranks"], device=1), "ranks is on CUDA device 1, but x on .* 0"),
        ("ranks", lambda: Cupy(TOPK["ranks"], device=1), "ranks is on CUDA device 1"),
        ("preempted_idx", lambda: Exchange(np.zeros((1, 1), np.int32)), "preempted_idx has 1 elements"),
        (
            "logprob_scores",
            lambda: Exchange(np.zeros((2, 2), np.float32)),
            r"logprob_scores has shape \[2, 2\]",
        ),
        ("preempted_idx", lambda: stepping(40, 4), "a single stride does not"),
        ("preempted_idx", lambda: stepping(40, 3), "no multiples"),
    ],
)
def test_tensors_that_do_not_go_together(ops_queue, name, tensor, text):
    assert_refused(ValueError, text, **{name: tensor()})


def test_frameworks_whose_streams_differ(ops_queue, monkeypatch, stub):
    ids = Cupy(TOPK["topk_ids"])
    monkeypatch.setattr(Exchange, "stream", stub.stub_stream())
    assert_refused(ValueError, "streams differ", topk_ids=ids)


def test_a_stream_that_is_being_captured(ops_queue, streams, stub):
    stub.stub_capture(ctypes.c_void_p(streams()), 1)
    assert_refused(fp.CudaError, "captured into a CUDA graph")


def test_too_large_a_batch(ops_queue):
    x = Exchange(np.zeros((600, 1), np.int64))
    with pytest.raises(ValueError, match="x has a batch of 600; at most 512"):
        ops.save_output(x, FLAG, np.zeros(600, np.int32), 0, False)


# Requests that the kernel's shared memory has room for; FastDeploy's builds have 512 slots at most.
ROOM = 2292
WIDE = fp.Layout(max_batch=4000)


def wide_step(n):
    x = np.full((n, 1), 7)
    x[-1] = n
    return x


def test_a_batch_that_the_kernel_has_no_room_for(ops_queue, slow, monkeypatch):
    """It is refused at once; what was saved before is sent before, and host tensors are sent."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    slow(20)
    x, more = wide_step(ROOM), wide_step(ROOM + 1)
    rest = FLAG, np.zeros(ROOM + 1, np.int32), 0, False
    ops.save_output(Exchange(x), *rest, layout=WIDE)
    with pytest.raises(ValueError, match=rf"a batch of {ROOM + 1} is more than the {ROOM} .*\.cpu\(\)"):
        ops.save_output(Exchange(more), *rest, layout=WIDE)
    with fp.Receiver("plain", layout=WIDE) as receiver, ThreadPoolExecutor() as pool:
        steps = pool.submit(lambda: [receiver.receive(10), receiver.receive(10)])  # the queue holds one
        ops.save_output(more, *rest, layout=WIDE)
        for n, step in zip((ROOM, ROOM + 1), steps.result(), strict=True):
            assert (step.batch, step.token_ids(0), step.token_ids(n - 1)) == (n, [7], [n])
    assert ops.flush(60)
    assert ops_queue.waiting() == 0


def test_a_batch_that_the_host_decides_about_needs_no_room(ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    n = WIDE.max_batch
    counts, zeros = np.ones(n, np.int32), np.zeros((n, 1), np.int32)
    numbers = counts, FLAG, zeros, zeros.astype(np.int64), zeros, 0, False, True
    with fp.Receiver("spec", layout=WIDE) as receiver:
        ops.speculate_save_output(Exchange(wide_step(n)), *numbers, layout=WIDE)
        step = receiver.receive(10)
    assert (step.batch, step.token_ids(0), step.token_ids(n - 1)) == (n, [7], [n])


def test_the_plug_in_leaves_it_to_fastdeploy(ops_queue, monkeypatch):
    """Its own op saves that step, and those that follow; what was saved before is in the queue by then."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    monkeypatch.setattr(SaveOp, "_dialect", lambda self, batch: "compact")
    monkeypatch.setattr(SaveOp, "_check_room", lambda self, args, dialect: None)
    left = []

    def fastdeploys(*args):
        left.append((ops_queue.waiting() > 0, args[0].shape[0]))

    op = SaveOp("save_output", fastdeploys)
    op._own = functools.partial(ops.save_output, layout=WIDE)
    for n in 4, ROOM + 1, 4:
        op(Exchange(wide_step(n)), FLAG, np.zeros(n, np.int32), 0, False)
    assert left == [(True, ROOM + 1), (True, 4)]
    with fp.Receiver("plain", layout=WIDE) as receiver:
        assert receiver.receive(0).batch == 4
    assert ops_queue.waiting() == 0


def test_a_tensor_of_another_kind_of_device(ops_queue):
    tensor = Torch(np.array([[1]]))
    tensor.device.type = "xpu"
    with pytest.raises(ValueError, match="x is on cuda:0; it must be in host memory"):
        ops.save_output(tensor, FLAG, np.zeros(1, np.int32), 0, False)


def refused_later(send):
    """The error that the next call, or flush, raises."""
    send()
    with pytest.raises((ValueError, fp.QueueError)) as error:
        assert ops.flush(60)
    assert ops.flush(60)  # told once
    return error.value


def test_numbers_that_do_not_fit(ops_queue):
    error = refused_later(lambda: save(1 << 31))
    assert "save_output: x[0, 0] does not fit the 32 bits" in str(error)
    error = refused_later(lambda: save(-(1 << 40)))
    assert "x[0, 0] does not fit" in str(error)
    accept = Exchange(np.zeros((2, 6), np.int64)), Exchange(np.array([1, 7], np.int32))
    zeros = np.zeros((2, 1), np.int32)
    error = refused_later(
        lambda: ops.speculate_save_output(*accept, FLAG, zeros, zeros.astype(np.int64), zeros, 0, False, True)
    )
    assert "accept_num[1]: 7 tokens for one request; at most 6 fit a slot" in str(error)
    assert ops_queue.waiting() == 0


def test_what_the_host_knows_is_refused_at_once(ops_queue):
    """All numbers that decide are in host memory: the call that was given them raises."""
    accept = Exchange(np.zeros((2, 6), np.int64)), np.array([1, 7], np.int32)
    zeros = np.zeros((2, 1), np.int32)
    with pytest.raises(
        ValueError, match=r"^speculate_save_output: accept_num\[1\]: 7 tokens for one request"
    ):
        ops.speculate_save_output(*accept, FLAG, zeros, zeros.astype(np.int64), zeros, 0, False, True)
    assert ops.flush(60)
    assert ops_queue.waiting() == 0


def test_an_error_is_raised_by_the_next_save_and_only_its_message_is_missing(ops_queue, slow):
    slow(20)
    lost = ops.save_stats()["lost"]
    save(1)
    save(1 << 31)
    save(2)
    while saves.extension.pending():
        time.sleep(0.01)
    with pytest.raises(ValueError, match="an earlier save"):
        save(3)
    save(4)
    assert ops.flush(60)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(0).token_ids(0) for _ in range(3)] == [[1], [2], [4]]
    assert ops.save_stats()["lost"] == lost + 1


def test_several_errors_are_told(ops_queue, caplog, slow):
    slow(-1)
    for n in range(4):
        save((1 << 31) + n)  # each returns before the first is known to be wrong
    slow(0)
    with pytest.raises(ValueError, match="does not fit"):
        ops.flush(60)
    assert sum("does not fit" in record.message for record in caplog.records) == 3


def test_more_errors_than_are_kept_are_counted(run):
    """All of twenty become known before anything asks: sixteen are told, and how many more there were."""
    code = """
import logging
logging.basicConfig(format="%(message)s", stream=sys.stdout)
stub.stub_delay(ctypes.c_int64(-1000))
for n in range(20):
    save((1 << 31) + n)
stub.stub_delay(ctypes.c_int64(0))
while device.saves.extension.pending():
    time.sleep(0.01)
print(error_of(ops.flush, 10))
print(ops.save_stats()["lost"], device.saves.extension.held()[0])
save(1 << 31)
print(error_of(ops.flush, 10))
save(7)
print(error_of(ops.flush, 10))
"""
    told = run(code, FD_POSTPROC_CUDA_BUFFERS="64")
    assert told.count("does not fit") == 17, told
    assert told.count("more saved messages") == 1, told.count("more saved messages")
    assert "4 more saved messages were not sent" in told
    *_, counts, _, nothing = told.strip().splitlines()
    assert (counts, nothing) == ("20 0", "none")


class FailsBetween:
    """Stands in for the extension, whose thread fails a save after so many questions."""

    def __init__(self, questions, kind):
        self.left, self.errors = questions, [UnsentSave(0, kind, fp.CudaError("planted"), 0)]

    def answer(self, before, after):
        self.left -= 1
        return before if self.left >= 0 else after()

    def finished(self):
        return self.answer(0, lambda: 1)

    def take_error(self):
        return self.answer(None, lambda: self.errors.pop() if self.errors else None)

    def broken(self):
        return False

    def drain(self, deadline):
        return True


@each("kind, is_compared", [("layout", False), ("driver", False), ("driver", True)])
@each("questions", range(6))
def test_an_error_counts_once_whenever_the_thread_meets_it(questions, kind, is_compared):
    """One of the driver's turns the kernel off, also where its message was only compared."""
    device, lane = DeviceSaves(), SimpleNamespace(msqid=1, channel="plain", key=1)
    device.extension, device.lanes = FailsBetween(questions, kind), [lane]
    device.proof.mode = "auto"
    comparison = Comparison(device.proof, (lane,), "save_output", 1, None) if is_compared else None
    device._records.append((0, None, lane, (comparison, None, None)))
    raised = 0
    for _ in range(6):
        try:
            device.flush(0)
        except ValueError:
            raised += 1
    assert (raised, bool(device.proof.why_off), len(device._records)) == (
        kind == "layout",
        kind == "driver",
        0,
    )


def test_a_removed_queue_is_told_and_made_anew(ops_queue):
    save(1)
    assert ops.flush(60)
    ops_queue.open("plain").remove()
    error = refused_later(lambda: save(2))
    assert isinstance(error, fp.QueueRemoved)
    assert f"key {queues.key_text(queues.locate('plain'))}" in str(error)
    save(3)
    assert ops.flush(60)
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(0) == [3]


def test_a_message_that_is_too_big(ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "packed")
    save(1)
    assert ops.flush(60)
    queue = ops_queue.open("plain")
    queue.receive(block=False)
    queue.max_size = 11
    error = refused_later(lambda: save(1))
    assert isinstance(error, fp.MessageTooBig)
    assert (error.size, error.limit) == (12, 11)
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    error = refused_later(lambda: save(1))
    assert isinstance(error, fp.MessageTooBig)


def test_frames_are_numbered_in_the_order_of_sending(ops_queue, monkeypatch):
    """A save that is refused leaves no hole."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    for x in 1, 1 << 31, 2, 3:
        with contextlib.suppress(ValueError):
            save(x)
            assert ops.flush(60)
    with fp.Receiver("plain") as receiver:
        steps = [receiver.receive(0) for _ in range(3)]
    assert [(step.seq, step.token_ids(0)) for step in steps] == [(0, [1]), (1, [2]), (2, [3])]

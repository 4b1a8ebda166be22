"""Save ops with tensors on a CUDA device: the unmodified binding on a stub driver (lib/stub_cuda.py).

What needs a process of its own, such as errors of the driver, is in test_save_device_process.py.
"""

import contextlib
import ctypes
import sys
import threading
import time
import types
import weakref
from dataclasses import replace

import numpy as np
import pytest
import sysv_ipc
from save_cases import CHANNELS, arguments, random_inputs
from stub_cuda import Cupy, Exchange, Other, Paddle26, Torch

import fd_postproc as fp
from fd_postproc import ops, queues, reference
from fd_postproc.ops import device
from fd_postproc.tensors import stream_handle

KINDS = [Cupy, Exchange, Other, Paddle26, Torch]
LAYOUT = fp.Layout(max_batch=32, top_k=5, max_draft=6, spec_batch=32)  # whose messages fit any limit
FLAG = np.array([True])


@pytest.fixture(autouse=True)
def streams(stub, monkeypatch):
    """A function that makes a new stream the current one of every framework, and returns its handle."""

    def current(device=0):
        return types.SimpleNamespace(cuda_stream=streams.now)

    core = types.SimpleNamespace(_get_current_stream=current)
    cuda = types.SimpleNamespace(current_stream=current)
    fakes = {
        "paddle": types.SimpleNamespace(base=types.SimpleNamespace(core=core)),
        "torch": types.SimpleNamespace(cuda=cuda),
        "cupy": types.SimpleNamespace(
            cuda=types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=streams.now))
        ),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr(Other, "stream", 0)
    monkeypatch.setattr(Exchange, "stream", 0)

    def streams():
        streams.now = Other.stream = Exchange.stream = stub.stub_stream()
        return streams.now

    streams.now = 0
    return streams


@pytest.fixture
def slow(stub):
    """A function that makes everything on the device take so many milliseconds."""
    return lambda ms: stub.stub_delay(ctypes.c_int64(ms * 1000))


def placed(inputs, kind, chosen=None, **keywords):
    """Inputs of a save op, on the device but for the flag and what is not chosen."""
    return {
        name: kind(array, **keywords)
        if name != "not_need_stop" and (chosen is None or name in chosen)
        else array
        for name, array in inputs.items()
    }


def same(compact, stock):
    """Whether two Steps say the same, though not in one dialect."""
    compact, stock = (reference.ReferenceStep.from_step(step) for step in (compact, stock))
    return replace(compact, dialect=stock.dialect, seq=None) == stock


def assert_message(queue, op, args, dialect):
    """The only message is what the reference makes of the host arguments."""
    assert ops.flush(10)
    channel = CHANNELS[op]
    payload, mtype = queue.take(channel)
    if dialect == "compact":
        assert mtype == 2
        expected = fp.decode(
            getattr(reference, op)(*args, dialect="packed", layout=LAYOUT).payload, channel, layout=LAYOUT
        )
        found = fp.decode(payload, channel, mtype=2, layout=LAYOUT)
        assert same(found, expected)
        return
    expected = getattr(reference, op)(*args, dialect=dialect, layout=LAYOUT)
    assert mtype == 1
    assert len(payload) == len(expected.payload)
    for part in expected.written:
        assert payload[part.start : part.stop] == expected.payload[part.start : part.stop], part


@pytest.mark.parametrize("dialect", ["packed", "legacy", "compact"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", CHANNELS)
def test_the_message_is_the_host_tensors(op, kind, dialect, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    for seed in range(3):
        inputs = random_inputs(op, 5, 3, seed)
        getattr(ops, op)(*arguments(op, placed(inputs, kind)), layout=LAYOUT)
        assert_message(ops_queue, op, arguments(op, inputs), dialect)


@pytest.mark.parametrize("op", CHANNELS)
def test_host_and_device_tensors_mixed(op, ops_queue):
    rng = np.random.default_rng(1)
    for seed in range(12):
        inputs = random_inputs(op, 4, 2, seed)
        names = [name for name in inputs if name != "not_need_stop"]
        chosen = rng.choice(names, rng.integers(1, len(names) + 1), replace=False)
        getattr(ops, op)(*arguments(op, placed(inputs, Exchange, chosen)), layout=LAYOUT)
        assert_message(ops_queue, op, arguments(op, inputs), "packed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", CHANNELS)
def test_strided_tensors(op, kind, ops_queue):
    inputs = random_inputs(op, 5, 3, 7)
    getattr(ops, op)(*arguments(op, placed(inputs, kind, gap=2)), layout=LAYOUT)
    assert_message(ops_queue, op, arguments(op, inputs), "packed")


def test_integers_of_the_other_width(ops_queue):
    op = "speculate_save_output"
    inputs = random_inputs(op, 5, 3, 7)
    swapped = {
        name: array.astype(np.int32 if array.dtype == np.int64 else np.int64)
        if array.dtype != bool
        else array
        for name, array in inputs.items()
    }
    getattr(ops, op)(*arguments(op, placed(swapped, Exchange)), layout=LAYOUT)
    assert_message(ops_queue, op, arguments(op, inputs), "packed")


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_runs_on_the_frameworks_current_stream(kind, ops_queue, streams, slow):
    """The tensors get their values by earlier work on it."""
    slow(30)
    stream = streams()
    inputs = random_inputs("save_output_topk", 5, 3, 7)
    tensors = placed(inputs, kind, put_on=stream)
    ops.save_output_topk(*arguments("save_output_topk", tensors), layout=LAYOUT)
    assert_message(ops_queue, "save_output_topk", arguments("save_output_topk", inputs), "packed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("goes_on", [True, False])
def test_the_stop_flag_may_be_on_the_device(kind, goes_on, ops_queue, monkeypatch):
    monkeypatch.setenv("INFERENCE_MSG_ID", "7")
    x = np.array([[5], [6]])
    ops.save_output(kind(x), kind(np.array([goes_on])), np.zeros(2, np.int32), 0, False)
    assert ops.flush(10)
    assert fp.decode(ops_queue.take("plain")[0], "plain").stop_flag == (7 if goes_on else -7)


def test_messages_leave_in_the_order_of_the_saves(ops_queue, slow):
    """Whether their tensors are on the device or not."""
    slow(20)
    for n in range(6):
        x = np.array([[n]])
        ops.save_output(x if n % 3 == 2 else Exchange(x), FLAG, np.zeros(1, np.int32), 0, False)
    assert ops.flush(10)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(0).token_ids(0) for _ in range(6)] == [[n] for n in range(6)]


def test_host_tensors_are_read_at_the_call(ops_queue, slow):
    slow(50)
    x, preempted = np.array([[5], [6]]), np.array([0, 1], np.int32)
    ops.save_output(Exchange(x), FLAG, preempted, 0, False)
    preempted[:] = 0  # as FastDeploy does
    assert ops.flush(10)
    assert fp.decode(ops_queue.take("plain")[0], "plain").counts == [1, -9]


def test_tensors_live_until_their_message_is_sent(ops_queue, slow):
    slow(600)
    tensor = Exchange(np.array([[5]]))
    alive = weakref.ref(tensor)
    ops.save_output(tensor, FLAG, np.zeros(1, np.int32), 0, False)
    del tensor
    assert alive() is not None
    assert ops.flush(10)
    assert alive() is None


def test_flush_waits_no_longer_than_it_may(ops_queue, slow):
    slow(1500)
    ops.save_output(Exchange(np.array([[5]])), FLAG, np.zeros(1, np.int32), 0, False)
    assert ops.flush(0) is False
    began = time.monotonic()
    assert ops.flush(0.05) is False
    assert time.monotonic() - began < 1
    assert ops.flush() is True
    with pytest.raises(ValueError, match="timeout = -1"):
        ops.flush(-1)


# ---- What is refused at once ----------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_that_the_kernel_cannot_read(kind, ops_queue):
    for dtype, name in (np.float64, "logprob_scores"), (np.float16, "logprob_scores"), (np.int16, "ranks"):
        wrong = kind(TOPK[name].astype(dtype))
        assert_refused(TypeError, f"{name} on .* has dtype .* convert it", **{name: wrong})
    assert ops_queue.waiting() == 0


def test_tensors_of_two_devices(ops_queue):
    assert_refused(
        ValueError,
        "ranks is on CUDA device 1, but x on CUDA device 0",
        ranks=Exchange(TOPK["ranks"], device=1),
    )
    assert_refused(ValueError, "ranks is on CUDA device 1", ranks=Cupy(TOPK["ranks"], device=1))


def test_all_on_the_second_device(ops_queue):
    inputs = random_inputs("save_output_topk", 5, 3, 7)
    for kind in KINDS:
        ops.save_output_topk(*arguments("save_output_topk", placed(inputs, kind, device=1)), layout=LAYOUT)
        assert_message(ops_queue, "save_output_topk", arguments("save_output_topk", inputs), "packed")


def test_frameworks_whose_streams_differ(ops_queue, monkeypatch, stub):
    ids = Cupy(TOPK["topk_ids"])
    monkeypatch.setattr(Exchange, "stream", stub.stub_stream())
    assert_refused(ValueError, "streams differ", topk_ids=ids)


def test_a_stream_that_is_being_captured(ops_queue, streams, stub):
    stub.stub_capture(ctypes.c_void_p(streams()), 1)
    assert_refused(fp.CudaError, "captured into a CUDA graph")


def test_shapes(ops_queue):
    assert_refused(ValueError, "preempted_idx has 1 elements for a batch of 2",
                   preempted_idx=Exchange(np.zeros((1, 1), np.int32)))  # fmt: skip
    assert_refused(ValueError, r"logprob_scores has shape \[2, 2\]",
                   logprob_scores=Exchange(np.zeros((2, 2), np.float32)))  # fmt: skip


def test_strides_that_no_single_step_goes_through(ops_queue):
    odd = Cupy(np.zeros((2, 3), np.int32))
    odd.__cuda_array_interface__["strides"] = (40, 4)
    assert_refused(ValueError, "no single step", preempted_idx=odd)
    odd.__cuda_array_interface__["strides"] = (40, 3)
    assert_refused(ValueError, "no multiples", preempted_idx=odd)


def test_too_large_a_batch(ops_queue):
    x = Exchange(np.zeros((600, 1), np.int64))
    with pytest.raises(ValueError, match="x has a batch of 600; at most 512"):
        ops.save_output(x, FLAG, np.zeros(600, np.int32), 0, False)
    layout = fp.Layout(max_batch=4000)
    x = Exchange(np.zeros((4000, 1), np.int64))
    with pytest.raises(ValueError, match=r"a batch of 4000.*\.cpu\(\)"):
        ops.save_output(x, FLAG, np.zeros(4000, np.int32), 0, False, layout=layout)


def test_a_tensor_of_another_kind_of_device(ops_queue):
    tensor = Torch(np.array([[1]]))
    tensor.device.type = "xpu"
    with pytest.raises(ValueError, match="x is on cuda:0; it must be in host memory"):
        ops.save_output(tensor, FLAG, np.zeros(1, np.int32), 0, False)


# ---- What is found out later ----------------------------------------------------------------------------


def refused_later(send):
    """The error that the next call, or flush, raises."""
    send()
    with pytest.raises((ValueError, fp.QueueError)) as error:
        assert ops.flush(10)
    assert ops.flush(10)  # told once
    return error.value


def save(x=5, preempted=0, **keywords):
    x = Exchange(np.array([[x]]))
    ops.save_output(x, FLAG, np.array([preempted], np.int32), 0, False, **keywords)


def test_numbers_that_do_not_fit(ops_queue):
    error = refused_later(lambda: save(1 << 31))
    assert "save_output: x[0, 0] does not fit the 32 bits" in str(error)
    error = refused_later(lambda: save(-(1 << 40)))
    assert f"x[0, 0] = {-(1 << 40)} does not fit" in str(error)
    accept = Exchange(np.zeros((2, 6), np.int64)), Exchange(np.array([1, 7], np.int32))
    zeros = np.zeros((2, 1), np.int32)
    error = refused_later(
        lambda: ops.speculate_save_output(*accept, FLAG, zeros, zeros.astype(np.int64), zeros, 0, False, True)
    )
    assert "accept_num[1]: 7 tokens for one request; at most 6 fit a slot" in str(error)
    assert ops_queue.waiting() == 0


def test_an_error_is_raised_by_the_next_save_and_only_its_message_is_missing(ops_queue, slow):
    slow(20)
    lost = ops.save_stats()["lost"]
    save(1)
    save(1 << 31)
    save(2)
    while device._save.pending():
        time.sleep(0.01)
    with pytest.raises(ValueError, match="an earlier save"):
        save(3)
    save(4)
    assert ops.flush(10)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(0).token_ids(0) for _ in range(3)] == [[1], [2], [4]]
    assert ops.save_stats()["lost"] == lost + 1


def test_several_errors_are_told(ops_queue, caplog, slow):
    slow(400)
    for n in range(4):
        save((1 << 31) + n)  # each returns before the first is known to be wrong
    with pytest.raises(ValueError, match="does not fit"):
        ops.flush(10)
    assert sum("does not fit" in record.message for record in caplog.records) == 3


def test_a_removed_queue_is_told_and_made_anew(ops_queue):
    save(1)
    assert ops.flush(10)
    ops_queue.open("plain").remove()
    error = refused_later(lambda: save(2))
    assert isinstance(error, fp.QueueRemoved)
    assert f"key {queues.locate('plain'):#x}" in str(error)
    save(3)
    assert ops.flush(10)
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(0) == [3]


def test_a_message_that_is_too_big(ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "packed")
    save(1)
    assert ops.flush(10)
    queue = ops_queue.open("plain")
    queue.receive(block=False)
    queue.max_size = 11
    error = refused_later(lambda: save(1))
    assert isinstance(error, fp.MessageTooBig)
    assert (error.size, error.limit) == (12, 11)
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    error = refused_later(lambda: save(1))
    assert isinstance(error, fp.MessageTooBig)


def test_compact_frames_in_pieces(ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    op = "speculate_save_output_topk"
    inputs = random_inputs(op, 30, 21, 3)
    args = arguments(op, placed(inputs, Exchange))
    getattr(ops, op)(*args)
    assert ops.flush(10)
    with fp.Receiver("spec_topk") as receiver:
        receiver.receive(1)
        before = ops.save_stats()["fragments"]
        ops_queue.open("spec_topk").max_size = 5000
        threading.Thread(target=lambda: getattr(ops, op)(*args)).start()
        found = receiver.receive(20)
    assert ops.flush(10)
    expected = fp.decode(
        getattr(reference, op)(*arguments(op, inputs), dialect="packed").payload, "spec_topk"
    )
    assert same(found, expected)
    assert ops.save_stats()["fragments"] > before


def test_frames_are_numbered_in_the_order_of_sending(ops_queue, monkeypatch):
    """A save that is refused leaves no hole."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    for x in 1, 1 << 31, 2, 3:
        with contextlib.suppress(ValueError):
            save(x)
            assert ops.flush(10)
    with fp.Receiver("plain") as receiver:
        steps = [receiver.receive(0) for _ in range(3)]
    assert [(step.seq, step.token_ids(0)) for step in steps] == [(0, [1]), (1, [2]), (2, [3])]


# ---- A full queue ---------------------------------------------------------------------------------------


def fill(ops_queue):
    """Make the queue so short that it holds three messages, and save as many as fit it and the ring."""
    save(0)
    assert ops.flush(10)
    ops_queue.open("plain").max_size = 40
    for n in range(1, 3 + 8):
        save(n)


def test_a_full_queue_holds_up_the_caller_after_eight_steps(ops_queue):
    before = ops.save_stats()
    fill(ops_queue)
    assert not ops.flush(0.1)
    assert max(lane.waiting_seconds for lane in device.lanes) > 0.05
    done = threading.Event()
    thread = threading.Thread(target=lambda: (save(11), done.set()))
    thread.start()
    assert not done.wait(0.2)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(5).token_ids(0)[0] for _ in range(12)] == list(range(12))
    thread.join()
    assert ops.flush(10)
    after = ops.save_stats()
    assert after["held"] == before["held"] + 1
    assert after["held_seconds"] - before["held_seconds"] > 0.1
    assert after["waits"] > before["waits"]
    assert after["lost"] == before["lost"]


def test_a_host_tensor_waits_for_what_was_saved_before(ops_queue):
    fill(ops_queue)
    done = threading.Event()
    host = np.array([[11]])
    thread = threading.Thread(
        target=lambda: (ops.save_output(host, FLAG, np.zeros(1, np.int32), 0, False), done.set())
    )
    thread.start()
    assert not done.wait(0.2)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(5).token_ids(0)[0] for _ in range(12)] == list(range(12))
    thread.join()


def test_removing_a_full_queue_wakes_everybody(ops_queue):
    fill(ops_queue)
    errors = []

    def save_more():
        try:
            for n in range(20):
                save(n)
        except fp.QueueRemoved as error:
            errors.append(error)

    thread = threading.Thread(target=save_more)
    thread.start()
    time.sleep(0.1)
    ops_queue.open("plain").remove()
    thread.join(10)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_threads(ops_queue):
    """Each thread's messages keep their order."""

    def work(first):
        for n in range(50):
            save(1000 * first + n)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    with fp.Receiver("plain") as receiver:
        found = [receiver.receive(10).token_ids(0)[0] for _ in range(200)]
    for thread in threads:
        thread.join()
    for first in range(4):
        assert [n for n in found if n // 1000 == first] == [1000 * first + n for n in range(50)]


def test_contexts_are_left_as_they_were(ops_queue, stub):
    save(1)
    assert stub.stub_depth() == 0


# ---- Packer ---------------------------------------------------------------------------------------------


def packed(op, inputs, **attributes):
    names = reference_names(op)
    defaults = {"rank_id": 0, "save_each_rank": False, "skip_prefill": True, "skip_chunk_prefill": True,
                "message_flag": 3}  # fmt: skip
    values = {**defaults, **inputs, **attributes}
    return ops.Packer(op, layout=LAYOUT, **{name: values[name] for name in names})


def reference_names(op):
    from save_cases import positional

    return positional(getattr(ops, op))


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("op", CHANNELS)
def test_packer(op, kind, ops_queue):
    inputs = random_inputs(op, 5, 3, 7)
    packer = packed(op, inputs if kind is None else placed(inputs, kind))
    assert packer.batch == 5
    assert packer.channel == CHANNELS[op]
    for _ in range(3):
        packer.save()
        assert_message(ops_queue, op, arguments(op, inputs), "packed")


@pytest.mark.parametrize("kind", [None, Exchange])
def test_a_packer_reads_what_its_tensors_hold_then(kind, ops_queue):
    x, flag, preempted = np.array([[1], [2], [3]]), np.array([True]), np.zeros((3, 1), np.int32)
    tensor = x if kind is None else kind(x)
    packer = packed("save_output", {"x": tensor, "not_need_stop": flag, "preempted_idx": preempted})
    assert f"batch 3, {'host memory' if kind is None else 'CUDA device 0'}" in repr(packer)
    preempted[1], flag[0] = 1, False
    if kind is None:
        x[2] = 9
    else:
        tensor.memory.put(np.array([[1], [2], [9]]))
    packer.save()
    assert ops.flush(10)
    step = fp.decode(ops_queue.take("plain")[0], "plain")
    assert (list(step.counts), step.token_ids(2), step.stop_flag) == ([1, -9, 1], [9], -1)
    packer.save(batch=2)
    assert ops.flush(10)
    assert fp.decode(ops_queue.take("plain")[0], "plain").counts == [1, -9]
    for wrong in -1, 4:
        with pytest.raises(ValueError, match=f"batch = {wrong}, but the tensors hold 3"):
            packer.save(wrong)
    assert ops_queue.waiting() == 0


def test_a_packer_on_a_stream_that_is_named(ops_queue, slow, stub):
    slow(20)
    x = Exchange(np.array([[1]]))
    packer = packed("save_output", {"x": x, "not_need_stop": FLAG, "preempted_idx": np.zeros(1, np.int32)})
    stream = stub.stub_stream()
    x.memory.put(np.array([[8]]), stream)
    packer.save(stream=types.SimpleNamespace(cuda_stream=stream))
    assert ops.flush(10)
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(0) == [8]


def test_streams_have_many_names():
    class Protocol:
        def __cuda_stream__(self):
            return 0, 12

    assert stream_handle(5) == 5
    assert stream_handle(Protocol()) == 12
    assert stream_handle(types.SimpleNamespace(ptr=7)) == 7
    with pytest.raises(TypeError, match="not str"):
        stream_handle("5")


def test_what_a_packer_refuses(ops_queue):
    inputs = {"x": np.array([[1]]), "not_need_stop": FLAG, "preempted_idx": np.zeros(1, np.int32)}
    good = {**inputs, "rank_id": 0, "save_each_rank": False}
    with pytest.raises(ValueError, match="op 'save' is not one of 'save_output'"):
        ops.Packer("save", **good)
    with pytest.raises(TypeError, match="save_output needs x, rank_id"):
        ops.Packer("save_output", **{k: v for k, v in good.items() if k not in ("x", "rank_id")})
    with pytest.raises(TypeError, match="no argument y"):
        ops.Packer("save_output", y=1, **good)
    with pytest.raises(ValueError, match="x would have to be copied"):
        ops.Packer("save_output", **{**good, "x": np.array([[1]], np.int16)})
    with pytest.raises(ValueError, match="message_flag = 256"):
        packed("speculate_save_output_topk", random_inputs("speculate_save_output_topk", 2, 2, 1),
               message_flag=256)  # fmt: skip
    packed("save_output", inputs, rank_id=1).save()
    assert ops_queue.waiting() == 0


def test_a_packer_sends_on_other_ranks_what_the_op_sends(ops_queue):
    inputs = random_inputs("mtp_save_first_token", 2, 2, 1)
    packed("mtp_save_first_token", inputs, rank_id=1, save_each_rank=True).save()
    assert ops_queue.waiting() == 1
    assert isinstance(ops_queue.open("spec"), sysv_ipc.MessageQueue)

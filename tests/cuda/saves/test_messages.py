"""The message is that of the same tensors on the host: any framework, stream and order of saves."""

import threading
import weakref

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from tests import reference
from tests.lib.device_saves import FLAG, KINDS, LAYOUT, assert_message, placed, same, save
from tests.lib.rows import each
from tests.lib.save_cases import CHANNELS, arguments, random_inputs
from tests.lib.stub_cuda import Cupy, Exchange, counted

pytestmark = pytest.mark.usefixtures("streams")


DIALECTS = ["packed", "legacy", "compact"]
PAIRS = [(op, kind, DIALECTS[(m + n) % 3]) for m, op in enumerate(CHANNELS) for n, kind in enumerate(KINDS)]


def other_width(array):
    if array.dtype.kind != "i" or abs(array).max(initial=0) >= 1 << 31:
        return array
    return array.astype(np.int32 if array.dtype == np.int64 else np.int64)


@each("op, kind, dialect", PAIRS)
def test_the_message_is_the_host_tensors(op, kind, dialect, ops_queue, monkeypatch, stub):
    """Strided or not, on either device, of either width, and with some of the tensors on the host."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    rng = np.random.default_rng(1)
    for seed, batch in enumerate((5, 1, 2, 5, 4, 5)):
        inputs = random_inputs(op, batch, 3, seed)
        chosen = [name for name in inputs if seed != 4 or rng.random() < 0.6] or None
        given = {name: other_width(one) if seed == 5 else one for name, one in inputs.items()}
        tensors = placed(given, kind, chosen, gap=2 if seed == 3 else 0, device=int(seed == 2))
        getattr(ops, op)(*arguments(op, tensors), layout=LAYOUT)
        assert_message(ops_queue, op, arguments(op, inputs), dialect)
        # The ids begin a line, whatever the batch is: a warp's stores fill lines then.
        assert counted("ids in line") == 0


@each("kind", KINDS)
def test_the_kernel_runs_on_the_frameworks_current_stream(kind, ops_queue, streams, slow):
    """The tensors get their values by earlier work on it."""
    slow(30)
    stream = streams()
    inputs = random_inputs("save_output_topk", 5, 3, 7)
    tensors = placed(inputs, kind, put_on=stream)
    ops.save_output_topk(*arguments("save_output_topk", tensors), layout=LAYOUT)
    assert_message(ops_queue, "save_output_topk", arguments("save_output_topk", inputs), "packed")


@each("on_host", [True, False])
def test_a_kernel_that_need_not_decide_has_no_shared_memory(on_host, ops_queue, stub):
    """The host has decided if it has all numbers of requests."""
    op = "speculate_save_output_topk"
    inputs = random_inputs(op, 5, 3, 7)
    chosen = [name for name in inputs if not on_host or name.startswith(("sampled", "logprob"))]
    getattr(ops, op)(*arguments(op, placed(inputs, Exchange, chosen)), layout=LAYOUT)
    assert_message(ops_queue, op, arguments(op, inputs), "packed")
    assert (counted("shared") == 0) is on_host


def test_cupy_has_a_current_stream_for_each_device(ops_queue, streams, stub):
    """The one of the tensor's device is taken, whichever device is current."""
    streams.of_device = {device: stub.stub_stream_of(device, 0) for device in (0, 1)}
    inputs = random_inputs("save_output_topk", 5, 3, 7)
    tensors = placed(inputs, Cupy, device=1)
    ops.save_output_topk(*arguments("save_output_topk", tensors), layout=LAYOUT)  # or the driver refuses
    assert_message(ops_queue, "save_output_topk", arguments("save_output_topk", inputs), "packed")


@each("kind", KINDS)
@each("goes_on", [True, False])
def test_the_stop_flag_may_be_on_the_device(kind, goes_on, ops_queue, monkeypatch):
    monkeypatch.setenv("INFERENCE_MSG_ID", "7")
    x = np.array([[5], [6]])
    ops.save_output(kind(x), kind(np.array([goes_on])), np.zeros(2, np.int32), 0, False)
    assert ops.flush(60)
    assert fp.decode(ops_queue.take("plain")[0], "plain").stop_flag == (7 if goes_on else -7)


def test_messages_leave_in_the_order_of_the_saves(ops_queue, slow):
    """Whether their tensors are on the device or not."""
    slow(20)
    for n in range(6):
        x = np.array([[n]])
        ops.save_output(x if n % 3 == 2 else Exchange(x), FLAG, np.zeros(1, np.int32), 0, False)
    assert ops.flush(60)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(0).token_ids(0) for _ in range(6)] == [[n] for n in range(6)]


def test_host_tensors_are_read_at_the_call(ops_queue, slow):
    slow(50)
    x, preempted = np.array([[5], [6]]), np.array([0, 1], np.int32)
    ops.save_output(Exchange(x), FLAG, preempted, 0, False)
    preempted[:] = 0  # as FastDeploy does
    assert ops.flush(60)
    assert fp.decode(ops_queue.take("plain")[0], "plain").counts == [1, -9]


def test_tensors_live_until_their_message_is_sent(ops_queue, slow):
    slow(-1)
    tensor = Exchange(np.array([[5]]))
    alive = weakref.ref(tensor)
    ops.save_output(tensor, FLAG, np.zeros(1, np.int32), 0, False)
    del tensor
    assert alive() is not None
    slow(0)
    assert ops.flush(60)
    assert alive() is None


def test_flush_waits_no_longer_than_it_may(ops_queue, slow):
    slow(-1)
    ops.save_output(Exchange(np.array([[5]])), FLAG, np.zeros(1, np.int32), 0, False)
    assert ops.flush(0) is False
    assert ops.flush(0.05) is False  # and not never
    slow(0)
    assert ops.flush() is True
    with pytest.raises(ValueError, match="timeout = -1"):
        ops.flush(-1)


def test_compact_frames_in_pieces(ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    op = "speculate_save_output_topk"
    inputs = random_inputs(op, 30, 21, 3)
    args = arguments(op, placed(inputs, Exchange))
    getattr(ops, op)(*args)
    assert ops.flush(60)
    with fp.Receiver("spec_topk") as receiver:
        receiver.receive(1)
        before = ops.save_stats()["fragments"]
        ops_queue.open("spec_topk").max_size = 5000
        threading.Thread(target=lambda: getattr(ops, op)(*args)).start()
        found = receiver.receive(20)
    assert ops.flush(60)
    expected = fp.decode(reference.save(op, *arguments(op, inputs), dialect="packed").payload, "spec_topk")
    assert same(found, expected)
    assert ops.save_stats()["fragments"] > before


@each(
    "name, value",
    [("INFERENCE_MSG_ID", "7"), ("FD_POSTPROC_DIALECT", "legacy"), ("FD_POSTPROC_PEER", "compact/1")],
)
def test_the_environment_is_asked_each_time(name, value, ops_queue, monkeypatch):
    inputs = random_inputs("save_output_topk", 4, 3, 1)

    def payload():
        ops.save_output_topk(*arguments("save_output_topk", placed(inputs, Exchange)), layout=LAYOUT)
        assert ops.flush(60)
        payload, mtype = ops_queue.take("topk")
        return payload[:8], len(payload), mtype

    before = payload()
    assert payload() == before
    monkeypatch.setenv(name, value)
    assert payload() != before
    monkeypatch.delenv(name)
    assert payload() == before


def test_the_queue_id_is_asked_each_time(ops_queue, monkeypatch, queue_id):
    save(1)
    save(2)
    assert ops.flush(60)
    assert ops_queue.waiting() == 2
    ops_queue.remove()  # the fixture removes the queue of the id that is set at the end
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", str(queue_id + 1))
    save(3)
    save(4)
    assert ops.flush(60)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(1).token_ids(0) for _ in range(2)] == [[3], [4]]
    ops_queue.remove()

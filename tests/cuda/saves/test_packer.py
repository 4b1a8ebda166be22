"""Packer: the same tensors saved again and again, on the host or on a device."""

import types

import numpy as np
import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.tensors import stream_handle
from tests.lib.device_saves import FLAG, KINDS, LAYOUT, assert_message, placed
from tests.lib.save_cases import CHANNELS, arguments, positional, random_inputs
from tests.lib.stub_cuda import Exchange

pytestmark = pytest.mark.usefixtures("streams")


def packed(op, inputs, **attributes):
    names = positional(getattr(ops, op))
    defaults = {"rank_id": 0, "save_each_rank": False, "skip_prefill": True, "skip_chunk_prefill": True,
                "message_flag": 3}  # fmt: skip
    values = {**defaults, **inputs, **attributes}
    return ops.Packer(op, layout=LAYOUT, **{name: values[name] for name in names})


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
    assert ops.flush(60)
    step = fp.decode(ops_queue.take("plain")[0], "plain")
    assert (list(step.counts), step.token_ids(2), step.stop_flag) == ([1, -9, 1], [9], -1)
    packer.save(batch=2)
    assert ops.flush(60)
    assert fp.decode(ops_queue.take("plain")[0], "plain").counts == [1, -9]
    for wrong in -1, 4:
        with pytest.raises(ValueError, match=f"batch = {wrong} is outside 0..3; the tensors hold 3"):
            packer.save(wrong)
    assert ops_queue.waiting() == 0


def test_a_packer_on_a_stream_that_is_named(ops_queue, slow, stub):
    slow(20)
    x = Exchange(np.array([[1]]))
    packer = packed("save_output", {"x": x, "not_need_stop": FLAG, "preempted_idx": np.zeros(1, np.int32)})
    stream = stub.stub_stream()
    x.memory.put(np.array([[8]]), stream)
    packer.save(stream=types.SimpleNamespace(cuda_stream=stream))
    assert ops.flush(60)
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


@pytest.mark.parametrize("op", [op for op in CHANNELS if not op.startswith("mtp")])
def test_other_ops_send_on_the_first_rank_only(op, ops_queue):
    packed(op, random_inputs(op, 2, 2, 1), rank_id=1, save_each_rank=True).save()
    assert ops_queue.waiting() == 0

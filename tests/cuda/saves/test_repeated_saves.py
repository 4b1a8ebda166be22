"""Saves that are like the last one of their op take a short way: the message is the same."""

import ctypes
import random
import weakref

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.ops.device import saves
from tests.lib.device_saves import FLAG, LAYOUT, assert_message, placed, save
from tests.lib.save_cases import CHANNELS, arguments, random_inputs
from tests.lib.stub_cuda import Exchange

pytestmark = pytest.mark.usefixtures("streams")


class Seen:
    """`saves.again`, and how often it did what was asked for."""

    def __init__(self, again):
        self.again, self.hits = again, []
        self.keep, self.forget, self.sizes = again.keep, again.forget, again.sizes

    def __call__(self, *args):
        self.hits.append(self.again(*args))
        return self.hits[-1]


@pytest.fixture
def seen(stub, monkeypatch, ops_queue):
    save(1)
    assert ops.flush(10)
    ops_queue.take("plain")
    saves.again.forget()
    found = Seen(saves.again)
    monkeypatch.setattr(saves, "again", found)
    return found


NUMBERS_OF_REQUESTS = ["accept_num", "token_num_per_batch", "cu_batch_token_offset", "seq_lens_decoder",
                       "prompt_lens", "preempted_idx", "step_idx"]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "on_host", "dialect"),
    [
        pytest.param(op, on_host, dialect, marks=[pytest.mark.nightly] if (k + n + on_host) % 2 else [])
        for k, op in enumerate(CHANNELS)
        for n, dialect in enumerate(["packed", "legacy", "compact"])
        for on_host in (True, False)
    ],
)
def test_again_with_other_tensors(op, on_host, dialect, seen, ops_queue, monkeypatch):
    """Of other sizes or the same, in any order; the flag changes, too."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    rng = random.Random(4)
    for _ in range(25):
        inputs = random_inputs(op, rng.choice([3, 5]), 3, rng.randrange(1 << 30))
        chosen = [name for name in inputs if not on_host or name not in NUMBERS_OF_REQUESTS]
        if on_host and rng.random() < 0.3:
            inputs["not_need_stop"] = bool(inputs["not_need_stop"][0])
        args = arguments(op, placed(inputs, Exchange, chosen))
        getattr(ops, op)(*args, layout=LAYOUT)
        assert_message(ops_queue, op, arguments(op, {**inputs, "not_need_stop": np.array(
            inputs["not_need_stop"]).reshape(1)}), dialect)  # fmt: skip
    assert sum(seen.hits) > 1
    assert all(count <= 8 for count in seen.sizes().values())


def topk(batch=4, cols=3, seed=1):
    return random_inputs("save_output_topk", batch, cols, seed)


def assert_seen(seen, queue, inputs, hit, kind=Exchange, layout=LAYOUT, **keywords):
    """A save gives the right message, the short way or not."""
    ops.save_output_topk(*arguments("save_output_topk", placed(inputs, kind, **keywords)), layout=layout)
    assert_message(queue, "save_output_topk", arguments("save_output_topk", inputs), "packed")
    assert seen.hits[-1] is hit


def test_what_must_be_the_same(seen, ops_queue, monkeypatch):
    assert_seen(seen, ops_queue, topk(), False)
    assert_seen(seen, ops_queue, topk(seed=2), True)
    assert_seen(seen, ops_queue, topk(cols=2), False)
    assert_seen(seen, ops_queue, topk(seed=3), True)
    assert_seen(seen, ops_queue, topk(), False, gap=1)
    narrow = topk()
    narrow["ranks"] = narrow["ranks"].astype(np.int32)
    assert_seen(seen, ops_queue, narrow, False)
    assert_seen(seen, ops_queue, topk(), False, device=1)
    assert_seen(seen, ops_queue, topk(), False, chosen=["x"])
    assert_seen(seen, ops_queue, topk(batch=3), False)
    assert_seen(seen, ops_queue, topk(seed=4), True)

    class Other(Exchange):
        pass

    assert_seen(seen, ops_queue, topk(), False, kind=Other)


def test_rows_of_logprobs_may_be_others(seen, ops_queue):
    """As they are from step to step; one that is missing is still found."""
    op, rng = "speculate_save_output_topk", np.random.default_rng(1)
    base = random_inputs(op, 4, 3, 5)
    for rows in 30, 40, 25, 1000:
        inputs = {
            **base,
            "logprob_token_ids": rng.integers(0, 99, (rows, 3)),
            "logprob_scores": rng.random((rows, 3), np.float32),
            "logprob_ranks": rng.integers(0, 99, rows),
        }
        getattr(ops, op)(*arguments(op, placed(inputs, Exchange)), layout=LAYOUT)
        assert_message(ops_queue, op, arguments(op, inputs), "packed")
    assert seen.hits[-3:] == [True] * 3
    base["token_num_per_batch"][:] = 1
    base["seq_lens_decoder"][:] = base["prompt_lens"]
    base["preempted_idx"][:] = 0
    base["cu_batch_token_offset"][:4] = [0, 1, 2, 25]
    short = {**base, **{name: inputs[name][:25] for name in inputs if name.startswith("logprob")}}
    getattr(ops, op)(*arguments(op, placed(short, Exchange)), layout=LAYOUT)
    with pytest.raises(ValueError, match="logprob row 25"):
        ops.flush(10)
    odd = {**short, "logprob_scores": inputs["logprob_scores"][:24]}
    with pytest.raises(ValueError, match="logprob_scores has shape"):
        getattr(ops, op)(*arguments(op, placed(odd, Exchange)), layout=LAYOUT)


@pytest.mark.parametrize(
    ("name", "value"),
    [("INFERENCE_MSG_ID", "7"), ("FD_POSTPROC_DIALECT", "legacy"), ("FD_POSTPROC_PEER", "compact/1")],
)
def test_the_environment_is_asked_each_time(name, value, seen, ops_queue, monkeypatch):
    def payload():
        ops.save_output_topk(*arguments("save_output_topk", placed(inputs, Exchange)), layout=LAYOUT)
        assert ops.flush(10)
        payload, mtype = ops_queue.take("topk")
        return payload[:8], len(payload), mtype

    inputs = topk()
    before = payload()
    assert payload() == before
    assert seen.hits[-1]
    monkeypatch.setenv(name, value)
    assert payload() != before
    monkeypatch.delenv(name)
    assert payload() == before


def test_the_queue_id_is_asked_each_time(seen, ops_queue, monkeypatch, queue_keys):
    save(1)
    save(2)
    assert ops.flush(10)
    assert ops_queue.waiting() == 2
    ops_queue.remove()  # the fixture removes the queue of the id that is set at the end
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", "1048577")
    save(3)
    save(4)
    assert ops.flush(10)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(1).token_ids(0) for _ in range(2)] == [[3], [4]]
    ops_queue.remove()
    assert seen.hits[-3:] == [True, False, True]


def test_a_removed_queue_is_made_anew(seen, ops_queue):
    save(1)
    save(2)
    assert ops.flush(10)
    ops_queue.open("plain").remove()
    save(3)
    with pytest.raises(fp.QueueRemoved):
        ops.flush(10)
    save(4)
    assert ops.flush(10)
    assert fp.decode(ops_queue.take("plain")[0], "plain").token_ids(0) == [4]


def test_errors_are_told_in_the_same_way(seen, ops_queue, slow):
    save(1)
    save(2)
    save(1 << 31)
    with pytest.raises(ValueError, match="an earlier save was not sent"):
        ops.flush(10)
    tokens, zeros = Exchange(np.zeros((2, 6), np.int64)), np.zeros((2, 1), np.int32)

    def speculate(counts):
        ops.speculate_save_output(
            tokens, np.array(counts, np.int32), FLAG, zeros, zeros.astype(np.int64), zeros, 0, False, True
        )

    speculate([1, 2])
    speculate([2, 3])
    assert seen.hits[-1]
    with pytest.raises(ValueError, match=r"accept_num\[1\]: 7 tokens"):
        speculate([1, 7])


def test_the_current_stream_is_asked_each_time(seen, ops_queue, streams, slow):
    slow(30)
    for hit in False, True, True:
        inputs = topk(seed=random.randrange(99))
        stream = streams()
        assert_seen(seen, ops_queue, inputs, hit, put_on=stream)


def test_tensors_live_until_their_message_is_sent(seen, ops_queue, slow):
    save(1)
    slow(-1)
    tensor = Exchange(np.array([[5]]))
    alive = weakref.ref(tensor)
    ops.save_output(tensor, FLAG, np.zeros(1, np.int32), 0, False)
    assert seen.hits[-1]
    del tensor
    assert alive() is not None
    slow(0)
    assert ops.flush(10)
    assert alive() is None


def test_a_captured_stream_is_refused(seen, ops_queue, streams, stub):
    stream = streams()
    save(1)
    save(2)
    stub.stub_capture(ctypes.c_void_p(stream), 1)
    with pytest.raises(fp.CudaError, match="captured"):
        save(3)
    stub.stub_capture(ctypes.c_void_p(stream), 0)
    assert seen.hits == [False, True]

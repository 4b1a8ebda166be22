"""Saves one after another: other tensors, another environment, another queue."""

import random

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from tests.lib.device_saves import LAYOUT, assert_message, placed, save
from tests.lib.rows import each
from tests.lib.save_cases import CHANNELS, arguments, random_inputs
from tests.lib.stub_cuda import Exchange

pytestmark = pytest.mark.usefixtures("streams")

NUMBERS_OF_REQUESTS = ["accept_num", "token_num_per_batch", "cu_batch_token_offset", "seq_lens_decoder",
                       "prompt_lens", "preempted_idx", "step_idx"]  # fmt: skip


@each("dialect", ["packed", "legacy", "compact"])
@each("op", CHANNELS)
def test_other_tensors_each_time(op, dialect, ops_queue, monkeypatch):
    """Of other sizes or the same, in any order; the flag changes, and the numbers' place."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    rng = random.Random(4)
    for _ in range(12):
        inputs = random_inputs(op, rng.choice([3, 5]), 3, rng.randrange(1 << 30))
        on_host = rng.random() < 0.5
        chosen = [name for name in inputs if not on_host or name not in NUMBERS_OF_REQUESTS]
        given = dict(inputs)
        if rng.random() < 0.3:
            given["not_need_stop"] = bool(inputs["not_need_stop"][0])
            chosen.remove("not_need_stop")
        getattr(ops, op)(*arguments(op, placed(given, Exchange, chosen)), layout=LAYOUT)
        assert_message(ops_queue, op, arguments(op, inputs), dialect)


def test_rows_of_logprobs_are_others_each_time(ops_queue):
    """As they are from step to step; one that is missing is found."""
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
    base["token_num_per_batch"][:] = 1
    base["seq_lens_decoder"][:] = base["prompt_lens"]
    base["preempted_idx"][:] = 0
    base["cu_batch_token_offset"][:4] = [0, 1, 2, 25]
    short = {**base, **{name: inputs[name][:25] for name in inputs if name.startswith("logprob")}}
    getattr(ops, op)(*arguments(op, placed(short, Exchange)), layout=LAYOUT)
    with pytest.raises(ValueError, match="logprob row 25"):
        ops.flush(60)
    odd = {**short, "logprob_scores": inputs["logprob_scores"][:24]}
    with pytest.raises(ValueError, match="logprob_scores has shape"):
        getattr(ops, op)(*arguments(op, placed(odd, Exchange)), layout=LAYOUT)


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


def test_the_queue_id_is_asked_each_time(ops_queue, monkeypatch, queue_keys):
    save(1)
    save(2)
    assert ops.flush(60)
    assert ops_queue.waiting() == 2
    ops_queue.remove()  # the fixture removes the queue of the id that is set at the end
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", "1048577")
    save(3)
    save(4)
    assert ops.flush(60)
    with fp.Receiver("plain") as receiver:
        assert [receiver.receive(1).token_ids(0) for _ in range(2)] == [[3], [4]]
    ops_queue.remove()

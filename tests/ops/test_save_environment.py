"""Save ops: ranks, and what the environment decides."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc.ops.environment import dialect_of, peer_understands
from fd_postproc.support.environment import DIALECTS
from tests.lib.rows import each
from tests.lib.save_cases import CHANNELS, arguments, random_inputs
from tests.lib.saving import saved, send, step_of
from tests.reference import ReferenceStep

RANKED = [op for op in CHANNELS if op.startswith("mtp")]  # ranks above 0 may send, if save_each_rank


@each("save_each_rank", [False, True])
@each("rank", [-1, 0, 1, 7])
@each("op", CHANNELS)
def test_ranks_above_0(op, rank, save_each_rank, ops_queue, monkeypatch):
    args = arguments(op, random_inputs(op, 2, 3, 1), rank_id=rank, save_each_rank=save_each_rank)
    sends = rank <= 0 or (save_each_rank and op in RANKED)
    assert (saved(op, *args) is not None) == sends
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")  # fits the default limits
    send(op, *args)
    assert ops_queue.waiting() == sends
    if sends:
        ops_queue.take(CHANNELS[op])


@each("dialect", ["packed", "compact"])
@each("text, number", [(None, 1), ("0", 0), ("1", 1), ("3", 3), ("77", 77)])
def test_message_id(text, number, dialect, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    if text is not None:
        monkeypatch.setenv("INFERENCE_MSG_ID", text)
    inputs = random_inputs("save_output", 2, 1, 1)
    for more, word in (True, number), (False, -number):
        inputs["not_need_stop"] = np.array([more])
        ops.save_output(*arguments("save_output", inputs))
        payload, mtype = ops_queue.take("plain")
        assert fp.decode(payload, "plain", mtype=mtype).stop_flag == word


@each(
    "name, text",
    [("INFERENCE_MSG_ID", "2"), ("FD_POSTPROC_DIALECT", "dense"), ("INFERENCE_MSG_QUEUE_ID", "five")],
)
def test_a_bad_value(name, text, ops_queue, monkeypatch):
    with monkeypatch.context() as inside:
        inside.setenv(name, text)
        with pytest.raises(ValueError, match=f"{name}={text!r}"):
            ops.save_output(*arguments("save_output", random_inputs("save_output", 2, 1, 1)))
    assert ops_queue.waiting() == 0


@each(
    "dialect, peer, op, batch, mtype",
    [
        (None, None, "save_output_topk", 3, 1),
        ("auto", "compact/1", "save_output_topk", 3, 2),
        ("auto", "compact/1", "mtp_save_first_token", 257, 2),
        (None, "other/1,compact/1", "speculate_save_output_topk", 3, 2),
        ("legacy", "compact/1", "save_output_topk", 3, 1),
        ("compact", None, "speculate_save_output", 257, 2),
    ],
)
def test_which_dialect(dialect, peer, op, batch, mtype, raised_limits, ops_queue, monkeypatch):
    for name, value in ("FD_POSTPROC_DIALECT", dialect), ("FD_POSTPROC_PEER", peer):
        if value is not None:
            monkeypatch.setenv(name, value)
    args = arguments(op, random_inputs(op, batch, 21, 1))
    send(op, *args)
    payload, found = ops_queue.take(CHANNELS[op])
    assert found == mtype
    wide = replace(fp.GPU, spec_batch=512)
    step = ReferenceStep.from_step(fp.decode(payload, CHANNELS[op], mtype=mtype))
    expected = step_of(saved(op, *args, layout=wide), wide)
    assert step == replace(expected, dialect=step.dialect, seq=step.seq)


WORDS = ("compact/1", "compact/10", "streams/3", "streams/3+drafts", "service/0000000a", "service/ffffffff")


@given(
    dialect=st.sampled_from(["", *DIALECTS]),
    words=st.lists(st.sampled_from(WORDS), unique=True),
    channel=st.sampled_from(["plain", "topk", "spec", "spec_topk"]),
    slots=st.integers(1, 4),
    spec_slots=st.integers(1, 4),
    batch=st.integers(0, 5),
)
def test_the_choice_of_a_dialect(dialect, words, channel, slots, spec_slots, batch):
    layout = replace(fp.GPU, max_batch=slots, spec_batch=spec_slots)
    gains = channel in ("topk", "spec_topk") or batch > (spec_slots if channel == "spec" else slots)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FD_POSTPROC_DIALECT", dialect)
        patch.setenv("FD_POSTPROC_PEER", ",".join(words))
        assert {word for word in WORDS if peer_understands(word)} == set(words)
        chosen = dialect_of(channel, batch, layout)
    if dialect == "compact" or (dialect in ("", "auto") and "compact/1" in words and gains):
        numbers = [int(word[8:], 16) for word in words if word.startswith("service/")]
        assert chosen == ("compact", numbers[0] if numbers else 0)
    else:
        assert chosen == ("legacy" if dialect == "legacy" else "packed", 0)


def test_the_queue_follows_the_environment(ops_queue, monkeypatch):
    """FastDeploy's ops keep the first queue forever."""
    args = arguments("save_output", random_inputs("save_output", 2, 1, 1))
    ops.save_output(*args)
    assert ops_queue.waiting() == 1  # CPU tensors are sent before the op returns
    assert ops.flush() is ops.flush(timeout=0) is True
    first = os.environ["INFERENCE_MSG_QUEUE_ID"]
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", str(int(first) ^ 1))
    try:
        ops.save_output(*args)
        assert ops_queue.waiting() == 1
    finally:
        ops_queue.remove()
        monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", first)
    assert ops_queue.waiting() == 1

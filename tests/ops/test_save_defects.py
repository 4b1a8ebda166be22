"""Where FastDeploy's save ops read or write out of bounds, truncate or repeat: an error, and nothing is sent.

The H-numbers are those of docs/wire-protocol.md, section 10.
"""

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from tests.lib.rows import each
from tests.lib.save_cases import CHANNELS, arguments, calm


def put(name, index, value):
    def change(inputs):
        inputs[name][index] = value

    return change


def replaced(name, make):
    def change(inputs):
        inputs[name] = make(inputs[name])

    return change


WIDE = 1 << 31
TOPK, SPEC, SPEC_TOPK = "save_output_topk", "speculate_save_output", "speculate_save_output_topk"
FIRST, FIRST_TOPK = "mtp_save_first_token", "mtp_save_first_token_with_topk"

X, TABLE, COUNTS, OFFSETS = "x", "sampled_token_ids", "token_num_per_batch", "cu_batch_token_offset"
IDS, RANKS = "logprob_token_ids", "logprob_ranks"
ACCEPTED = "accept_tokens"


def narrow(n):
    return lambda tensor: tensor[:, :n]


def flat(tensor):
    return tensor.reshape(-1)


def short(n):
    return lambda tensor: tensor.reshape(-1)[:n]


# defect, op, what is wrong with the inputs, what the error says
REFUSED = [
    ("H4", SPEC, put("accept_num", 1, 7), ["accept_num", "1", "7", "6"]),
    ("H4", SPEC, put("accept_num", 2, WIDE - 1), ["accept_num", "2", "2147483647", "6"]),
    ("H4", SPEC_TOPK, put(COUNTS, 1, 7), [COUNTS, "1", "7", "6"]),
    ("H4", SPEC_TOPK, put(COUNTS, 0, 1000), [COUNTS, "0", "1000", "6"]),
    ("H4", FIRST_TOPK, put(COUNTS, 1, 6), [COUNTS, "1", "6"]),
    ("H4", FIRST_TOPK, put(COUNTS, 1, WIDE - 1), [COUNTS, "1", "6"]),
    ("H6", SPEC, replaced(ACCEPTED, narrow(1)), [ACCEPTED, "0", "2", "1"]),
    ("H6", SPEC_TOPK, replaced(TABLE, narrow(1)), [TABLE, "2", "1"]),
    ("H6", FIRST, replaced(X, narrow(1)), [X, "2", "1"]),
    ("H6", FIRST_TOPK, replaced(TABLE, narrow(2)), [TABLE, "3", "2"]),
    ("H8", SPEC_TOPK, {"message_flag": 256}, ["message_flag", "256", "255"]),
    ("H8", SPEC_TOPK, {"message_flag": -1}, ["message_flag", "-1", "255"]),
    ("H8", FIRST_TOPK, {"message_flag": 1 << 40}, ["message_flag", str(1 << 40), "255"]),
    ("H19", "save_output", put(X, 2, WIDE), [X, "2", str(WIDE)]),
    ("H19", "save_output", put(X, 1, -WIDE - 1), [X, "1", str(-WIDE - 1)]),
    ("H19", TOPK, put(X, 0, WIDE), [X, "0", str(WIDE)]),
    ("H19", TOPK, put("topk_ids", (1, 1), 1 << 32), ["topk_ids", "1", "1", str(1 << 32)]),
    ("H19", TOPK, put("topk_ids", (1, 3), 1 << 32), ["topk_ids", "1", "3", str(1 << 32)]),
    ("H19", TOPK, put("ranks", 2, WIDE), ["ranks", "2", str(WIDE)]),
    ("H19", SPEC, put(ACCEPTED, (1, 1), WIDE), [ACCEPTED, "1", str(WIDE)]),
    ("H19", FIRST, put(X, (2, 1), WIDE), [X, "2", "1", str(WIDE)]),
    ("H19", SPEC_TOPK, put(TABLE, (1, 1), WIDE), [TABLE, "1", str(WIDE)]),
    ("H19", SPEC_TOPK, put(IDS, (3, 2), WIDE), [IDS, "3", "2", str(WIDE)]),
    ("H19", SPEC_TOPK, put(RANKS, 3, -WIDE - 1), [RANKS, "3", str(-WIDE - 1)]),
    ("H19", FIRST_TOPK, put(TABLE, (1, 2), WIDE), [TABLE, "1", str(WIDE)]),
    ("offset", SPEC_TOPK, put(OFFSETS, 1, 5), [OFFSETS, "1", "6"]),
    ("offset", SPEC_TOPK, put(OFFSETS, 1, -1), [OFFSETS, "1", "-1"]),
    ("offset", SPEC_TOPK, put(OFFSETS, 2, WIDE - 1), [OFFSETS, "2"]),
    ("offset", FIRST_TOPK, put(OFFSETS, 1, 6), [OFFSETS, "1", "6"]),
    ("1-D", SPEC, replaced(ACCEPTED, flat), [ACCEPTED, "[18]"]),
    ("1-D", SPEC_TOPK, replaced(TABLE, flat), [TABLE, "[18]"]),
    ("1-D", FIRST_TOPK, replaced(TABLE, lambda t: t[:2]), [TABLE, "[2, 6]"]),
    ("shape", TOPK, replaced("logprob_scores", narrow(3)), ["logprob_scores", "[3, 3]"]),
    ("shape", TOPK, replaced("topk_ids", lambda t: t[:2]), ["topk_ids", "[2, 4]"]),
    ("shape", TOPK, replaced("ranks", short(2)), ["ranks", "2"]),
    ("shape", "save_output", replaced("not_need_stop", short(0)), ["not_need_stop"]),
    ("shape", "save_output", replaced("preempted_idx", short(2)), ["preempted_idx", "2", "3"]),
    *(
        ("shape", "save_output", replaced(X, lambda t, n=n: np.zeros((3, n), int)), ["have 1 column"])
        for n in (0, 2)
    ),
    ("shape", "save_output", replaced(X, lambda t: t.reshape(3, 1, 1)), ["[3, 1, 1]"]),
    ("shape", SPEC, replaced("accept_num", short(1)), [ACCEPTED, "[3, 6]", "1"]),
    ("shape", SPEC, replaced("preempted_idx", short(2)), ["preempted_idx", "2", "3"]),
    ("shape", SPEC_TOPK, replaced("logprob_scores", narrow(2)), ["logprob_scores", "[6, 2]"]),
    ("shape", SPEC_TOPK, replaced(OFFSETS, short(2)), [OFFSETS, "2", "3"]),
    ("shape", FIRST, replaced("step_idx", short(2)), ["step_idx", "2", "3"]),
    *(
        ("shape", op, replaced(name, short(2)), [name, "2", "3"])
        for op in (SPEC, SPEC_TOPK, FIRST)
        for name in ("seq_lens_decoder", "prompt_lens")
    ),
    *(("flag", SPEC_TOPK, {"message_flag": n}, [f"message_flag = {n} is not one of 3"]) for n in (1, 255)),
]


@each("dialect", ["packed", "legacy", "compact"])
@each("case", REFUSED)
def test_refused(case, dialect, raised_limits, ops_queue, monkeypatch):
    _, op, change, fragments = case
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    inputs = calm(op)
    getattr(ops, op)(*arguments(op, inputs))  # fine as they are
    ops_queue.take(CHANNELS[op])
    attributes = change if isinstance(change, dict) else change(inputs) or {}
    with pytest.raises(ValueError) as caught:
        getattr(ops, op)(*arguments(op, inputs, **attributes))
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert ops_queue.waiting() == 0


@each(
    "op, batch, slots",
    [("save_output", 513, 512), (TOPK, 513, 512), (SPEC, 257, 256), (FIRST, 257, 256), (SPEC_TOPK, 513, 512)],
)
def test_more_requests_than_slots(op, batch, slots, raised_limits, ops_queue, monkeypatch):
    """H3: FastDeploy's ops write past their buffers, or claim more than a message holds."""
    with pytest.raises(ValueError, match=f"{batch}.*{slots}"):
        getattr(ops, op)(*arguments(op, calm(op, batch)))
    assert ops_queue.waiting() == 0
    getattr(ops, op)(*arguments(op, calm(op, slots)))
    ops_queue.take(CHANNELS[op])
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
    with pytest.raises(ValueError, match=r"513.*512"):
        getattr(ops, op)(*arguments(op, calm(op, 513)))
    assert ops_queue.waiting() == 0


@each("dialect", ["packed", "legacy", "compact"])
@each("op", [TOPK, SPEC_TOPK, FIRST_TOPK])
def test_more_columns_than_the_layout(op, dialect, raised_limits, ops_queue, monkeypatch):
    """H8: column 21 would be the next token's column 0, or run into the scores."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    with pytest.raises(ValueError, match=r"22.*21"):
        getattr(ops, op)(*arguments(op, calm(op, cols=22)))
    with pytest.raises(ValueError):
        getattr(ops, op)(*arguments(op, calm(op, cols=0)))
    with pytest.raises(ValueError, match=r"7.*6"):
        getattr(ops, op)(*arguments(op, calm(op, cols=7)), layout=fp.Layout(128, 5, 6))
    assert ops_queue.waiting() == 0


@each("dialect", ["packed", "compact"])
def test_a_first_token_is_sent_once(dialect, ops_queue, monkeypatch):
    """H5: FastDeploy's op sends it again in every later step."""
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    inputs = calm(FIRST)
    for step in 1, 2, 3, 0:
        inputs["step_idx"][:] = step
        ops.mtp_save_first_token(*arguments(FIRST, inputs))
        payload, mtype = ops_queue.take("spec")
        got = fp.decode(payload, "spec", mtype=mtype)
        assert got.counts == ([2, 2, 2] if step == 1 else [0, 0, 0])
        assert got.rows == (6 if step == 1 else 0)


@each("op", [SPEC, SPEC_TOPK])
def test_numbers_that_are_not_sent_do_not_matter(op, raised_limits, ops_queue):
    """A request inside its prompt, a preempted one and cells behind the count may hold anything."""
    inputs = calm(op, batch=4)
    counts = inputs["accept_num" if op == SPEC else "token_num_per_batch"]
    table = inputs["accept_tokens" if op == SPEC else "sampled_token_ids"]
    table[:, 2:] = 1 << 60
    inputs["prompt_lens"][1] = 10
    counts[1] = 99
    table[1] = 1 << 60
    getattr(ops, op)(*arguments(op, inputs))
    payload, _ = ops_queue.take(CHANNELS[op])
    assert fp.decode(payload, CHANNELS[op]).counts == [2, 0, 2, 2]


@each("op", CHANNELS)
def test_every_tensor_must_be_one_and_of_its_kind_of_number(op, raised_limits, ops_queue):
    for name, array in calm(op).items():
        for wrong in ([1, 2, 3], None, 5, "x"):
            with pytest.raises((TypeError, ValueError), match=name):
                getattr(ops, op)(*arguments(op, {**calm(op), name: wrong}))
        wrong = array.astype(np.complex64 if array.dtype == np.float32 else np.float64)
        with pytest.raises((TypeError, ValueError), match=f"{name}.*{wrong.dtype}"):
            getattr(ops, op)(*arguments(op, {**calm(op), name: wrong}))
    assert ops_queue.waiting() == 0

"""Every number that decides is read once: these change as soon as they have been read.

At the end another thread changes them, which a sanitizer can watch: mixed content or an error, nothing out of
bounds, nothing lost.  A pinned host tensor with a copy from the device under way is such a one.
"""

import numpy as np

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc._core import step_from_tensors
from tests.lib.read_once import changed_by_reading
from tests.lib.rows import each
from tests.lib.save_cases import CHANNELS, arguments
from tests.reference import SAVE_OPS

B, W, C = 20, 6, 3
DECIDE = {  # what it becomes
    "x": -9,
    "accept_num": 100,
    "token_num_per_batch": 100,
    "cu_batch_token_offset": 1 << 30,
    "seq_lens_decoder": 0,
    "prompt_lens": 10,
    "preempted_idx": 1,
    "step_idx": 2,
}


def tensors(op):
    """Inputs of an op, by its own names."""
    rows = B if op == "save_output_topk" else B * W
    sampled, counts = np.arange(B * W).reshape(B, W), np.full(B, 2, np.int32)
    ids, scores = np.arange(rows * C).reshape(rows, C), np.zeros((rows, C), np.float32)
    given = {
        "x": sampled if op.startswith("mtp") else np.arange(100, 100 + B).reshape(B, 1),
        **dict.fromkeys(["accept_tokens", "sampled_token_ids"], sampled),
        **dict.fromkeys(["accept_num", "token_num_per_batch"], counts),
        **dict.fromkeys(["topk_ids", "logprob_token_ids"], ids),
        **dict.fromkeys(["ranks", "logprob_ranks"], np.ones(rows, np.int64)),
        "logprob_scores": scores,
        "cu_batch_token_offset": np.arange(0, 2 * B, 2, dtype=np.int32),
        "not_need_stop": np.array([True]),
        "seq_lens_decoder": np.full(B, 9, np.int32),
        "prompt_lens": np.ones(B, np.int64),
        "preempted_idx": np.zeros(B, np.int32),
        "step_idx": np.ones(B, np.int64),
    }
    return {name: array for name, array in given.items() if name in SAVE_OPS[op]}


@each("dialect", ["compact", "packed"])
@each("op, which", [(op, which) for op in CHANNELS for which in DECIDE if which in SAVE_OPS[op]])
def test_a_save_op(op, which, dialect, raised_limits, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    queue, save, given = fp.Receiver(CHANNELS[op]), getattr(ops, op), tensors(op)
    save(*arguments(op, given))
    expected = queue.receive(0)
    assert expected.rows
    with changed_by_reading(given[which], DECIDE[which]) as given[which]:
        save(*arguments(op, given))
    assert queue.receive(0) == expected


@each("other", [-9, 100, (1 << 32) + 5, -1])
@each("channel", ["plain", "topk", "spec", "spec_topk"])
def test_the_tokens_of_a_get_op(channel, other):
    header, slots, spaced = {
        "plain": ([1, B], 0, 1),
        "topk": ([1, B | C << 16], 0, C),
        "spec": ([1, B], 256, 6),
        "spec_topk": ([1, 3 | C << 8, B], 512, 126),
    }[channel]
    counts = [2] * B + [0] * (slots - B) if slots else []
    tokens = np.array([*header, *counts, *range(1, 1 + B * spaced)], np.int64)
    rest = ()
    if channel.endswith("topk"):
        rest = np.zeros(B * spaced, np.float32), np.ones(B * 6, np.int64)
    expected = step_from_tensors(channel, tokens, *rest)
    assert expected.rows == (2 * B if slots else B)
    with changed_by_reading(tokens, other) as changing:
        got = step_from_tensors(channel, changing, *rest)
    assert got == expected
    if rest:
        with changed_by_reading(rest[1], other) as changing:
            assert step_from_tensors(channel, tokens, rest[0], changing) == expected

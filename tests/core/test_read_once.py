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
from tests.lib.save_cases import CHANNELS, arguments, calm
from tests.reference import SAVE_OPS

B, C = 20, 3
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


@each("dialect", ["compact", "packed"])
@each("op, which", [(op, which) for op in CHANNELS for which in DECIDE if which in SAVE_OPS[op]])
def test_a_save_op(op, which, dialect, raised_limits, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    queue, save, given = fp.Receiver(CHANNELS[op]), getattr(ops, op), calm(op, B, C)
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

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

B, W, C = 20, 6, 3
MORE = np.array([True])


def logprobs(rows):
    ids = np.arange(rows * C, dtype=np.int64).reshape(rows, C)
    return ids, np.zeros((rows, C), np.float32), np.ones(rows, np.int64)


OPS = {
    "save_output": ("plain", lambda t: (t["x"], MORE, t["preempted"], 0, False)),
    "save_output_topk": ("topk", lambda t: (t["x"], *logprobs(B), MORE, t["preempted"], 0)),
    "speculate_save_output": (
        "spec",
        lambda t: (
            *(t["sampled"], t["counts"], MORE, t["decoded"], t["prompts"], t["preempted"]),
            *(0, False, True),
        ),
    ),
    "mtp_save_first_token": (
        "spec",
        lambda t: (t["sampled"], MORE, t["decoded"], t["prompts"], t["steps"], 0, False, True),
    ),
    "speculate_save_output_topk": (
        "spec_topk",
        lambda t: (
            *(t["sampled"], *logprobs(B * W), t["counts"], t["offsets"], MORE, t["decoded"], t["prompts"]),
            *(t["preempted"], 3, 0, False),
        ),
    ),
    "mtp_save_first_token_with_topk": (
        "spec_topk",
        lambda t: (
            *(t["sampled"], *logprobs(B * W), t["counts"], t["offsets"], MORE, t["decoded"], t["prompts"]),
            *(t["preempted"], 3, 0, False),
        ),
    ),
}
DECIDE = {  # what it becomes
    "x": -9,
    "counts": 100,
    "offsets": 1 << 30,
    "decoded": 0,
    "prompts": 10,
    "preempted": 1,
    "steps": 2,
}


def tensors():
    return {
        "x": np.arange(100, 100 + B, dtype=np.int64).reshape(B, 1),
        "sampled": np.arange(B * W, dtype=np.int64).reshape(B, W),
        "counts": np.full(B, 2, np.int32),
        "offsets": np.arange(0, 2 * B, 2, dtype=np.int32),
        "decoded": np.full(B, 9, np.int32),
        "prompts": np.ones(B, np.int64),
        "preempted": np.zeros(B, np.int32),
        "steps": np.ones(B, np.int64),
    }


def uses(op):
    """The tensors of those that the op is given."""
    given = tensors()
    arguments = OPS[op][1](given)
    return [name for name in DECIDE if any(one is given[name] for one in arguments)]


@each("dialect", ["compact", "packed"])
@each("op, which", [(op, which) for op in OPS for which in uses(op)])
def test_a_save_op(op, which, dialect, raised_limits, ops_queue, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", dialect)
    channel, arguments = OPS[op]
    queue, save = fp.Receiver(channel), getattr(ops, op)
    save(*arguments(tensors()))
    expected = queue.receive(0)
    assert expected.rows
    given = tensors()
    with changed_by_reading(given[which], DECIDE[which]) as given[which]:
        save(*arguments(given))
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

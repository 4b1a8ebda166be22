"""Tensors that change during a call: mixed content or an error, nothing out of bounds, nothing lost.

A pinned host tensor with a copy from the device under way is such a one.
"""

import contextlib

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc import ops
from fd_postproc._core import step_from_tensors
from tests.lib.changing import changing
from tests.lib.rows import each

B, W, C = 64, 6, 3


@each("other", [0, 7, -1])
def test_counts_of_a_get_ops_tensors(other):
    tokens = np.zeros((512 * 126 + 515, 1), np.int64)
    scores, ranks = np.zeros((512 * 126, 1), np.float32), np.zeros(3072, np.int64)
    tokens[:3, 0] = 1, 3 | C << 8, B
    tokens[3 : 3 + B, 0] = 6
    refused = 0
    with changing(tokens[3 : 3 + B, 0], 6, other):
        for _ in range(3000):
            try:
                step = step_from_tensors("spec_topk", tokens, scores, ranks)
            except fp.MalformedMessage:
                refused += 1
                continue
            counts = step.counts
            assert set(counts) <= {6, other}
            assert step.rows == sum(count for count in counts if count > 0)
            assert [len(step.token_ids(i)) for i in range(B)] == [max(count, 0) for count in counts]
    assert refused if other == 7 else not refused


def test_tokens_of_a_get_ops_tensors():
    """A token that is a code the next moment: one or the other, never a code in a row."""
    tokens = np.zeros((514, 1), np.int64)
    tokens[:2, 0] = 1, B
    tokens[2 : 2 + B, 0] = 5
    with changing(tokens[2 : 2 + B, 0], 5, -9):
        for _ in range(3000):
            step = step_from_tensors("plain", tokens)
            assert [(count, step.token_ids(i)) for i, count in enumerate(step.counts)] == [
                (count, [5] if count == 1 else []) for count in step.counts
            ]
            assert set(step.counts) <= {1, -9}


@pytest.fixture
def receiver(ops_queue, monkeypatch):
    def make(channel):
        monkeypatch.setenv("FD_POSTPROC_DIALECT", "compact")
        return fp.Receiver(channel)

    return make


def save_topk_arguments(counts, offsets, decoded, prompts, preempted):
    tokens = np.arange(B * W, dtype=np.int64).reshape(B, W)
    ids, scores = np.zeros((B * W, C), np.int64), np.zeros((B * W, C), np.float32)
    ranks, more = np.zeros(B * W, np.int64), np.array([True])
    return tokens, ids, scores, ranks, counts, offsets, more, decoded, prompts, preempted, 3, 0, False


@each(
    "which, other, outcomes",
    [
        ("counts", 5, {2, 5}),
        ("offsets", 1 << 30, {2}),
        ("decoded", 0, {2, 0}),
        ("prompts", 10, {2, 0}),
        ("preempted", 1, {2, -9}),
    ],
)
def test_what_a_save_op_decides_by(which, other, outcomes, receiver):
    """Every step that is reported as sent arrives."""
    given = {
        "counts": np.full(B, 2, np.int32),
        "offsets": np.arange(0, 2 * B, 2, dtype=np.int32),
        "decoded": np.full(B, 9, np.int32),
        "prompts": np.ones(B, np.int64),
        "preempted": np.zeros(B, np.int32),
    }
    queue = receiver("spec_topk")
    arguments = save_topk_arguments(**given)
    sent, seen = 0, set()
    with changing(given[which], int(given[which][0]), other):
        for _ in range(2000):
            with contextlib.suppress(ValueError):
                ops.speculate_save_output_topk(*arguments)
                sent += 1
                step = queue.receive(0)
                assert step.batch == B
                seen.update(step.counts)
    assert seen <= outcomes
    assert seen == outcomes or which == "offsets"  # else nothing has changed, and nothing is shown
    assert queue.stats["malformed"] == 0
    assert queue.receive(0) is None


@each("which", ["steps", "decoded"])
def test_what_the_first_tokens_op_decides_by(which, receiver):
    queue = receiver("spec")
    x, more = np.arange(B * W, dtype=np.int64).reshape(B, W), np.array([True])
    prompts = np.ones(B, np.int64)
    given = {"decoded": np.full(B, 9, np.int32), "steps": np.ones(B, np.int64)}
    seen = set()
    with changing(given[which], int(given[which][0]), 0):
        for _ in range(2000):
            ops.mtp_save_first_token(x, more, given["decoded"], prompts, given["steps"], 0, False, True)
            seen.update(queue.receive(0).counts)
    assert seen == {2, 0}
    assert queue.stats["malformed"] == 0


def test_tokens_that_are_codes_the_next_moment(receiver):
    queue = receiver("topk")
    x, ids, scores = np.full((B, 1), 5, np.int64), np.zeros((B, C), np.int64), np.zeros((B, C), np.float32)
    ranks, preempted, more = np.zeros(B, np.int64), np.zeros(B, np.int32), np.array([True])
    with changing(x[:, 0], 5, -1):
        for _ in range(2000):
            ops.save_output_topk(x, ids, scores, ranks, more, preempted, 0)
            step = queue.receive(0)
            assert [step.token_ids(i) for i in range(B)] == [[5] if n == 1 else [] for n in step.counts]
    assert queue.stats["malformed"] == 0

"""Tensors of a save op that do not fit each other: refused by name, at the first element that is missing."""

import numpy as np
import pytest

from fd_postproc import ops
from tests.lib.rows import each
from tests.lib.save_cases import arguments, random_inputs

PER_REQUEST = {
    "save_output": ("preempted_idx",),
    "speculate_save_output": ("seq_lens_decoder", "prompt_lens", "preempted_idx"),
    "speculate_save_output_topk": ("cu_batch_token_offset", "seq_lens_decoder", "prompt_lens"),
    "mtp_save_first_token": ("seq_lens_decoder", "prompt_lens", "step_idx"),
}


def call(op, **changed):
    getattr(ops, op)(*arguments(op, {**random_inputs(op, 4, 3, 1), **changed}))


@each("op, name", [(op, name) for op, names in PER_REQUEST.items() for name in names])
def test_one_element_too_few(op, name, ops_queue):
    short = random_inputs(op, 4, 3, 1)[name].ravel()[:3]
    with pytest.raises(ValueError, match=rf"{name} has 3 elements for a batch of 4"):
        call(op, **{name: short})
    assert ops_queue.waiting() == 0


@each("less", [(1, 0), (0, 1)])
def test_scores_of_another_shape(less, ops_queue):
    scores = random_inputs("save_output_topk", 4, 3, 1)["logprob_scores"]
    rows, columns = scores.shape
    cut = np.ascontiguousarray(scores[: rows - less[0], : columns - less[1]])
    with pytest.raises(ValueError, match="they must be the same"):
        call("save_output_topk", logprob_scores=cut)
    assert ops_queue.waiting() == 0


def test_fewer_ranks_than_rows(ops_queue):
    ranks = random_inputs("save_output_topk", 4, 3, 1)["ranks"].ravel()[:3]
    with pytest.raises(ValueError, match=r"leads to logprob row 3, but topk_ids and ranks have 3 rows"):
        call("save_output_topk", ranks=ranks)
    assert ops_queue.waiting() == 0


@each("columns", [0, 2, 3])
def test_one_token_has_one_column(columns, ops_queue):
    with pytest.raises(ValueError, match="it must have 1 column"):
        call("save_output", x=np.zeros((4, columns), np.int64))
    assert ops_queue.waiting() == 0


@each("flag", [1, 2, 5, 255])
def test_flags_that_no_receiver_knows(flag, ops_queue):
    with pytest.raises(ValueError, match=rf"message_flag = {flag} is not one of 3"):
        call("speculate_save_output_topk", message_flag=flag)
    assert ops_queue.waiting() == 0

"""Numbers of a get op's tensors that fit no message: refused, not wrapped."""

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc._core import step_from_tensors
from tests.lib.rows import each

WIDE = [(1 << 32) + 5, 1 << 31, -(1 << 31) - 1, -(1 << 40), (1 << 63) - 1]


def tensors():
    tokens = np.zeros((512 * 126 + 515, 1), np.int64)
    tokens[:5, 0] = 1, 3 | 2 << 8, 2, 1, 1
    return tokens, np.zeros((512 * 126, 1), np.float32), np.zeros(3072, np.int64)


@each("wide", WIDE)
@each("place", [0, 1, 2, 515, 516, 515 + 126])
def test_words_and_tokens(place, wide):
    tokens, scores, ranks = tensors()
    assert step_from_tensors("spec_topk", tokens, scores, ranks).counts == [1, 1]
    tokens[place] = wide
    with pytest.raises(fp.MalformedMessage, match=f"hold {wide}, which does not fit 32 bits"):
        step_from_tensors("spec_topk", tokens, scores, ranks)


@each("wide", WIDE)
def test_ranks_and_counts(wide):
    tokens, scores, ranks = tensors()
    ranks[6] = wide
    with pytest.raises(fp.MalformedMessage, match=f"hold {wide}, which does not fit 32 bits"):
        step_from_tensors("spec_topk", tokens, scores, ranks)
    tokens[4] = wide
    with pytest.raises(fp.MalformedMessage, match=str(wide)):
        step_from_tensors("spec_topk", tokens, scores, ranks)


@each("wide", WIDE)
def test_tokens_that_may_be_codes(wide):
    tokens = np.zeros((514, 1), np.int64)
    tokens[:4, 0] = 1, 2, 5, wide
    with pytest.raises(fp.MalformedMessage, match=f"hold {wide}, which does not fit 32 bits"):
        step_from_tensors("plain", tokens)

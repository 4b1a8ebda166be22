"""Log-probabilities of a prompt: the JSON that FastDeploy's maps make."""

import json
import math

import msgpack
import numpy as np
import pytest

from fd_postproc.fastdeploy.api.chunks._chunks import (
    PromptScores,
    Texts,
    Unknown,
    unpack,
)
from fd_postproc.fastdeploy.api.chunks.float_style import float_style
from tests.lib.rows import each
from tests.plugin.api.test_arrays import one_value, packed  # noqa: F401  a fixture of each test
from tests.restated.api import models
from tests.restated.api.logprobs import Steps


class Plain(models.BaseModel):
    prompt_logprobs: models.PromptLogprobs | None = None


STYLE = float_style()
SPELLED = [" the", "é\n", "", "\ufffd", "日本", '"']


def spell(token):
    if token >= 1 << 20:
        raise IndexError("piece id is out of range")
    return SPELLED[token % len(SPELLED)] + str(token // 100), ""


STEPS = Steps(None, None, lambda token: spell(token)[0])


def stock_list(ids, scores, ranks, columns, texts):
    """As FastDeploy builds it, -9999 instead of minus infinity."""
    return STEPS.prompt((ids, scores, ranks), columns, texts)


def numbers(rows, width, seed, most=300):
    draw = np.random.default_rng(seed)
    scores = (-draw.exponential(3, (rows, width))).astype(np.float32)
    scores[draw.random((rows, width)) < 0.02] = -np.inf
    return draw.integers(0, most, (rows, width)), scores, draw.integers(1, 1 << 40, rows)


def forms(ids, scores, ranks):
    """What arrives from an engine of ours."""
    yield [one_value(one) for one in (ids, scores, ranks)]
    yield [one_value(ids.astype(np.int32)), one_value(scores.astype(np.float64)), one_value(ranks)]


def packed_of(given):
    """The tensors as they come out of a message."""
    return unpack(msgpack.packb([one_value(one) for one in given]))


def same(made, right):
    """The pieces of a JSON, which is that of FastDeploy's maps."""
    model = Plain(prompt_logprobs=right)
    for _ in range(2):
        assert f'{{"prompt_logprobs":{made.json(STYLE)}}}' == model.model_dump_json()
    text = json.dumps(model.model_dump()["prompt_logprobs"], ensure_ascii=False, separators=(",", ":"))
    pieces = [*made.pieces()]
    assert b"".join(pieces).decode() == text
    assert max(map(len, pieces)) < 70_000
    return pieces


CASES = [  # rows, width, columns asked for, ids up to
    *((1, 1, 1, 300), (3, 5, 4, 300), (70, 21, 20, 300), (200, 21, 7, 300), (64, 3, 0, 300), (9, 30, 32, 2)),
    *((2, 3000, 3000, 300), (300, 21, 20, 100_000), (90, 9, 12, 40), (17, 2, 1, 2), (5, 7, 9, 100_000)),
]
ODD = [{}, {2999: 7}, {5: -1}, {7: 1 << 40}, {0: -1, 2999: -1}, {1500: 1 << 62}]


@each("case, texts", [(case, number % 2 == 0) for number, case in enumerate(CASES)])
def test_the_json_is_that_of_fastdeploys_maps(case, texts):
    rows, width, columns, most = case
    given = numbers(rows, width, rows, most)
    right = stock_list(*(one.tolist() for one in given), columns, texts)
    for form in forms(*given):
        tensors = unpack(msgpack.packb({"prompt_logprobs": form}))["prompt_logprobs"]
        same(PromptScores.of(tensors, columns, Texts(spell) if texts else None), right)


@each("odd", ODD)
def test_a_vocabularys_row_is_that_of_fastdeploys_map(odd):
    ids, scores, ranks = numbers(2, 3000, 1)
    ids[0], ids[1] = np.random.default_rng(2).permutation(3000), np.arange(3000)[::-1]
    for place, token in odd.items():
        ids[1][place] = token
    made = PromptScores.of(packed_of((ids, scores, ranks)), 3000, None)
    pieces = same(made, stock_list(ids.tolist(), scores.tolist(), ranks.tolist(), 3000, False))
    assert len(pieces) > 2  # two rows are many numbers


def test_few_texts_are_made_in_a_piece():
    """Each is asked of the tokenizer, which takes longer than a thousand that are known."""
    asked = []
    tensors = packed_of(numbers(400, 21, 3, most=100_000))

    def counted(token):
        asked.append(token)
        return spell(token)

    made = PromptScores.of(tensors, 20, Texts(counted))
    before, most = len(asked), 0
    for _ in made.pieces():
        before, most = len(asked), max(most, len(asked) - before)
    assert most == 64
    assert len(asked) > 7000


def as_arrays(*lists):
    return [one_value(np.array(one)) for one in lists]


IDS, SCORES, RANKS = [[1, 2], [3, 4]], [[-0.5, -1.0], [-2.0, -3.0]], [1, 2]


OTHERS = (
    *([IDS, SCORES, RANKS], [IDS, SCORES, [1]], [IDS, SCORES[:1], RANKS], [[], [], []], [[[]], [[]], [1]]),
    *([IDS, [[-0.5], [-1.0, -2.0]], RANKS], [IDS, [[1, 2], [3, 4]], RANKS], [IDS, SCORES], None, "x"),
    *([[["x"]], [[-0.5]], [1]], as_arrays(IDS, SCORES, SCORES), as_arrays(SCORES, SCORES, RANKS)),
    *(as_arrays(IDS, SCORES[:1], RANKS), as_arrays(IDS, SCORES, [1])),
)
GOOD = as_arrays(IDS, SCORES, RANKS)


@each("tensors, columns", [*((one, 2) for one in OTHERS), *((GOOD, one) for one in (-1, None, 2.0, True))])
def test_other_values_and_an_odd_number_of_columns_are_left_to_fastdeploy(tensors, columns):
    came = unpack(msgpack.packb({"prompt_logprobs": tensors}))["prompt_logprobs"]
    with pytest.raises(Unknown):
        PromptScores.of(came, columns, None)


def test_a_tokenizer_that_refuses_does_it_before_anything_is_written():
    came = unpack(msgpack.packb({"prompt_logprobs": as_arrays([[1, 2], [1 << 20, 3]], SCORES, RANKS)}))
    with pytest.raises(IndexError):
        PromptScores.of(came["prompt_logprobs"], 2, Texts(spell))


def test_not_a_number_is_no_json():
    tensors = as_arrays([[1, 2]] * 80, [[-0.5, math.nan]] * 80, [1] * 80)
    came = unpack(msgpack.packb({"prompt_logprobs": tensors}))
    made = PromptScores.of(came["prompt_logprobs"], 2, None)
    assert '"logprob":null' in made.json(STYLE)  # as in a stream
    with pytest.raises(ValueError, match="not JSON compliant"):
        list(made.pieces())

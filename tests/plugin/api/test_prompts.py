"""Log-probabilities of a prompt: packed until somebody looks, and the JSON that FastDeploy's maps make."""

import copy
import json
import math
from collections.abc import Mapping, Sequence

import msgpack
import numpy as np
import pytest

from fd_postproc.fastdeploy.api.chunks._chunks import (
    PromptLogprobs,
    Texts,
    Unknown,
    prompt_logprobs,
    unpack,
)
from fd_postproc.fastdeploy.api.chunks.model_fields import float_style, models_of
from tests.lib.rows import each
from tests.plugin.api.test_arrays import one_value, packed  # noqa: F401  a fixture of each test
from tests.restated.api import models
from tests.restated.api.logprobs import Steps


class Plain(models.BaseModel):
    id: str
    prompt_logprobs: models.PromptLogprobs | None = None


ANSWER = models_of(Plain, {Plain: None}, float_style())
SPELLED = [" the", "é\n", "", "\ufffd", "日本", '"']


def spell(token):
    if token >= 1 << 20:
        raise IndexError("piece id is out of range")
    return SPELLED[token % len(SPELLED)] + str(token // 100), ""


STEPS = Steps(None, None, lambda token: spell(token)[0])


def stock_list(ids, scores, ranks, columns, texts):
    """As FastDeploy builds it, -9999 instead of minus infinity."""
    return STEPS.prompt((ids, scores, ranks), columns, texts)


def clamp(value):
    for row in value:
        for one in (row or {}).values():
            one.logprob = max(one.logprob, -9999.0)
    return value


def collected(value):
    """As FastDeploy's chat puts them into a list."""
    made = []
    made.extend(value)
    return made


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


def same(value, right):
    """The pieces of a JSON, which is that of FastDeploy's maps, and the turns that it takes to make them."""
    answer, right = ANSWER(id="x", prompt_logprobs=value), Plain(id="x", prompt_logprobs=right)
    assert answer.model_dump_json() == right.model_dump_json()
    assert answer.model_dump_json(exclude_unset=True) == right.model_dump_json(exclude_unset=True)
    pieces = answer.response_pieces()
    turns = len(list(pieces.settle()))
    body = [pieces.whole] if pieces.whole else list(pieces)
    text = json.dumps(right.model_dump(), ensure_ascii=False, separators=(",", ":"))
    assert b"".join(body).decode() == text
    assert max(map(len, body)) < 70_000
    return pieces, turns


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
        assert isinstance(tensors, Sequence)
        made = prompt_logprobs(tensors, columns, Texts(spell) if texts else None, None)
        assert type(made) is PromptLogprobs
        assert len(made) == rows + 1
        made.clamp(clamp)
        for value in (made, collected(made)):
            same(value, right)


@each("odd", ODD)
def test_a_vocabularys_row_is_that_of_fastdeploys_map(odd):
    ids, scores, ranks = numbers(2, 3000, 1)
    ids[0], ids[1] = np.random.default_rng(2).permutation(3000), np.arange(3000)[::-1]
    for place, token in odd.items():
        ids[1][place] = token
    made = prompt_logprobs(packed_of((ids, scores, ranks)), 3000, None, None)
    made.clamp(clamp)
    pieces, turns = same(made, stock_list(ids.tolist(), scores.tolist(), ranks.tolist(), 3000, False))
    assert pieces.whole is None  # two rows are many numbers
    assert turns > 2


def test_few_texts_are_made_in_a_piece():
    """Each is asked of the tokenizer, which takes longer than a thousand that are known."""
    asked = []
    tensors = packed_of(numbers(400, 21, 3, most=100_000))

    def counted(token):
        asked.append(token)
        return spell(token)

    made = prompt_logprobs(tensors, 20, Texts(counted), None)
    made.clamp(clamp)
    before, most = len(asked), 0
    for _ in ANSWER(id="x", prompt_logprobs=made).response_pieces().settle():
        before, most = len(asked), max(most, len(asked) - before)
    assert most == 64
    assert len(asked) > 7000


def test_whoever_looks_finds_fastdeploys_list():
    given = numbers(5, 4, 8)
    lists = [one.tolist() for one in given]
    right = stock_list(*lists, 3, True)

    def made():
        return prompt_logprobs(packed_of(given), 3, Texts(spell), lambda: stock_list(*lists, 3, True))

    assert isinstance(made(), Sequence)
    assert isinstance(made()[1], Mapping)
    assert made() == list(made()) == right
    assert len(made()) == len(right)
    assert (list(reversed(made())), made()[-1], made()[1:]) == (right[::-1], right[-1], right[1:])
    row, expected = made()[2], right[2]
    assert (len(row), list(row), [*row.values()]) == (len(expected), list(expected), [*expected.values()])
    assert [*row.items()] == [(key, row[key]) for key in row] == [*expected.items()]
    assert (row.get(-7, "none"), -7 in row, repr(row)) == ("none", False, repr(expected))
    assert type(copy.deepcopy(row)) is dict
    with pytest.raises(IndexError):
        made()[6]
    assert copy.deepcopy(made()) == right
    for value in (made(), collected(made())):
        answer = ANSWER(id="x", prompt_logprobs=value)
        assert answer.prompt_logprobs == answer.model_copy().prompt_logprobs == right
        assert answer.model_dump() == Plain(id="x", prompt_logprobs=right).model_dump()
    looked_at = made()
    assert looked_at[1] == right[1]
    looked_at.clamp(clamp)
    expected = Plain(id="x", prompt_logprobs=right).model_dump_json()
    for value in (looked_at, collected(looked_at)):
        assert ANSWER(id="x", prompt_logprobs=value).model_dump_json() == expected


def test_two_results_of_a_choice_stand_one_behind_the_other():
    given = numbers(40, 3, 5)
    parts = [prompt_logprobs(packed_of(given), 2, None, None) for _ in range(2)]
    for one in parts:
        one.clamp(clamp)
    right = 2 * stock_list(*(one.tolist() for one in given), 2, False)
    same([*collected(parts[0]), *collected(parts[1])], right)


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
        prompt_logprobs(came, columns, None, None)


def test_a_tokenizer_that_refuses_does_it_before_anything_is_written():
    came = unpack(msgpack.packb({"prompt_logprobs": as_arrays([[1, 2], [1 << 20, 3]], SCORES, RANKS)}))
    with pytest.raises(IndexError):
        prompt_logprobs(came["prompt_logprobs"], 2, Texts(spell), None)


def test_not_a_number_is_left_to_the_model():
    tensors = as_arrays([[1, 2]] * 80, [[-0.5, math.nan]] * 80, [1] * 80)
    came = unpack(msgpack.packb({"prompt_logprobs": tensors}))
    answer = ANSWER(id="x", prompt_logprobs=prompt_logprobs(came["prompt_logprobs"], 2, None, None))
    assert '"logprob":null' in answer.model_dump_json()  # as in a stream
    with pytest.raises(Unknown):
        list(answer.response_pieces().settle())

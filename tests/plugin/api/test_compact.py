"""Answers with arrays, for a request that asks for them: the numbers are those of the default form."""

import asyncio
import json
import random
import types

import msgpack
import numpy as np
import pytest

from fd_postproc.client import ASK, read_answer
from fd_postproc.fastdeploy.api import responses
from fd_postproc.fastdeploy.api.chunks._chunks import (
    ChatBuilder,
    ChatModels,
    CompletionBuilder,
    CompletionModels,
    Texts,
    Unknown,
    join_masks,
    keep_packed,
    unpack,
)
from fd_postproc.fastdeploy.api.chunks.model_fields import float_style, models_of
from tests.lib.chunk_replay.alone import models
from tests.plugin.api.test_responses import JSONResponse

STYLE = float_style()


class Choice(models.BaseModel):
    index: int
    text: str = ""
    token_ids: list[int] | None = None
    logprobs: models.LogProbs | None = None
    sampling_mask: list[list[int]] | None = None


class TextChoice(models.BaseModel):
    index: int
    text: str = ""
    logprobs: models.CompletionLogprobs | None = None


class CompletionResponse(models.BaseModel):
    id: str
    choices: list[Choice]


class TextResponse(models.BaseModel):
    id: str
    choices: list[TextChoice]


NAMES = (models.LogProbEntry, models.LogProbs, models.CompletionLogprobs)
STOOD_IN = dict.fromkeys([*NAMES, Choice, TextChoice, CompletionResponse, TextResponse])
CHOICE, TEXT_CHOICE, LOGPROBS, ANSWER, TEXT_ANSWER = (
    models_of(cls, STOOD_IN, STYLE)
    for cls in (Choice, TextChoice, models.LogProbs, CompletionResponse, TextResponse)
)


def chat(rows):
    """Log-probabilities as FastDeploy's chat gathers them, a result each row."""
    texts = Texts(lambda token: (f"t{token % 50}",) * 2)
    builder = ChatBuilder(ChatModels(models.LogProbEntry, models.LogProbs, STYLE), texts, Texts(texts.shown))
    built = (builder.build([[ids], [scores], [1]], True, 99, True) for ids, scores in rows)
    return LOGPROBS(content=[entry for one in built for entry in one.content])


def rows_of(count, seed, widths=(4,), most=1000):
    draw = random.Random(seed)
    for _ in range(count):
        width = draw.choice(widths)
        ids = [draw.randrange(most) for _ in range(width)]
        yield ids, [float(np.float32(-draw.expovariate(1))) for _ in range(width)]


def compact(answer):
    pieces = answer.response_pieces(compact=True)
    list(pieces.settle())
    body = b"".join(pieces)
    assert len(body) == pieces.size
    return read_answer(body)


@pytest.mark.parametrize("count", [1, 3, 200, 20_000])
@pytest.mark.parametrize("widths", [(4,), (1, 2, 5)])
def test_chats_log_probabilities(count, widths):
    rows = [*rows_of(count, 3, widths)]
    told = compact(ANSWER(id="x", choices=[CHOICE(index=0, logprobs=chat(rows))])).choices[0].logprobs
    assert (told.token_ids.dtype, told.logprobs.dtype) == (np.int32, np.float32)
    for i, (ids, scores) in enumerate(rows):
        assert told.token_ids[i].tolist()[: len(ids)] == ids
        assert told.logprobs[i].tolist()[: len(ids)] == scores
        assert set(told.token_ids[i].tolist()[len(ids) :]) <= {-1}
        assert np.isnan(told.logprobs[i][len(ids) :]).all()


def test_scores_that_need_64_bits_have_them():
    told = compact(ANSWER(id="x", choices=[CHOICE(index=0, logprobs=chat([([1], [-0.1])]))]))
    assert told.choices[0].logprobs.logprobs.tolist() == [[-0.1]]


@pytest.mark.parametrize("ids", [[], [1], [5, 1 << 31, -7], list(range(100_000))], ids=len)
def test_token_ids(ids):
    told = compact(ANSWER(id="x", choices=[CHOICE(index=0, token_ids=ids)])).choices[0].token_ids
    assert told.tolist() == ids
    assert told.dtype == (np.int64 if 1 << 31 in ids else np.int32)


MASKS = (
    *([[5]], [[1, 2], [], [3]], [[*range(n)] for n in range(150)], [[1] * 60_000] * 3, [[]]),
    [[5, (1 << 31) - 1], [-(1 << 31)]],
)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("masks", MASKS, ids=len)
def test_masks(masks, packed):
    keep_packed(masks=packed)
    try:
        rows = [unpack(msgpack.packb({"sampling_mask": mask}))["sampling_mask"] for mask in masks]
    finally:
        keep_packed(masks=False)
    told = compact(ANSWER(id="x", choices=[CHOICE(index=0, sampling_mask=rows)])).choices[0].sampling_mask
    assert [one.tolist() for one in told] == masks
    steps = [[row] for row in rows]
    list(join_masks(steps))
    if packed and len(masks) >= 64:
        told = compact(ANSWER(id="x", choices=[CHOICE(index=0, sampling_mask=steps)]))
        assert [one.tolist() for one in told.choices[0].sampling_mask] == masks


def test_a_masks_id_of_more_than_32_bits_is_left_to_the_default_form():
    pieces = ANSWER(id="x", choices=[CHOICE(index=0, sampling_mask=[[1 << 31]])]).response_pieces(
        compact=True
    )
    with pytest.raises(Unknown):
        list(pieces.settle())


def completion(rows, stock=lambda: None, made=None):
    def spell(token):
        if made is not None:
            made.append(token)
        return f"t{token % 50}", ""

    builder = CompletionBuilder(CompletionModels(models.CompletionLogprobs, STYLE), Texts(spell))
    ids, scores = zip(*rows, strict=True)
    return builder.build([[*ids], [*scores], [1] * len(rows)], 99, stock)


@pytest.mark.parametrize("count", [1, 63, 64, 3000])
def test_a_completions_log_probabilities(count):
    rows = [*rows_of(count, 5, (3, 4), 4000)]
    late, made = completion(rows, made=(asked := [])), completion(rows, None)
    assert len(asked) <= 2 or count < 64
    answers = [TEXT_ANSWER(id="x", choices=[TEXT_CHOICE(index=0, logprobs=one)]) for one in (late, made)]
    told = compact(answers[0]).choices[0].logprobs
    assert [row[row >= 0].tolist() for row in told.token_ids] == [ids for ids, _ in rows]
    assert len(asked) <= 2 or count < 64  # arrays need no texts
    before, most = len(asked), 0
    pieces = answers[0].response_pieces()
    for _ in pieces.settle():
        before, most = len(asked), max(most, len(asked) - before)
    assert most < 64 + 4
    right = json.dumps(answers[1].model_dump(), ensure_ascii=False, separators=(",", ":"))
    assert b"".join(pieces).decode() == answers[1].response_json() == right
    assert answers[0].model_dump_json() == answers[1].model_dump_json()
    assert completion(rows).tokens == made.tokens


def test_late_texts_that_are_none_are_fastdeploys_business():
    def spell(token):
        return ("\ud800" if token == 5 else "x"), ""

    own = models.CompletionLogprobs(tokens=["own"])
    builder = CompletionBuilder(CompletionModels(models.CompletionLogprobs, STYLE), Texts(spell))
    top = [[[token % 10] for token in range(100)], [[-0.5]] * 100, [1] * 100]
    answer = TEXT_ANSWER(id="x", choices=[TEXT_CHOICE(index=0, logprobs=builder.build(top, 0, lambda: own))])
    with pytest.raises(Unknown):
        list(answer.response_pieces().settle())
    assert json.loads(answer.model_dump_json())["choices"][0]["logprobs"]["tokens"] == ["own"]


APPLICATION = """
def respond(answer, req):
    return JSONResponse(content=answer.model_dump())
"""


@pytest.fixture
def application():
    module = types.ModuleType("application")
    module.JSONResponse = JSONResponse
    exec(APPLICATION, vars(module))
    restore = responses.install(module)
    yield module
    restore()


async def body_of(response):
    sent = []

    async def send(event):
        sent.append(event.get("body", b""))

    await response({"type": "http"}, None, send)
    return b"".join(sent)


@pytest.mark.parametrize(
    ("asked", "arrays"),
    [
        *((ASK, True), ({**ASK, "stream": False}, True), ({}, False), ({"compact_arrays": False}, False)),
        *(({"compact_arrays": 1}, False), ([], False), (None, False)),
    ],
)
def test_the_request_decides(application, asked, arrays):
    answer = ANSWER(id="x", choices=[CHOICE(index=0, token_ids=[5, 6])])
    response = application.respond(answer, types.SimpleNamespace(_json=asked))
    told = json.loads(asyncio.run(body_of(response)))["choices"][0]["token_ids"]
    assert type(told) is (dict if arrays else list)


def test_a_request_without_json_gets_the_default_form(application):
    answer = ANSWER(id="x", choices=[CHOICE(index=0, token_ids=[5, 6])])
    assert json.loads(application.respond(answer, object()).body)["choices"][0]["token_ids"] == [5, 6]

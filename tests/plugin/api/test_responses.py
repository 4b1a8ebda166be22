"""Answers that are not streamed: the body without a dictionary for each candidate."""

import asyncio
import copy
import json
import math
import pickle
import types

import pytest

from fd_postproc.fastdeploy.api import responses
from fd_postproc.fastdeploy.api.chunks._chunks import Models, Texts, chat_logprobs
from fd_postproc.fastdeploy.api.chunks.model_fields import float_style, models_of
from fd_postproc.fastdeploy.api.chunks.whole_answers import Dump
from fd_postproc.fastdeploy.gate.seams import NotPlain
from tests.lib.rows import each
from tests.restated.api import models

STYLE = float_style()


class JSONResponse:
    """As starlette's."""

    status_code, background = 200, None

    def __init__(self, content):
        self.body = self.render(content)
        self.raw_headers = [(b"content-length", str(len(self.body)).encode()), (b"x", b"y")]

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})

    def render(self, content):
        return json.dumps(
            content, ensure_ascii=False, allow_nan=False, indent=None, separators=(",", ":")
        ).encode()


class Choice(models.BaseModel):
    index: int
    logprobs: models.LogProbs | None = None


class ChatCompletionResponse(models.BaseModel):
    id: str
    choices: list[Choice]


STOOD_IN = dict.fromkeys([models.LogProbEntry, models.LogProbs, Choice, ChatCompletionResponse])
CHOICE, ANSWER = (models_of(cls, STOOD_IN, STYLE) for cls in (Choice, ChatCompletionResponse))


def answer(score=-1.5e-07):
    assert type(ANSWER) is Models
    texts = Texts(lambda token: (f"é{token}", f"é{token}"))
    top = [[[1, 2], [3]], [[score, -2.0], [-0.0]], [1, 1]]
    logprobs = chat_logprobs(top, 5, texts, models.LogProbEntry, LOGPROBS)
    return ANSWER(id="x", choices=[CHOICE(index=0, logprobs=logprobs)])


CALL = """
def call(answer):
    return answer.model_dump()

def respond(answer):
    return JSONResponse(content=answer.model_dump())
"""


@pytest.fixture
def application():
    """A module that answers as FastDeploy's does."""
    module = types.ModuleType("application")
    module.JSONResponse = JSONResponse
    exec(CALL, vars(module))
    restore = responses.install(module)
    yield module
    restore()
    assert module.JSONResponse is JSONResponse
    assert type(module.call(answer())) is dict


def long_answer(score=-0.5):
    logprobs = answer(score).choices[0].logprobs.content[:1] * 5000
    return ANSWER(id="x", choices=[CHOICE(index=0, logprobs=LOGPROBS(content=logprobs))])


LOGPROBS = models_of(models.LogProbs, STOOD_IN, STYLE)


async def served(response):
    """The events that a response sends, and how often another task had its turn meanwhile."""
    events, turns, over = [], 0, False

    async def other():
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    async def send(event):
        events.append(event)

    beside = asyncio.ensure_future(other())
    await response({"type": "http"}, None, send)
    over = True
    await beside
    return events, turns


@each("reads", [0, 1, 2])
def test_a_long_answer_is_sent_in_pieces(application, reads):
    """The length is that of what is sent, whoever reads the body before."""
    expected = JSONResponse(long_answer().model_dump()).body
    response, runs = application.respond(long_answer()), []

    async def background():
        runs.append(1)

    response.background = background
    headers = response.raw_headers  # starlette's ``headers`` shares the list
    assert b"0" not in dict(headers).values()
    for _ in range(reads):
        assert response.body == expected
        assert dict(headers)[b"content-length"] == str(len(expected)).encode()
    headers.append((b"added", b"later"))
    (start, *bodies), turns = asyncio.run(served(response))
    length = str(len(expected)).encode()
    assert dict(start["headers"]) == {b"content-length": length, b"x": b"y", b"added": b"later"}
    assert b"".join(event["body"] for event in bodies) == expected
    if reads == 0:
        assert runs == [1]
        assert [event.get("more_body", False) for event in bodies] == [True] * (len(bodies) - 1) + [False]
        assert len(bodies) > len(expected) >> 16 > 3
        assert turns > 2 * (len(expected) >> 16)


def test_the_body_is_the_same_and_no_dictionary_is_made_for_it(application, monkeypatch):
    expected = JSONResponse(answer().model_dump()).body
    monkeypatch.setattr(Dump, "fill", None)
    response = application.respond(answer())
    assert response.body == expected
    assert isinstance(response, JSONResponse)


@each("score", [math.nan, math.inf])
def test_what_json_refuses_is_refused_as_before(application, score):
    with pytest.raises(ValueError, match="not JSON compliant"):
        application.respond(answer(score))
    with pytest.raises(ValueError, match="not JSON compliant"):
        asyncio.run(served(application.respond(long_answer(score))))
    with pytest.raises(ValueError, match="not JSON compliant"):
        application.respond(long_answer(score)).body  # noqa: B018


def test_others_content_is_written_as_before(application):
    assert application.JSONResponse({"a": 1}).body == b'{"a":1}'
    with pytest.raises(TypeError):
        application.JSONResponse({"a": object()})


LOOKS = (
    *(json.dumps, list, len, dict, repr, copy.deepcopy, lambda d: d == dict(answer().model_dump())),
    *(lambda d: list(d.values()), lambda d: d["id"], lambda d: d.get("id"), lambda d: dict(copy.copy(d))),
    *(lambda d: "choices" in d, lambda d: "" in d, lambda d: {**d}, lambda d: d | {"a": 1}),
    *(lambda d: pickle.loads(pickle.dumps(d)), lambda d: (d.update(a=1), sorted(d))),
    *(lambda d: (d.__setitem__("id", "y"), d["id"], len(d)), lambda d: (d.pop("id"), len(d))),
)


@each("look", LOOKS)
def test_whoever_looks_into_the_dump_finds_a_dictionary(application, look):
    dump = application.call(answer())
    assert type(dump) is type(answer().model_dump()) is Dump  # whoever asks
    assert isinstance(dump, dict)
    plain = dict(answer().model_dump())
    assert look(dump) == look(plain)


def test_a_dump_that_was_changed_is_written_as_it_is(application):
    dump = application.call(answer())
    dump["id"] = "changed"
    assert b'"changed"' in application.JSONResponse(dump).body
    assert answer().model_dump(include={"id"}) == {"id": "x"}  # a plain one


def test_another_response_class_is_left_alone():
    class Other(JSONResponse):
        def render(self, content):
            return json.dumps(content).encode()

    with pytest.raises(NotPlain, match="another way"):
        responses.install(types.SimpleNamespace(JSONResponse=Other))


def test_a_body_that_is_set_is_sent(application):
    response = application.respond(long_answer())
    response.body = b"another"
    (start, *bodies), _ = asyncio.run(served(response))
    assert dict(start["headers"])[b"content-length"] == b"7"
    assert b"".join(event["body"] for event in bodies) == b"another"


@pytest.mark.falls_back
def test_a_failure_of_ours_is_written_by_the_model(application, monkeypatch):
    """Of the pieces, at their making and before the first byte is sent; and of an answer's stand-in."""

    class Failing:
        whole = None

        def settle(self):
            raise KeyError("in a test")

        __iter__ = settle

    class Answer:
        def __init__(self, real, pieces):
            self.real, self.pieces = real, pieces

        def __getattr__(self, name):
            return getattr(self.real, name)

        def response_pieces(self):
            return self.pieces or {}["pieces"]

    expected = JSONResponse(long_answer().model_dump()).body
    for pieces in (Failing(), None):
        for reads in (False, True):
            dump = application.call(long_answer())
            dump.answer = Answer(dump.answer, pieces)
            response = application.JSONResponse(dump)
            assert not reads or response.body == expected
            (start, *bodies), _ = asyncio.run(served(response))
            assert b"".join(event["body"] for event in bodies) == expected
            assert dict(start["headers"])[b"content-length"] == str(len(expected)).encode()

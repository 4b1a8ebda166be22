"""Answers that are not streamed: what was withheld of them goes into the body, in pieces."""

import asyncio
import contextlib
import json
import types

import pytest

from fd_postproc.fastdeploy.api import responses
from fd_postproc.fastdeploy.gate.seams import NotPlain
from tests.lib.rows import each


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


@contextlib.asynccontextmanager
async def connection_manager():
    yield


@pytest.fixture
def application():
    """A module that answers as FastDeploy's does."""
    module = types.SimpleNamespace(JSONResponse=JSONResponse, connection_manager=connection_manager)
    restore = responses.install(module)
    yield module
    restore()
    assert vars(module) == {"JSONResponse": JSONResponse, "connection_manager": connection_manager}


class Answer:
    """An answer of which two lists are withheld."""

    def __init__(self, count=5000):
        self.rows = [list(range(n, n + 30)) for n in range(count)]

    def marked(self, content, mark):
        content["a"], content["b"] = f"{mark}0", [f"{mark}1", 1]
        return [self.pieces(), iter([b"[]"])]

    def pieces(self):
        for number, row in enumerate(self.rows):
            yield (b"," if number else b"[") + json.dumps(row, separators=(",", ":")).encode()
        yield b"]"


def content_of(answer=None):
    """The content, or with `answer` what has to come of it."""
    return {"id": "x", "a": answer and answer.rows, "b": [[] if answer else None, 1], "text": 'é"a":null'}


def respond(application, answer, content=None):
    """A response as FastDeploy's route makes it."""

    async def route():
        async with application.connection_manager():
            responses.answering.get().answer = answer
            return application.JSONResponse(content or content_of())

    return asyncio.run(route())


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
    expected = JSONResponse(content_of(Answer())).body
    response, runs = respond(application, Answer()), []

    async def background():
        runs.append(1)

    response.background = background
    headers = response.raw_headers  # starlette's ``headers`` shares the list
    assert dict(headers) == {b"x": b"y"}
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
        assert turns > 5000  # one a piece


def test_others_content_is_written_as_before(application):
    assert application.JSONResponse({"a": 1}).body == b'{"a":1}'
    assert respond(application, None, {"a": 1}).body == b'{"a":1}'
    with pytest.raises(TypeError):
        application.JSONResponse({"a": object()})


def test_only_a_task_of_the_routes_has_a_place(application):
    async def asked():
        async with application.connection_manager():
            inside = responses.answering.get()
            beside = asyncio.create_task(elsewhere())
        return inside, await beside, responses.answering.get()

    async def elsewhere():
        async with application.connection_manager():
            return responses.answering.get()

    first, second, outside = asyncio.run(asked())
    assert first is not second
    assert outside is None


def test_an_answer_belongs_to_one_response(application):
    async def route():
        async with application.connection_manager():
            responses.answering.get().answer = Answer(1)
            return [application.JSONResponse(content_of()).body for _ in range(2)]

    first, second = asyncio.run(route())
    assert json.loads(first)["a"] == Answer(1).rows
    assert json.loads(second) == content_of()


def test_an_error_of_the_route_is_the_routes(application):
    async def route():
        async with application.connection_manager():
            responses.answering.get().answer = Answer()
            raise KeyError("planted")

    for _ in range(4):
        with pytest.raises(KeyError):
            asyncio.run(route())
    assert json.loads(respond(application, Answer(1)).body)["a"] == Answer(1).rows


def test_another_response_class_is_left_alone():
    class Other(JSONResponse):
        def render(self, content):
            return json.dumps(content).encode()

    with pytest.raises(NotPlain, match="another way"):
        responses.install(types.SimpleNamespace(JSONResponse=Other, connection_manager=connection_manager))


def test_a_body_that_is_set_is_sent(application):
    response = respond(application, Answer())
    response.body = b"another"
    (start, *bodies), _ = asyncio.run(served(response))
    assert dict(start["headers"])[b"content-length"] == b"7"
    assert b"".join(event["body"] for event in bodies) == b"another"


def test_what_json_refuses_is_refused_before_anything_is_sent(application):
    class NotFinite(Answer):
        def pieces(self):
            yield b"[1"
            raise ValueError("Out of range float values are not JSON compliant")

    for read in (lambda response: response.body, lambda response: asyncio.run(served(response))):
        with pytest.raises(ValueError, match="not JSON compliant"):
            read(respond(application, NotFinite()))

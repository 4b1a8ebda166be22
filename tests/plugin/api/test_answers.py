"""Answers that are not streamed beside FastDeploy's own, here the double's: long lists go around its models.

Recorded answers and random ones of FastDeploy's own generators: real_tree/test_api.py.
"""

import asyncio
import base64
import contextlib
import functools
import importlib
import json
import logging
import sys
import weakref
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest

from fd_postproc.fastdeploy.api import answers, judged, responses
from fd_postproc.fastdeploy.api.activation import CHAT, COMPLETION
from fd_postproc.fastdeploy.api.chunks._chunks import give_arrays, unpack
from fd_postproc.fastdeploy.api.connections import NoResults
from fd_postproc.fastdeploy.events.counters import forget, noted
from tests.lib.rows import each
from tests.restated.api import logprobs
from tools.accept import answer_scripts, virtual_time
from tools.accept import answers as trial

from .laned import NAMES, LanedConnections, result
from .test_arrays import one_value
from .test_responses import JSONResponse

APIS = [CHAT, COMPLETION]


class Processor:
    """FastDeploy's data processor: token 7777 has no text."""

    def process_response_dict(self, response_dict, **options):
        response_dict["outputs"] |= {"text": "ab", "completion_tokens": "ab", "reasoning_content": ""}
        return response_dict

    def process_logprob_response(self, token_ids, **options):
        if token_ids in ([7777], 7777):
            raise OverflowError("no such token")
        return f"t{token_ids}"


class Client(SimpleNamespace):
    """FastDeploy's engine client."""

    ori_vocab_size = 100

    def __init__(self):
        super().__init__(data_processor=Processor(), connection_manager=LanedConnections(), is_cleared=False)
        self.semaphore = SimpleNamespace(release=lambda: None)

    def check_model_weight_status(self):
        return self.is_cleared


@contextlib.asynccontextmanager
async def connection_manager():
    yield


@pytest.fixture
def application():
    """FastDeploy's application with our response class, and handlers with our answers."""
    made = SimpleNamespace(JSONResponse=JSONResponse, connection_manager=connection_manager)
    restore = [responses.install(made), *(answers.install(importlib.import_module(api)) for api in APIS)]
    yield made
    for one in restore:
        one()
    assert made.connection_manager is connection_manager


def handler_of(api):
    """A handler, and the name of what makes its whole answers."""
    module = importlib.import_module(api)
    owner, name, _, _ = answers.ANSWERS[api.rpartition(".")[2]]
    handler = vars(module)[owner](Client())
    return handler, name


def fastdeploys(handler, name):
    """FastDeploy's own method of a handler."""
    return vars(type(handler))[name].__wrapped__.__get__(handler)


async def made_by(api, handler, method, request, choices=1):
    if api == CHAT:
        return await method(request, NAMES[api], "m", [1, 2], "x", 50)
    return await method(
        request=request, num_choices=choices and (request.n or 1), request_id=NAMES[api], created_time=7,
        model_name="m", prompt_batched_token_ids=[[1, 2]], prompt_tokens_list=["x"], max_tokens_list=[50],
    )  # fmt: skip


def request_of(api, columns=2, **options):
    protocol = importlib.import_module("fastdeploy.entrypoints.openai.protocol")
    if api == CHAT:
        asked = {"logprobs": columns is not None, "top_logprobs": columns}
        return protocol.ChatCompletionRequest(messages=[], **asked, **options)
    return protocol.CompletionRequest(prompt="x", logprobs=columns, **options)


async def body_of(application, api, groups, is_ours=True, between=None, **options):
    """The body of an answer, as FastDeploy's route makes it; or the name of what it raises."""
    handler, name = handler_of(api)
    method, pieces = getattr(handler, name) if is_ours else fastdeploys(handler, name), []

    async def send(event):
        pieces.append(event.get("body", b""))

    async def route():
        async with application.connection_manager():
            answer = await made_by(api, handler, method, request_of(api, **options))
            if answer is None:
                return
            response = application.JSONResponse(answer.model_dump())
        await response({"type": "http"}, None, send)

    routed = asyncio.ensure_future(route())
    await asyncio.sleep(0.01)
    queue = handler.engine_client.connection_manager.request_map.get(NAMES[api])
    for group in groups:
        queue.put_nowait(group)
        if between is not None:
            await between(handler, queue, routed)
    try:
        await routed
    except Exception as error:
        return type(error).__name__
    return b"".join(pieces).decode()


def both(application, api, make, **options):
    """The bodies of FastDeploy's answer and of ours."""
    told = []
    for is_ours in (False, True):
        with virtual_time.Loop() as loop:
            told.append(loop.run_until_complete(body_of(application, api, make(), is_ours, **options)))
    return told


def the_same(application, api, make, **options):
    theirs, ours = both(application, api, make, **options)
    assert ours == theirs
    return ours


def scored(api, steps=40, ids=(10,), odd=None, at=20, **more):
    """An answer's groups, of one result each, as they come out of messages."""
    made = []
    for step in range(steps):
        rows = [[[row, 5, step] for row in ids], [[-0.5, -1.5, -2e-7] for _ in ids], [1] * len(ids)]
        made.append(result(api, step, ids, finished=step == steps - 1, top_logprobs=rows, **more))
    if odd is not None:
        made[at]["outputs"]["top_logprobs"] = odd
    return [[one] for one in unpack(msgpack.packb(made))]


REFUSED = [[[7777, 5]], [[-0.5, -1.5]], [1]]
BEHIND_ANOTHER = [[[10, 5], [7777, 5]], [[-0.5, -1.5]] * 2, [1, 1]]
NAN = [[[10, 5]], [[-0.5, float("nan")]], [1]]
WHOLE_NUMBERS = [[[10, 5]], [[-1, -2]], [1]]


@pytest.fixture
def asked(monkeypatch):
    """The rows that FastDeploy's own code makes log-probabilities of."""
    rows = []
    for name in ("chat", "completion"):
        stock = getattr(logprobs.Steps, name)

        def asked(steps, top, *told, _stock=stock):
            rows.extend(top[0])
            return _stock(steps, top, *told)

        monkeypatch.setattr(logprobs.Steps, name, asked)
    return rows


@pytest.mark.parametrize("api", APIS)
def test_the_body_is_fastdeploys_and_its_models_have_seen_no_row(api, application, asked):
    body = the_same(application, api, lambda: scored(api, 200))
    assert body.count("-2e-07") == 200
    assert len(asked) == 200  # FastDeploy's own answer's


@pytest.mark.parametrize("api", APIS)
@pytest.mark.falls_back
def test_random_answers(api, monkeypatch):
    """Their tokenizer refuses some ids."""
    monkeypatch.setitem(sys.modules, "fastapi.responses", SimpleNamespace(JSONResponse=JSONResponse))
    module, is_chat = importlib.import_module(api), api == CHAT
    scripts = answer_scripts.scripts(is_chat, 60)
    assert trial.first_difference(module, scripts, whole=True) is None


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("odd", [REFUSED, BEHIND_ANOTHER, NAN, WHOLE_NUMBERS, [[], [], []]])
@pytest.mark.falls_back
def test_what_ours_does_not_know_is_fastdeploys_with_all_that_comes_behind(odd, api, application):
    """A row that its tokenizer refuses is left out, or an error, as it stands in a result."""
    forget()
    for at in (0, 20, 39):
        the_same(application, api, lambda at=at: scored(api, odd=odd, at=at))
    assert bool(noted()) is (odd in (REFUSED, BEHIND_ANOTHER, WHOLE_NUMBERS))


@each("api", APIS)
def test_drafts_and_several_choices(api, application):
    def make():
        rows = [[[10, 5]], [[-0.25, -1.5]], [1]]
        for step in range(30):
            for choice in range(3):
                ends = step == 20 + choice
                if step <= 20 + choice:
                    yield [
                        result(
                            api, step, choice=choice, finished=ends, top_logprobs=rows,
                            draft_top_logprobs=rows if step % 2 else None,
                        )
                    ]  # fmt: skip

    for shows in (True, False):
        body = the_same(application, api, make, n=3, include_draft_logprobs=shows)
        assert (body.count('"draft_logprobs":{') == 3) is shows


@each("api", APIS)
def test_what_stands_behind_an_end_in_its_group_is_what_fastdeploys_generator_takes(api, application):
    def make():
        rows = [[[10, 5]], [[-0.25, -1.5]], [1]]
        yield [result(api, 0, choice=i, top_logprobs=rows) for i in range(2)]
        yield [result(api, 1, choice=i, finished=i == 0, top_logprobs=rows) for i in range(2)]
        yield [result(api, 2, choice=1, finished=True, top_logprobs=rows)]

    body = the_same(application, api, make, n=2)
    assert body.count("-0.25") == {CHAT: 5, COMPLETION: 2 * 4}[api]


@pytest.mark.parametrize("as_lists", [False, True], ids=["arrays", "lists"])
def test_masks_experts_and_prompts(as_lists, application, monkeypatch):
    """An engine without the plug-in sends experts as lists."""
    give_arrays(True)
    monkeypatch.setattr(answers, "_ENCODED", 300)
    beside, turns = [], []

    async def counted(handler, queue, routed):
        async def other():
            while not routed.done():
                turns.append(1)
                await asyncio.sleep(0)

        if not beside:
            beside.append(asyncio.ensure_future(other()))

    experts = np.arange(200_000).reshape(-1, 4)
    prompt = [np.array([[1, 2], [3, 4]]), np.array([[-0.5, -np.inf], [-0.25, -1.0]]), np.array([1, 2])]

    def make():
        for step in range(100):
            more = {"prompt_logprobs": [one_value(one) for one in prompt]} if step == 0 else {}
            if step == 99:
                more |= {"routing_data": experts.tolist() if as_lists else one_value(experts)}
            made = result(CHAT, step, finished=step == 99, sampling_mask=[step, 70_000], **more)
            yield unpack(msgpack.packb([made], default=None))

    try:
        theirs = asyncio.run(body_of(application, CHAT, make(), False, columns=None, prompt_logprobs=1))
        ours = body_of(application, CHAT, make(), between=counted, columns=None, prompt_logprobs=1)
        assert asyncio.run(ours) == theirs
    finally:
        give_arrays(False)
    assert len(turns) > experts.nbytes // answers._ENCODED  # one a piece
    body = json.loads(theirs)
    assert base64.b64decode(body["routed_experts"]) == experts.tobytes()
    assert body["choices"][0]["sampling_mask"][70] == [70, 70_000]
    assert body["choices"][0]["prompt_logprobs"][1]["2"]["logprob"] == -9999.0


@pytest.mark.falls_back
def test_experts_are_those_of_the_last_end_behind_that_of_a_choice_left_to_fastdeploy(application):
    give_arrays(True)

    def make():
        yield [result(CHAT, 0, top_logprobs=REFUSED)]
        for choice in range(2):
            made = result(
                CHAT, 2, choice=choice, finished=True, routing_data=one_value(np.arange(4) + choice)
            )
            yield unpack(msgpack.packb([made], default=None))

    try:
        body = json.loads(the_same(application, CHAT, make, n=2))
    finally:
        give_arrays(False)
    assert base64.b64decode(body["routed_experts"]) == (np.arange(4) + 1).tobytes()


@pytest.mark.parametrize("api", APIS)
def test_whoever_calls_a_handler_elsewhere_gets_fastdeploys_answer(api, application):
    async def called(is_ours):
        handler, name = handler_of(api)
        method = getattr(handler, name) if is_ours else fastdeploys(handler, name)
        making = asyncio.ensure_future(made_by(api, handler, method, request_of(api)))
        await asyncio.sleep(0.01)
        for group in scored(api):
            handler.engine_client.connection_manager.request_map.get(NAMES[api]).put_nowait(group)
        return (await making).model_dump()

    theirs, ours = (asyncio.run(called(is_ours)) for is_ours in (False, True))
    assert ours == theirs
    assert len(str(ours)) > 2000


@pytest.mark.parametrize("api", APIS)
def test_fastdeploys_generator_is_woken_for_many_results_at_once(api, application):
    """And at once for an end or an error; after a time limit of FastDeploy's it gets what there is."""
    handler, _ = handler_of(api)
    kind = answers.ANSWERS[api.rpartition(".")[2]][2]

    async def waits():
        waiting = kind(handler, request_of(api, None), "a", ["a_0"], set(), None)
        one, end = [{"request_id": "a_0"}], [{"request_id": "a_0", "finished": True}]
        first = asyncio.ensure_future(waiting.get())
        for count in range(answers.AT_ONCE):
            await asyncio.sleep(0)
            assert not first.done(), count
            waiting.put_nowait(one)
        assert await first == one * answers.AT_ONCE
        for groups in ([one, end, one], [end]):
            for group in groups:
                waiting.put_nowait(group)
        assert [len(await waiting.get()) for _ in range(2)] == [2, 2]
        error = NoResults(KeyError("planted"))
        waiting.put_nowait(one)
        waiting.put_nowait(error)
        assert await waiting.get() == one
        assert await waiting.get() is error
        waiting.put_nowait(one)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting.get(), 0.01)
        assert await waiting.get() == one

    asyncio.run(waits())


@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_is_aborted_leaves_nothing(api, application, monkeypatch):
    """Not before the collector runs, but at once."""
    made = []
    stock = answers.Answer.put_nowait

    def put_nowait(answer, group):
        if not made:
            made.append(weakref.ref(answer))
        stock(answer, group)

    monkeypatch.setattr(answers.Answer, "put_nowait", put_nowait)

    async def leave(handler, queue, routed):
        del queue
        routed.cancel()

    async def aborted():
        with contextlib.suppress(asyncio.CancelledError):
            await body_of(application, api, scored(api)[:1], between=leave)

    asyncio.run(aborted())
    assert made[0]() is None


@pytest.mark.parametrize("api", APIS)
def test_an_error_instead_of_an_answer(api, application):
    def make():
        return [*scored(api)[:3], [result(api, 3, error_code=500, error_msg="planted")]]

    assert the_same(application, api, make) == {CHAT: "ValueError", COMPLETION: ""}[api]

    async def cleared(handler, queue, routed):
        handler.engine_client.is_cleared = True

    if api == CHAT:
        with virtual_time.Loop() as loop:
            body = loop.run_until_complete(body_of(application, api, scored(api)[:20], between=cleared))
        assert json.loads(body) == {"error": "the weights are cleared"}


def test_a_completion_of_no_choices_is_no_failure_of_ours(application):
    """A client asks for it with n=0; FastDeploy's generator has an error for it, or an empty answer."""

    async def route():
        handler, name = handler_of(COMPLETION)
        async with application.connection_manager():
            return await made_by(COMPLETION, handler, getattr(handler, name), request_of(COMPLETION), 0)

    with contextlib.suppress(Exception):
        asyncio.run(route())


@pytest.mark.parametrize("where", ["row", "answer", "handler"])
def test_what_somebody_wraps_later_is_called_and_named(where, application, monkeypatch, caplog):
    handler, name = handler_of(CHAT)
    cls, calls, create = type(handler), [], "_create_chat_logprobs"
    monkeypatch.setattr(judged, "api_log", logging.getLogger)

    def wrapping(stock):
        @functools.wraps(stock)
        def traced(*told, **options):
            calls.append(1)
            return stock(*told, **options)

        return traced

    def init(handler, client):
        handler.engine_client = client
        setattr(handler, create, wrapping(vars(cls)[create].__get__(handler)))

    changed = {"row": create, "answer": name, "handler": "__init__"}[where]
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(cls, changed, init if where == "handler" else wrapping(vars(cls)[changed]))
        body = asyncio.run(body_of(application, CHAT, scored(CHAT)))
    assert body.count("-2e-07") == 40
    assert len(calls) == (1 if where == "answer" else 40)
    (line,) = [one for one in caplog.messages if "leaves api answers to FastDeploy" in one]
    assert {
        "row": f"{create} is wrapped",
        "answer": f"{name} is wrapped",
        "handler": "on an object of OpenAIServing",
    }[where] in line


@pytest.mark.falls_back
def test_a_route_that_makes_no_response_is_noticed(application):
    """What was withheld is lost: after three FastDeploy's models get all values."""

    async def forgets():
        handler, name = handler_of(CHAT)

        async def route():
            async with application.connection_manager():
                return await made_by(CHAT, handler, getattr(handler, name), request_of(CHAT))

        routed = asyncio.ensure_future(route())
        await asyncio.sleep(0.01)
        for group in scored(CHAT):
            handler.engine_client.connection_manager.request_map.get(NAMES[CHAT]).put_nowait(group)
        return (await routed).choices[0].logprobs

    shown = [asyncio.run(forgets()) for _ in range(4)]
    assert [one is None for one in shown] == [True] * 3 + [False]


@pytest.mark.falls_back
def test_a_failure_of_ours_before_an_answer_begins_leaves_it_to_fastdeploy(application, monkeypatch):
    monkeypatch.setattr(answers.ChatAnswer, "ASKED", lambda *told: 1 // 0)
    the_same(application, CHAT, lambda: scored(CHAT))


def test_models_that_show_a_row_in_another_way_are_left_alone(monkeypatch):
    other = staticmethod(lambda protocol: protocol.LogProbs(content=[]))
    monkeypatch.setattr(answers.ChatAnswer, "sample", other)
    with pytest.raises(answers.NotPlain, match="ChatCompletionResponseChoice shows logprobs in another way"):
        answers.install(importlib.import_module(CHAT))

"""Streams in the steady lane beside the same streams of FastDeploy's generators, here the double's.

With hand-overs at random places: tools/accept; recorded answers: real_tree/test_api.py.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import random
import weakref
import zlib
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest

from fd_postproc.fastdeploy.api import feed, judged, lane, streams
from fd_postproc.fastdeploy.api.arrays import CHAT, COMPLETION
from fd_postproc.fastdeploy.api.chunks._chunks import ChatScores, Template, unpack
from fd_postproc.fastdeploy.api.chunks.float_style import float_style
from fd_postproc.fastdeploy.api.connections import NoResults, RequestMap, with_inboxes
from fd_postproc.fastdeploy.events.counters import forget, noted
from fd_postproc.fastdeploy.events.guard import Guard
from fd_postproc.fastdeploy.gate import seams
from fd_postproc.fastdeploy.gate.judgements import gate
from tests.lib.fakes import TwoOfThree
from tests.lib.restated_parsers import Processor, Thinks, install
from tests.lib.rows import each
from tests.restated.api import logprobs
from tools.accept import answers, canned_answers, virtual_time

APIS = [CHAT, COMPLETION]
NAMES = {CHAT: "chatcmpl-a", COMPLETION: "cmpl-a"}
START = 1000.5


@pytest.fixture(scope="module")
def processor_class():
    cls, undo = install()
    yield cls
    for one in reversed(undo):
        one()


@pytest.fixture
def laned():
    """The double's serving modules with the lane, and its chunks: a mark in a row for each."""
    forget()
    written, made = lane.Lane._written, []

    def counted(stream, *told):
        chunk = written(stream, *told)
        made.extend([chunk] if chunk is not None else [])
        return chunk

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane.Lane, "_written", counted)
        restore = [streams.install(importlib.import_module(name)) for name in APIS]
        yield made
        for one in restore:
            one()


class Connections:
    """FastDeploy's manager of connections."""

    def __init__(self):
        self.request_map = RequestMap({})

    async def get_connection(self, request_id, num_choices=1):
        queue = asyncio.Queue()
        self.request_map[request_id] = queue
        return None, queue

    async def cleanup_request(self, request_id):
        self.request_map.pop(request_id, None)


class LanedConnections(Connections):
    get_connection = with_inboxes(Connections.get_connection, Guard("api connections"))


class Client:
    """FastDeploy's EngineClient: what its generators use of it."""

    ori_vocab_size = 100

    def __init__(self, processor, connections):
        self.data_processor, self.connection_manager = processor, connections
        self.semaphore, self.said, self.is_cleared = self, [], False

    def release(self):
        self.said.append("released")

    async def abort(self, *told):
        self.said.append(("aborted", *told))

    def check_model_weight_status(self):
        return self.is_cleared

    def check_health(self):
        self.said.append("asked for health")
        return True, ""


def result(api, step, ids=(10,), choice=0, finished=False, **more):
    """A result as the engine sends it."""
    outputs = {
        "index": choice, "send_idx": step, "token_ids": [*ids], "decode_type": 0, "logprob": None,
        "top_logprobs": None, "draft_top_logprobs": None, "logprobs": None, "draft_token_ids": [],
        "text": None, "reasoning_content": None, "reasoning_token_num": 0, "sampling_mask": None,
    }  # fmt: skip
    metrics = {
        "inference_start_time": START, "first_token_time": 0.25, "speculate_metrics": None,
        "engine_recv_latest_token_time": START + 0.25 + step / 7,
    }  # fmt: skip
    made = {
        "request_id": f"{NAMES[api]}_{choice}", "prompt": None, "prompt_token_ids": [],
        "prompt_logprobs": None, "output_type": 3, "outputs": outputs, "metrics": metrics,
        "finished": finished, "error_code": 200, "error_msg": None, "trace_carrier": None,
    }  # fmt: skip
    for name, value in more.items():
        place = next((part for part in (outputs, metrics) if name in part), made)
        place[name] = value
    return made


def answer(api, steps=12, **more):
    """An answer's results: one to three words each."""
    words = [range(10, 11 + step % 3) for step in range(steps)]
    return [result(api, step, ids, finished=step == steps - 1, **more) for step, ids in enumerate(words)]


def stream_of(api, processor, is_laned, **options):
    """A client, and a stream of its handler."""
    module = importlib.import_module(api)
    client = Client(processor, (LanedConnections if is_laned else Connections)())
    protocol = importlib.import_module("fastdeploy.entrypoints.openai.protocol")
    if api == CHAT:
        handler = module.OpenAIServingChat(client)
        request = protocol.ChatCompletionRequest(messages=[], **options)
        generator = handler.chat_completion_stream_generator
        if not is_laned:
            generator = vars(module.OpenAIServingChat)["chat_completion_stream_generator"].__wrapped__
            generator = generator.__get__(handler)
        return client, generator(request, NAMES[api], "m", [1, 2], "x", 50)
    handler = module.OpenAIServingCompletion(client)
    request = protocol.CompletionRequest(prompt="x", **options)
    generator = handler.completion_stream_generator
    if not is_laned:
        generator = vars(module.OpenAIServingCompletion)["completion_stream_generator"].__wrapped__
        generator = generator.__get__(handler)
    return client, generator(
        request=request, num_choices=request.n or 1, request_id=NAMES[api], created_time=7, model_name="m",
        prompt_batched_token_ids=[[1, 2]], prompt_tokens_list=["x"], max_tokens_list=[50],
    )  # fmt: skip


async def turns(count=8):
    for _ in range(count):
        await asyncio.sleep(0)


async def played(api, cls, results, is_laned, between=None, reasoning=None, **options):
    """The chunks of a stream, and what its client was told; `between` is called before each result."""
    processor = cls(reasoning, None)
    for choice in range(options.get("n") or 1):
        processor.model_status_dict[f"{NAMES[api]}_{choice}"] = "think_start"
    client, stream = stream_of(api, processor, is_laned, **options)
    client.stream, chunks = stream, []

    async def read():
        async for chunk in stream:
            chunks.append(chunk)

    reading = asyncio.ensure_future(read())
    await turns()
    for number, one in enumerate(results):
        if between is not None:
            await between(number, client, reading)
        queue = client.connection_manager.request_map.get(NAMES[api])
        queue.put_nowait(one if isinstance(one, NoResults) else [one])
        await turns()
    await asyncio.wait([reading])
    assert not client.connection_manager.request_map
    return chunks, client.said, {name: [*map(str, one)] for name, one in processor.decode_status.items()}


def both(api, cls, make, **options):
    """A stream with the lane and without."""
    told = []
    for is_laned in (False, True):
        with virtual_time.Loop() as loop:
            told.append(loop.run_until_complete(played(api, cls, make(), is_laned, **options)))
    return told


def the_same(api, cls, make, **options):
    theirs, ours = both(api, cls, make, **options)
    assert ours == theirs
    return ours


# ---- The same chunks ---------------------------------------------------------------------------------------


@each("api", APIS)
@each(
    "options",
    [
        {},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"return_token_ids": True},
        {"include_stop_str_in_output": True},
    ],
)
def test_chunks_are_fastdeploys_and_most_are_written_by_the_lane(api, options, laned, processor_class):
    for count in ((9, 10), (10,)):
        laned.clear()
        chunks, said, _ = the_same(api, processor_class, lambda: answer(api), **options)
        assert said == ["released"]
        # Of 12: not the first, whose copy is the proof, nor the last; nor the second where no template was.
        assert len(laned) in count
        assert [chunk for chunk in chunks if chunk in laned] == laned


@pytest.mark.parametrize("api", APIS)
def test_with_a_parser_results_that_are_held_back_are_counted(api, laned, processor_class):
    def thought():
        ids = [[1], [10], [11, 2], [12], [12], [14], [15], [12, 13], [14], [10], [12], [4]]
        return [result(api, step, one, finished=one == [4]) for step, one in enumerate(ids)]

    usage = {"include_usage": True, "continuous_usage_stats": True}
    for options in ({}, {"stream_options": usage}, {"stream_options": usage, "return_token_ids": True}):
        laned.clear()
        the_same(api, processor_class, thought, reasoning=Thinks, **options)
        assert laned


@pytest.mark.parametrize("api", APIS)
def test_several_answers_take_turns(api, laned, processor_class):
    def three():
        draw, left = random.Random(3), [0, 1, 2] * 9
        draw.shuffle(left)
        count = [left.count(i) for i in range(3)]
        for step, choice in enumerate(left):
            count[choice] -= 1
            yield result(api, step, range(10, 11 + step % 3), choice, finished=not count[choice])

    for continuous in (False, True):
        usage = {"include_usage": True, "continuous_usage_stats": continuous}
        the_same(api, processor_class, three, n=3, stream_options=usage)
    assert len(laned) > 24


@pytest.mark.parametrize("api", APIS)
def test_random_answers_with_hand_overs_at_random_places(api):
    module, is_chat = importlib.import_module(api), api == CHAT
    scripts = [canned_answers.random_script(number, is_chat) for number in range(40)]
    assert answers.first_difference(module, scripts) is None


@pytest.mark.parametrize("fault", ["count", "usage", "text", "nothing"])
def test_the_trial_finds_what_is_wrong_after_a_hand_over(fault, monkeypatch):
    """`usage` is in the last chunk only: no byte of another one says it."""
    joined, values = feed.Choice.joined, lane.Lane._values

    def less(choice):
        made = joined(choice)
        made["outputs"]["token_ids"].pop()
        return made

    def shown(stream, *told, **how):
        made = values(stream, *told, **how)
        made[1] += " " * (fault == "text" and "is_shown" not in how)
        return made

    scripts = [canned_answers.random_script(number, True) for number in range(40)]
    if fault in ("count", "usage"):
        monkeypatch.setattr(feed.Choice, "joined", less)
    if fault == "usage":
        scripts = [one for one in scripts if "'continuous_usage_stats': True" not in str(one.options)]
    monkeypatch.setattr(lane.Lane, "_values", shown)
    if fault == "nothing":
        monkeypatch.setattr(lane.Lane, "_look", lambda *told: None)
    found = answers.first_difference(importlib.import_module(CHAT), scripts)
    expected = "ours has written nothing" if fault == "nothing" else "is expected, ours is"
    assert expected in found


# ---- Log-probabilities -------------------------------------------------------------------------------------


@pytest.fixture
def spelling(processor_class, monkeypatch):
    """A data processor that spells tokens; and how often FastDeploy's own code makes log-probabilities."""

    class Spelling(processor_class):
        def process_logprob_response(self, token_ids, **options):
            token = token_ids if type(token_ids) is int else token_ids[0]  # of a prompt it is bare
            if token == 77:
                raise OverflowError("no such token")
            return f"t{token}"

    Spelling.__module__ = "fastdeploy.restated"
    Spelling.asked = []
    for name in ("chat", "completion"):
        stock = getattr(logprobs.Steps, name)
        monkeypatch.setattr(
            logprobs.Steps, name, lambda *told, _stock=stock: Spelling.asked.append(1) or _stock(*told)
        )
    return Spelling


def scored(api, steps=12, odd=None, packed=False, **more):
    """An answer's results with log-probabilities, the sixth with those of `odd`."""
    made = answer(api, steps, **more)
    for step, one in enumerate(made):
        count = len(one["outputs"]["token_ids"])
        ids = [[row, 5, step] for row in range(count)]
        one["outputs"]["top_logprobs"] = [
            ids,
            [[-0.5, -1.5 - row, -2e-7] for row in range(count)],
            [1] * count,
        ]
    if odd is not None:
        made[6]["outputs"]["top_logprobs"] = odd
    return unpack(msgpack.packb(made)) if packed else made


def asked(api):
    return {"logprobs": True, "top_logprobs": 2} if api == CHAT else {"logprobs": 2}


@each("api", APIS)
@each("more", [{}, {"return_token_ids": True}, {"stream_options": {"include_usage": True}}])
@each("packed", [False, True])
def test_log_probabilities_are_put_into_all_chunks(api, more, packed, laned, spelling):
    laned.clear()
    options = {**asked(api), **more, "make": lambda: scored(api, packed=packed)}
    theirs, ours = both(api, spelling, **options)
    assert ours == theirs
    assert len(spelling.asked) == 12  # theirs
    spelling.asked.clear()
    assert len(laned) in (9, 10)


@each("api", APIS)
@each(
    "odd",
    [[[[0]], [[True]], [1]], [[[0]], [["-0.5"]], [1]], [[[77]], [[-0.5]], [1]], [[0], [-0.5], [1]], "abc"],
)
@pytest.mark.falls_back
def test_log_probabilities_that_ours_does_not_know_are_fastdeploys(api, odd, laned, spelling):
    laned.clear()
    the_same(api, spelling, lambda: scored(api, odd=odd), **asked(api))
    assert len(laned) >= 7


@pytest.mark.parametrize("api", APIS)
def test_streams_without_a_lane_have_log_probabilities_of_ours(api, laned, spelling):
    for options in ({"collect_metrics": True}, {"max_streaming_response_tokens": 3}):
        spelling.asked.clear()
        the_same(api, spelling, lambda: scored(api, 3, speculate_metrics=None), **asked(api), **options)
        assert len(spelling.asked) == 3
        with contextlib.closing(asyncio.new_event_loop()):
            _, stream = stream_of(api, spelling(None, None), True, **asked(api), **options)
            assert type(stream) is lane.Spliced
    assert not laned


def feed_of(results, shows_ids=False):
    request = SimpleNamespace(return_token_ids=shows_ids, include_draft_logprobs=True)
    guards = Guard("api chunks"), Guard("api chunks")
    asked = SimpleNamespace(columns=0, prompt_columns=None, scores=lambda top: ChatScores.of(top, 0, None))
    made = feed.Feed("a", request, asked, float_style(), *guards)
    for one in results:
        made._withhold(one)
    return made


def shown(value, draft="null"):
    return f'{{"logprobs":{value},"draft_logprobs":{draft}}}'


def chunk_of(*choices):
    return f'{{"arrival_time":1,"choices":[{",".join(choices)}]}}'


def test_choices_of_one_chunk_get_each_its_own():
    """Results that a parser holds back have none, nor those that are no text; what is odd stays in."""

    def one(score, draft=None, **more):
        tops = [None if value is None else [[[1]], [[value]], [1]] for value in (score, draft)]
        return {"outputs": {"skipped": False, "top_logprobs": tops[0], "draft_top_logprobs": tops[1], **more}}

    def text(score):
        return ChatScores.of([[[1]], [[score]], [1]], 0, None).json(float_style())

    results = [one(-1.0), one(-2.0, skipped=True), one(-3.0, -4.0), one("odd"), one(None), one(-5.0)]
    del results[4]["outputs"]["skipped"]
    made = feed_of(results)
    assert [each["outputs"]["top_logprobs"] is None for each in results] == [1, 1, 1, 0, 1, 1]
    assert made.spliced('{"role":"assistant"}') == '{"role":"assistant"}'
    first = made.spliced(chunk_of(shown("null"), shown("null")))
    assert first == chunk_of(shown(text(-1.0)), shown(text(-3.0), text(-4.0)))
    assert made.spliced(chunk_of(shown('{"own":1}'))) == chunk_of(shown('{"own":1}'))
    assert made.spliced(chunk_of(shown("null"))) == chunk_of(shown(text(-5.0)))
    made = feed_of([one(-1.0, skipped=True)], shows_ids=True)
    assert made.spliced(chunk_of(shown("null"))) == chunk_of(shown(text(-1.0)))
    made = feed_of([one(-1.0, skipped=True), one(-2.0)], shows_ids=True)
    made.shows_skipped = False  # before April 2026
    assert made.spliced(chunk_of(shown("null"))) == chunk_of(shown(text(-2.0)))


@pytest.mark.falls_back
@pytest.mark.parametrize("api", APIS)
def test_a_generator_of_before_april_shows_no_result_without_text(api, monkeypatch):
    """The trial finds it where the two are mixed up: the double's is a newer one."""
    scripts = [one for one in canned_answers.scripts(api == CHAT) if one.name == "skipped, with ids"]
    monkeypatch.setattr(streams, "_SHOWN", "no such text")
    assert "is expected, ours is" in answers.first_difference(importlib.import_module(api), scripts)


@pytest.mark.parametrize("api", APIS)
def test_a_result_without_log_probabilities_key_is_fastdeploys_error(api, laned, spelling):
    def without():
        made = scored(api)
        del made[6]["outputs"]["top_logprobs"]
        return made

    chunks, *_ = the_same(api, spelling, without, **asked(api))
    assert "top_logprobs" in chunks[-2]


@pytest.mark.falls_back
def test_once_the_guard_is_off_choices_of_one_chunk_keep_their_own():
    def one(score):
        return {"outputs": {"skipped": False, "top_logprobs": [[[1]], [[score]], [1]]}}

    made = feed_of([one(-1.0)])
    for _ in range(3):
        made._scores_guard.failed(KeyError("in a test"))
    made._withhold(one(-2.0))
    text = ChatScores.of([[[1]], [[-1.0]], [1]], 0, None).json(float_style())
    assert made.spliced(chunk_of(shown("null"), shown('{"own":1}'))) == chunk_of(
        shown(text), shown('{"own":1}')
    )


@pytest.mark.falls_back
def test_a_chunk_without_a_place_is_an_error():
    result = {
        "outputs": {"skipped": False, "top_logprobs": [[[1]], [[-0.5]], [1]], "draft_top_logprobs": None}
    }
    with pytest.raises(ValueError, match="no place for log-probabilities"):
        feed_of([result]).spliced(chunk_of(shown('{"own":1}')))


@each("api", APIS)
@each("more", [{}, {"collect_metrics": True}])
@each("count", [0, 1])  # the chunk by which a stream becomes steady; its last one
@pytest.mark.falls_back
def test_what_cannot_be_put_into_its_chunk_is_an_error_of_the_stream(
    api, more, count, laned, spelling, monkeypatch
):
    """In a chunk of FastDeploy's without them the client would read that there are none."""
    part, works = feed.Feed._part, [True] * count

    def fails(made, text):
        if works and works.pop():
            return part(made, text)
        raise ValueError("planted")

    the_same(api, spelling, lambda: scored(api), **asked(api), **more)  # from now on there is a template
    monkeypatch.setattr(feed.Feed, "_part", fails)
    theirs, ours = both(api, spelling, lambda: scored(api), **asked(api), **more)
    assert "planted" in ours[0][-2]
    assert (ours[0][:-2], ours[0][-1], ours[1]) == (theirs[0][: len(ours[0]) - 2], theirs[0][-1], theirs[1])


PROMPT = [[1, 2, 1], [7, 3, 5]], [[-0.5, -np.inf, -1e-7], [-0.25, -1.0, np.nan]], [9, 1]


def prompted(api, choices=1, prompt=PROMPT, **more):
    """Results of answers with the log-probabilities of their prompts, in turn."""
    for step in range(8):
        for choice in range(choices):
            arrays = [np.array(one) for one in prompt] if type(prompt) is tuple else prompt
            if step == 0 and type(prompt) is tuple:
                arrays[1] = arrays[1] - choice
            given = {"prompt_logprobs": arrays} if step == 0 else {}
            yield result(api, step, choice=choice, finished=step == 7, **given, **more)


@pytest.fixture
def built(monkeypatch):
    """Of how many candidates FastDeploy's own code makes log-probabilities of prompts."""
    counts, stock = [], logprobs.Steps.prompt

    def prompt(steps, tensors, *told):
        counts.append(np.size(tensors[0]))
        return stock(steps, tensors, *told)

    monkeypatch.setattr(logprobs.Steps, "prompt", prompt)
    return counts


@each("api", APIS)
@each("columns", [2, -1])
@each(
    "more",
    [
        {},
        {"return_token_ids": True},
        {"include_logprobs_decode_token": False},
        {"max_streaming_response_tokens": 3},
        {"echo": True},
    ],
)
@each("choices", [1, 3])
def test_a_prompts_log_probabilities_are_put_into_its_chunk(
    api, columns, more, choices, laned, spelling, built
):
    if api == CHAT and "echo" in more:
        return
    scores = [[[5, 6, 7]], [[-1.0, -2.0, -3.0]], [1]]
    for options, rows in (({}, None), (asked(api), scores)):
        built.clear()
        chunks, *_ = the_same(
            api,
            spelling,
            lambda rows=rows: prompted(api, choices, top_logprobs=rows),
            prompt_logprobs=columns,
            n=choices,
            **options,
            **more,
        )
        of_prompts = [one for one in chunks if '"prompt_logprobs":[null,{"1":{' in one]
        assert len(of_prompts) == choices
        assert sum(built) == 6 * choices  # theirs
        assert ("max_streaming_response_tokens" in more) or laned


@pytest.mark.parametrize("api", APIS)
def test_a_prompt_whose_first_result_is_held_back(api, laned, spelling):
    """In completions it is lost, and it is not another choice's."""

    class Holding(spelling):
        def process_response_dict(self, response_dict, **options):
            made, outputs = super().process_response_dict(response_dict, **options), response_dict["outputs"]
            outputs["skipped"] |= outputs["send_idx"] == outputs["index"] == 0
            return made

    Holding.__module__ = spelling.__module__
    chunks, *_ = the_same(api, Holding, lambda: prompted(api, 2), n=2, prompt_logprobs=1)
    assert sum('"prompt_logprobs":[null,{"1"' in one for one in chunks) == (2 if api == CHAT else 1)


@each("api", APIS)
@each("prompt", [[[[1]], [[-0.5]], [1]], ([[77]], [[-0.5]], [1]), ([[]], [[]], [1])])
@pytest.mark.falls_back
def test_a_prompts_log_probabilities_that_ours_does_not_know_are_fastdeploys(
    api, prompt, laned, spelling, built
):
    built.clear()
    the_same(api, spelling, lambda: prompted(api, prompt=prompt), prompt_logprobs=2)
    assert built[0] == built[1] == np.size(prompt[0])


@each("api", APIS)
@each("where", ["class", "module", "handler"])
def test_a_prompts_log_probabilities_that_somebody_else_makes_are_fastdeploys_and_named(
    api, where, laned, spelling, built, monkeypatch, log
):
    monkeypatch.setattr(judged, "api_log", lambda: logging.getLogger("lane"))
    module = importlib.import_module(api)
    cls = module.OpenAIServingChat if api == CHAT else module.OpenAIServingCompletion
    name, init = "_build_prompt_logprobs", cls.__init__
    for one in (built, log, judged._left):
        one.clear()
    stock = vars(cls)[name]

    def with_its_own(handler, client):
        init(handler, client)
        setattr(handler, name, lambda *told: stock(handler, *told))

    if where == "handler":
        monkeypatch.setattr(cls, "__init__", with_its_own)
    elif where == "module":
        monkeypatch.setattr(module, "clamp_prompt_logprobs", lambda prompt: prompt, raising=False)
    else:
        monkeypatch.setattr(cls, name, lambda *told: stock(*told))
    for _ in range(2):
        the_same(api, spelling, lambda: prompted(api), prompt_logprobs=2)
    assert built == [6] * 4
    (line,) = [one for one in log.messages if "leaves" in one]
    assert {"class": name, "module": "clamp_prompt_logprobs", "handler": "on an object of OpenAIServing"}[
        where
    ] in line


@pytest.mark.parametrize("api", APIS)
def test_log_probabilities_that_somebody_else_makes_are_fastdeploys_and_named(
    api, laned, spelling, monkeypatch, log
):
    monkeypatch.setattr(judged, "api_log", lambda: logging.getLogger("lane"))
    the_same(api, spelling, lambda: scored(api), **asked(api))
    cls = getattr(
        importlib.import_module(api), "OpenAIServingChat" if api == CHAT else "OpenAIServingCompletion"
    )
    name = "_create_chat_logprobs" if api == CHAT else "_create_completion_logprobs"
    stock = vars(cls)[name]
    monkeypatch.setattr(cls, name, lambda *told: stock(*told))
    laned.clear()
    for _ in range(2):
        the_same(api, spelling, lambda: scored(api), **asked(api))
    assert not laned
    (line,) = [one for one in log.messages if "leaves" in one]
    assert f"{name} is replaced by" in line
    the_same(api, spelling, lambda: scored(api))
    assert laned


# ---- What is not plain, and what fails ---------------------------------------------------------------------


@each("api", APIS)
@each(
    "more",
    [
        {"new_key": 1},
        {"error_msg": "Recover"},
        {"speculate_metrics": {"accepted_tokens": 1}},
        {"engine_recv_latest_token_time": 1002},
        {"sampling_mask": [[1]]},
        {"decode_type": 2},
        {"send_idx": 0},
        {"reasoning_token_num": 1.0},
        {"token_ids": []},
        "outputs",
    ],
)
def test_a_result_that_is_not_plain_goes_to_fastdeploys_generator(api, more, laned, processor_class):
    def with_one():
        made = answer(api)
        if more == "outputs":
            made[6]["outputs"]["new_key"] = None
        else:
            made[6] = result(api, 6, **more)
        return made

    the_same(api, processor_class, with_one, stream_options={"include_usage": True})
    laned.clear()
    the_same(api, processor_class, with_one, stream_options={"include_usage": True})
    # A plain chunk of FastDeploy's is the next proof, so one chunk is not the lane's, and else two are not.
    assert len(laned) == (9 if more == {"send_idx": 0} else 8)


@pytest.mark.parametrize("api", APIS)
def test_streams_that_the_lane_leaves_alone(api, laned, processor_class):
    extra = {"metadata" if api == CHAT else "suffix": {"max_streaming_response_tokens": 2}}
    odd = {"metadata" if api == CHAT else "suffix": {"max_streaming_response_tokens": "1"}}
    for options in ({"max_streaming_response_tokens": 3}, {"collect_metrics": True}, extra, odd):
        with contextlib.closing(asyncio.new_event_loop()):
            _, stream = stream_of(api, processor_class(None, None), True, **options)
            assert not isinstance(stream, lane.Lane)
    assert not laned


def fails(*told, **how):
    raise KeyError("in a test")


@pytest.mark.falls_back
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "place",
    [(lane.Lane, "_choice_of"), (lane.Lane, "_values"), (lane.Lane, "_is_plain"), (feed.Feed, "_begin")],
)
def test_where_ours_raises_fastdeploys_generator_writes_the_chunk(
    api, place, laned, processor_class, monkeypatch
):
    stock = getattr(*place)
    for planted in (fails, TwoOfThree(stock)):
        monkeypatch.setattr(*place, lambda *told, _planted=planted, **how: _planted(*told, **how))
        the_same(api, processor_class, lambda: answer(api), stream_options={"include_usage": True})
    monkeypatch.setattr(*place, stock)


@pytest.mark.falls_back
@pytest.mark.parametrize("is_looking", [False, True])
def test_after_three_failures_in_a_row_all_streams_are_fastdeploys(
    is_looking, laned, processor_class, monkeypatch
):
    values = lane.Lane._values

    def planted(*told, **how):
        return fails() if is_looking or not how else values(*told, **how)

    with monkeypatch.context() as patch:
        patch.setattr(lane.Lane, "_values", planted)
        for _ in range(4):
            the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert not laned
    the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert not laned  # and it stays so
    _, stream = stream_of(CHAT, processor_class(None, None), True)
    assert not isinstance(stream, lane.Lane)
    the_same(COMPLETION, processor_class, lambda: answer(COMPLETION))
    assert laned  # whose guard is another one


@pytest.mark.falls_back
def test_failures_that_are_not_in_a_row_switch_it_not_off(laned, processor_class, monkeypatch):
    values, planted = lane.Lane._values, TwoOfThree(lane.Lane._values)
    monkeypatch.setattr(
        lane.Lane, "_values", lambda *told, **how: values(*told, **how) if how else planted(*told)
    )
    for _ in range(3):
        the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert planted.calls > 9
    assert laned


def test_a_stream_in_the_lane_leaves_it_once_the_guard_is_off(laned, processor_class):
    async def switch_off(number, client, reading):
        if number == 6 and isinstance(client.stream, lane.Lane):
            client.stream._guard.is_on = False

    the_same(CHAT, processor_class, lambda: answer(CHAT), between=switch_off)
    assert 0 < len(laned) < 6


def test_a_stream_whose_chunks_are_not_as_expected_stays_fastdeploys(laned, processor_class, monkeypatch):
    values = lane.Lane._values

    def other(stream, outputs, choice, arrival, is_shown=False):
        return [choice.index, *values(stream, outputs, choice, arrival, is_shown)[1:3], 0.5, None, None]

    monkeypatch.setattr(lane.Lane, "_values", other)
    the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert not laned
    assert [one for one in noted() if "not as expected" in one]


def test_a_stream_with_a_part_that_the_lane_does_not_know_stays_fastdeploys(
    laned, processor_class, monkeypatch
):
    module = importlib.import_module(CHAT)
    stock = module.event

    def event(model):
        chunk = stock(model)
        return f"{chunk[:-2]}: {zlib.crc32(chunk.encode())}\n\n"

    monkeypatch.setattr(module, "event", event)
    the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert not laned
    assert [one for one in noted() if "not as expected" in one]


@pytest.mark.parametrize("api", APIS)
def test_an_error_of_the_data_processor_reaches_the_client(api, laned, processor_class, monkeypatch):
    def refused():
        made = answer(api)
        made[6]["outputs"]["token_ids"] = [999]
        return made

    chunks, *_ = the_same(api, processor_class, refused)
    assert laned
    assert "999" in chunks[-2]


@pytest.mark.parametrize("api", APIS)
def test_errors_in_the_middle_of_a_stream(api, laned, processor_class):
    def failing():
        made = answer(api)
        made[6] |= {"error_code": 500, "error_msg": "it failed", "outputs": None}
        return made

    def silent():
        made = answer(api)
        made[6] = result(api, 6, error_code=500, error_msg="")
        return made

    def dropped():  # by the watchdog
        made = answer(api)
        made[6:] = [NoResults(OSError("the engine is gone"))]
        return made

    async def clear(number, client, reading):
        client.is_cleared = number >= 6

    for make, between, text in (
        (failing, None, "it failed"),
        (silent, None, '{"error": ""}'),
        (dropped, None, "the engine is gone"),
        (lambda: answer(api)[:8], clear, "the weights are cleared"),
    ):
        laned.clear()
        chunks, *_ = the_same(api, processor_class, make, between=between, return_token_ids=True)
        assert text in chunks[-2]
        assert laned


def test_a_lone_surrogate_is_fastdeploys(laned, processor_class, monkeypatch):
    class Odd(processor_class):
        def __init__(self, *told):
            super().__init__(*told)
            self.tokenizer.texts[99] = "\ud800"

    Odd.__module__ = "fastdeploy.restated"

    def odd():
        made = answer(CHAT)
        made[6]["outputs"]["token_ids"] = [99]
        return made

    chunks, *_ = the_same(CHAT, Odd, odd)
    assert "surrogates" in chunks[-2]


# ---- Time, cancellation, clean-up --------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("shows_ids", [False, True])
def test_silence_is_fastdeploys(api, shows_ids, laned, processor_class):
    """Its generator asks for the engine's health after its own time, once more for each such time."""

    async def pause(number, client, reading):
        if number in (6, 9):
            await asyncio.sleep(35)

    usage = {"include_usage": True}
    _, said, _ = the_same(
        api,
        processor_class,
        lambda: answer(api),
        between=pause,
        stream_options=usage,
        return_token_ids=shows_ids,
    )
    assert said.count("asked for health") == 6
    assert len(laned) > 4


@pytest.mark.parametrize("api", APIS)
def test_a_stream_that_is_cancelled_while_the_lane_waits(api, laned, processor_class):
    async def leave(number, client, reading):
        if number == 6:
            reading.cancel()
            await turns()
            client.connection_manager.request_map.setdefault(NAMES[api], SimpleNamespace(put_nowait=id))
        if number == 11:
            del client.connection_manager.request_map[NAMES[api]]

    chunks, said, _ = the_same(api, processor_class, lambda: answer(api), between=leave)
    assert said == [("aborted", NAMES[api], 1), "released"]
    assert chunks[-1] == "data: [DONE]\n\n"
    assert laned


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("taken", [2, 7], ids=["a chunk of FastDeploy's", "a chunk of the lane's"])
def test_a_client_that_leaves_in_the_middle_of_a_send_is_cleaned_up_without_the_collector(
    api, taken, laned, processor_class
):
    async def left(is_laned):
        client, stream = stream_of(api, processor_class(None, None), is_laned)

        async def send(stream):
            async for _ in stream:
                seen.append(1)
                if len(seen) == taken:
                    await asyncio.Event().wait()

        seen, sending = [], asyncio.ensure_future(send(stream))
        gone = weakref.ref(stream)
        del stream
        await turns()
        for one in answer(api)[:-1]:
            client.connection_manager.request_map[NAMES[api]].put_nowait([one])
        await turns(40)
        assert len(seen) == taken
        sending.cancel()
        await turns()
        del sending
        await turns()
        return client.said, dict(client.connection_manager.request_map), gone()

    gc.collect()
    gc.disable()
    try:
        for is_laned in (False, True):
            with virtual_time.Loop() as loop:
                loop.set_exception_handler(lambda *told: None)  # its generator ignores GeneratorExit
                assert loop.run_until_complete(left(is_laned)) == (["released"], {}, None)
    finally:
        gc.enable()
    assert bool(laned) is (taken > 2)


@pytest.mark.parametrize("ends", ["aclose", "athrow"])
def test_the_ends_of_a_generator(ends, laned, processor_class):
    async def ended():
        client, stream = stream_of(CHAT, processor_class(None, None), True)
        for one in answer(CHAT):
            client.connection_manager.request_map.get(NAMES[CHAT]).put_nowait([one])
        seen = [await stream.__anext__() for _ in range(6)]
        if ends == "athrow":
            seen.append(await stream.athrow(asyncio.CancelledError()))
            with pytest.raises(StopAsyncIteration):
                await stream.asend(None)
        else:
            with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
                await stream.aclose()
        return client.said, seen[-1]

    with virtual_time.Loop() as loop:
        said, last = loop.run_until_complete(ended())
    assert said[-1] == "released"
    assert (("aborted", NAMES[CHAT], 1) in said, last == "data: [DONE]\n\n") == (ends == "athrow",) * 2
    assert laned


# ---- Which streams -----------------------------------------------------------------------------------------


def test_a_function_that_is_wrapped_later_is_named_and_new_streams_are_fastdeploys(
    laned, processor_class, monkeypatch, log
):
    monkeypatch.setattr(judged, "api_log", lambda: logging.getLogger("lane"))
    the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert laned
    processors = importlib.import_module("fastdeploy.entrypoints.openai.response_processors")
    stock = processors.ChatResponseProcessor.process_response_chat

    async def traced(*told, **how):
        async for one in stock(*told, **how):
            yield one

    laned.clear()
    monkeypatch.setattr(processors.ChatResponseProcessor, "process_response_chat", traced)
    for _ in range(2):
        the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert not laned
    (line,) = [one for one in log.messages if "leaves" in one]
    assert "leaves api chunks to FastDeploy" in line
    assert "process_response_chat is replaced by traced" in line


def test_a_data_processor_that_is_not_known_is_named(laned, log, monkeypatch):
    monkeypatch.setattr(judged, "api_log", lambda: logging.getLogger("lane"))
    with contextlib.closing(asyncio.new_event_loop()):
        _, stream = stream_of(CHAT, Processor(None, None), True)
        assert not isinstance(stream, lane.Lane)
    assert [one for one in log.messages if "leaves" in one] == [
        "fd_postproc: API side leaves api chunks to FastDeploy: the data processor Processor is not known"
    ]
    with contextlib.closing(asyncio.new_event_loop()):
        _, stream = stream_of(CHAT, object(), True)  # as a test of FastDeploy's has it
        assert not isinstance(stream, lane.Lane)


def test_a_method_that_is_set_on_the_data_processor_is_called(laned, processor_class):
    the_same(CHAT, processor_class, lambda: answer(CHAT))  # its class is known
    processor = processor_class(None, None)
    processor.process_response_dict = processor.process_response_dict
    with contextlib.closing(asyncio.new_event_loop()):
        _, stream = stream_of(CHAT, processor, True)
        assert not isinstance(stream, lane.Lane)


def test_a_generator_that_somebody_has_wrapped_is_fastdeploys_and_named():
    module = importlib.import_module(CHAT)
    stock = module.OpenAIServingChat.chat_completion_stream_generator

    def traced(*told):
        return stock(*told)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.OpenAIServingChat, "chat_completion_stream_generator", traced)
        reason = gate.put_in(seams.SEAMS["api chunks"], module)
    assert "chat_completion_stream_generator is replaced by traced" in reason


def test_the_status_of_the_weights_is_read_where_the_method_is_fastdeploys():
    class EngineClient:
        def __init__(self, value):
            self.model_weights_status_signal, self.asked = SimpleNamespace(value=value), 0

        def check_model_weight_status(self):
            self.asked += 1
            return self.model_weights_status_signal.value[0] < 0

    for value, is_read in (
        (np.zeros(1, np.int32), True), (np.zeros(3, np.int64), True), (np.zeros(1), False), ([0], False)
    ):  # fmt: skip
        client = EngineClient(value)
        is_cleared = lane.weights_of(client)
        for value[0] in (0, -1, 2, -3, 1):
            assert bool(is_cleared()) is bool(value[0] < 0)
        assert (client.asked == 0) is is_read
    client = EngineClient(np.zeros(1, np.int32))
    is_cleared = lane.weights_of(client)
    client.model_weights_status_signal.value = [-1]
    assert is_cleared()
    client.check_model_weight_status = lambda: "a wrapper's"
    assert lane.weights_of(client)() == "a wrapper's"


def test_a_template_needs_its_values_in_the_chunk():
    style, chunk = float_style(), 'data: {"a":"x \\"b\\":1","b":1,"c":null,"d":[1,2],"e":0.5}\n\n'
    keys, values = ["b", "a", "c", "d", "e"], [1, 'x "b":1', None, [1, 2], 0.5]
    template = Template(chunk, keys, values, style)
    assert template.text(values) == chunk
    other = template.text([2, "é\n", "", [], -0.0])
    assert other == 'data: {"a":"é\\n","b":2,"c":"","d":[],"e":-0.0}\n\n'
    begun = template.headed('data: {"head":"other","a":"from here on"')
    assert begun.text(values) == f'data: {{"head":"other",{chunk[7:]}'
    with pytest.raises(ValueError, match="not found"):
        template.headed('data: {"b":1}')
    with pytest.raises(ValueError, match="not found"):
        Template(chunk, ["b"], [3], style)
    with pytest.raises(ValueError, match="zip"):
        Template(chunk, ["b", "c"], [1], style)

"""The API side on one data processor for all models (#7747) and with an output fallback (#7942)."""

import asyncio
import importlib
import random
import re
import sys
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import entry, loading, parsers
from fd_postproc.fastdeploy.api.chunks._chunks import forget_totals, totals
from fd_postproc.fastdeploy.api.chunks.building_blocks import CHAT
from tests.lib.known import remember
from tests.lib.quiet import imported
from tests.lib.restated_parsers import WORDS, Calls, Thinks, Tokenizer
from tests.lib.rows import each

OPENAI = "fastdeploy.entrypoints.openai"
NAME = "fastdeploy.input.processor"


@pytest.fixture
def modules(monkeypatch):
    """FastDeploy's module twice: as it is, and imported with the plug-in registered."""
    imported("fastdeploy.output.fallback")
    remember(monkeypatch, "api parsers", Thinks, Calls)
    monkeypatch.setattr(loading, "_finder", loading._Finder())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    stock = importlib.import_module(NAME)
    monkeypatch.delitem(sys.modules, NAME)
    forget_totals()
    entry.register()
    yield SimpleNamespace(stock=stock, ours=importlib.import_module(NAME))
    sys.modules.pop(NAME, None)


def processor(module, fallback=None, **options):
    parts = {"reasoning_parser_obj": Thinks, "tool_parser_obj": Calls, **options}
    return module.Processor(Tokenizer(), output_fallback_manager=fallback, **parts)


def strategies(*made):
    fallback = importlib.import_module("fastdeploy.output.fallback")
    for one in made:
        fallback.OutputFallbackManager.register(one.name, one)
    return fallback.OutputFallbackManager([one.name for one in made])


def strategy(name, **methods):
    fallback = importlib.import_module("fastdeploy.output.fallback")
    return type(name, (fallback.OutputFallbackStrategy,), {"name": name, **methods})


def decision(action, text=""):
    return importlib.import_module("fastdeploy.output.fallback").StreamFallbackDecision(action, text)


def shouts():
    """Every text is another one."""
    return strategy(
        "shouts",
        should_apply=lambda self, text, context: True,
        apply=lambda self, text, context: text.upper(),
    )


def holds():
    """Newlines come with what follows."""
    return strategy(
        "holds",
        on_delta=lambda self, text, context, state: decision(
            "hold" if text.endswith("\n") and not context.output.get("last") else "send", text
        ),
    )


def truncates():
    """The third delta is the last one."""

    def on_delta(self, text, context, state):
        state["seen"] = state.get("seen", 0) + 1
        return decision("truncate" if state["seen"] > 2 else "send", text)

    return strategy("truncates", on_delta=on_delta)


def play(one, deltas, stream, name):
    one.model_status_dict[name] = "think_start"
    said = []
    for number, ids in enumerate(deltas):
        result = {"request_id": name, "finished": number == len(deltas) - 1, "outputs": {"token_ids": [*ids]}}
        said.append(one.process_response_dict(result, stream=stream)["outputs"])
    return said


def answers(count):
    draw = random.Random(7942)
    ids = [*range(1, 5), *range(10, 10 + len(WORDS)), 10, 10, 10]
    for _ in range(count):
        yield [draw.choices(ids, k=draw.choice((0, 1, 1, 2, 4))) for _ in range(draw.randint(1, 30))]


@each("stream", [True, False])
@each("mm_processor", [None, "one"])
def test_the_api_side_is_active_on_the_unified_processor(modules, stream, mm_processor):
    own, theirs = (processor(one, mm_processor=mm_processor) for one in (modules.ours, modules.stock))
    assert parsers.is_quick(own)
    assert own.ids2tokens.__func__.advance
    for number, deltas in enumerate(answers(60)):
        assert play(own, deltas, stream, str(number)) == play(theirs, deltas, stream, str(number))
    assert own.decode_status == {}
    assert not [told for told in totals()[1] if "parsers" in told]


@each("stream", [True, False])
@each("make", [shouts, holds, truncates])
def test_a_fallback_that_is_on_reads_everything_and_the_reason_is_told(modules, stream, make):
    own, theirs = (processor(one, strategies(make())) for one in (modules.ours, modules.stock))
    assert not parsers.is_quick(own)
    for number, deltas in enumerate(answers(60)):
        assert play(own, deltas, stream, str(number)) == play(theirs, deltas, stream, str(number))
    reasons = [told for told in totals()[1] if "parsers are given" in told]
    assert reasons == ["parsers are given the whole answer at each chunk: an output fallback reads it, too"]
    assert own.ids2tokens.__func__.advance  # texts of new tokens are ours all the same


def test_strategies_of_plug_ins_are_loaded(modules, monkeypatch):
    utils = importlib.import_module("fastdeploy.plugins.utils")
    plugins = importlib.import_module("fastdeploy.plugins.output_fallback")
    loaded = []
    point = SimpleNamespace(name="mine", value="mine:register", load=lambda: lambda: loaded.append(1))
    monkeypatch.setattr(
        utils, "entry_points", lambda group: [point] if group == plugins.PLUGINS_GROUP else []
    )
    monkeypatch.setattr(plugins, "plugins_loaded", False)
    for _ in range(2):
        plugins.load_output_fallback_plugins()
    assert loaded == [1]


# ---- A fallback that ends a choice -----------------------------------------------------------------------


class Connections:
    """Results of two choices, three deltas more than are wanted."""

    def __init__(self, name):
        self.name = name

    async def get_connection(self, request_id, choices):
        queue = asyncio.Queue()
        for number in range(6):
            for choice in range(choices):
                queue.put_nowait([self.result(choice, number)])
        return None, queue

    def result(self, choice, number):
        outputs = {
            **dict.fromkeys(OUTPUTS),
            "index": choice,
            "token_ids": [10 + number],
            "reasoning_token_num": 0,
        }
        return {
            "request_id": f"{self.name}_{choice}", "finished": number == 5, "outputs": outputs,
            "metrics": dict.fromkeys(TIMES, 1.0), "error_code": 200, "error_msg": None,
        }  # fmt: skip

    async def cleanup_request(self, request_id):
        pass


OUTPUTS = ("top_logprobs", "draft_top_logprobs", "sampling_mask", "tool_calls", "text", "reasoning_content")
TIMES = ("first_token_time", "inference_start_time", "engine_recv_latest_token_time", "request_start_time")


def chunks_of(module, one):
    """The events of a request with two choices, and whom the handler aborts."""
    aborted = []

    async def abort(name, *more):
        aborted.append(name)

    client = SimpleNamespace(
        data_processor=one, connection_manager=Connections("chatcmpl-a"), abort=abort, ori_vocab_size=9,
        check_model_weight_status=lambda: False, semaphore=SimpleNamespace(release=lambda: None),
    )  # fmt: skip
    handler = module.OpenAIServingChat(client)
    request = importlib.import_module(f"{OPENAI}.protocol").ChatCompletionRequest(messages=[], n=2)

    async def read():
        made = handler.chat_completion_stream_generator(request, "chatcmpl-a", "m", [1], "x", 99)
        return [re.sub('"created":[0-9]+', "", chunk) async for chunk in made]

    for choice in range(2):
        one.model_status_dict[f"chatcmpl-a_{choice}"] = "think_start"
    return asyncio.run(read()), aborted


def test_a_choice_that_a_fallback_ends_is_written_the_same(modules, monkeypatch):
    written = []
    for blocks in (modules.stock, modules.ours):
        monkeypatch.delitem(sys.modules, CHAT, raising=False)
        if blocks is modules.stock:
            monkeypatch.setattr(loading, "_finder", loading._Finder())
            monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if "loading" not in str(one)])
        else:
            entry.register()
        module = importlib.import_module(CHAT)
        assert (module.ChatMessage is protocol().ChatMessage) is (blocks is modules.stock)
        written.append(chunks_of(module, processor(blocks, strategies(truncates()))))
    monkeypatch.delitem(sys.modules, CHAT, raising=False)
    assert written[0] == written[1]
    events, aborted = written[0]
    assert sum('"finish_reason":"repeat_truncate"' in event for event in events) == 2
    assert sorted(aborted) == ["chatcmpl-a_0", "chatcmpl-a_1"]


def protocol():
    return importlib.import_module(f"{OPENAI}.protocol")

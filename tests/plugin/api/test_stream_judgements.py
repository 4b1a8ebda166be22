"""Which streams take the lane, and of which log-probabilities are ours."""

import asyncio
import contextlib
import functools
import importlib
import logging

from fd_postproc.fastdeploy.api import judged, lane
from fd_postproc.fastdeploy.api.activation import CHAT
from tests.lib.restated_parsers import Processor
from tests.lib.rows import each

from .laned import (
    APIS,
    answer,
    asked,
    prompted,
    scored,
    stream_of,
    the_same,
)


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


@each("api", APIS)
@each("where", ["answer", "class", "module", "handler"])
def test_log_probabilities_that_somebody_else_makes_are_fastdeploys_and_named(
    api, where, laned, spelling, built, monkeypatch, log
):
    """Of an answer and, in its class, its module or its handler, of a prompt."""
    monkeypatch.setattr(judged, "api_log", lambda: logging.getLogger("lane"))
    module, is_chat = importlib.import_module(api), api == CHAT
    cls = module.OpenAIServingChat if is_chat else module.OpenAIServingCompletion
    name, init = "_build_prompt_logprobs", cls.__init__
    make, options = functools.partial(prompted, api), {"prompt_logprobs": 2}
    if where == "answer":
        name = "_create_chat_logprobs" if is_chat else "_create_completion_logprobs"
        make, options = functools.partial(scored, api), asked(api)
        the_same(api, spelling, make, **options)
    for one in (built, log, judged._left, laned):
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
        the_same(api, spelling, make, **options)
    assert built == ([] if where == "answer" else [6] * 4)
    assert not laned
    (line,) = [one for one in log.messages if "leaves" in one]
    named = {"module": "clamp_prompt_logprobs is replaced by", "handler": "on an object of OpenAIServing"}
    assert named.get(where, f"{name} is replaced by") in line
    the_same(api, spelling, lambda: answer(api))
    assert laned

"""A data processor's own methods, on views of it: the same outputs, the same state."""

import gc
import importlib
import random
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import entry
from fd_postproc.fastdeploy.api.text import detokenising, parsers, views, ways
from fd_postproc.fastdeploy.api.text.answer_text import AnswerText
from fd_postproc.fastdeploy.api.text.answers import answers_of
from fd_postproc.fastdeploy.api.text.excerpt import Excerpt
from fd_postproc.fastdeploy.events.counters import forget, noted
from fd_postproc.fastdeploy.gate import loading
from fd_postproc.fastdeploy.gate.seams import API_PARTS, SEAMS
from tests.lib import restated_parsers
from tests.lib.fakes import TwoOfThree
from tests.lib.known import remember
from tests.lib.quiet import imported
from tests.lib.restated_parsers import (
    Calls,
    DeltaMessage,
    Processor,
    Thinks,
    Tokenizer,
    install,
    of_fastdeploy,
    random_answer,
    result,
)  # fmt: skip
from tests.lib.rows import each

NOT_QUICK = "parsers are given the whole answer at each chunk: "


@pytest.fixture(autouse=True)
def no_notes(monkeypatch):
    remember(monkeypatch, "api parsers", Thinks, Calls, OtherMark, Helped)
    forget()


@pytest.fixture
def ours():
    cls, undo = install()
    yield cls
    for one in reversed(undo):
        one()
    for name in ("ids2tokens", "process_response_dict_streaming", "process_response_dict_normal"):
        assert vars(cls)[name] is vars(Processor)[name]


def is_plain(processor):
    return views.views_of(processor).plain is not None


def is_quick(processor):
    return views.views_of(processor).chunk is not processor


def reasons():
    return [told for told in noted() if not told.startswith("texts of new tokens")]


def play(*arguments):
    return [*restated_parsers.play(*arguments)]


def played_the_same(own, theirs, stream, answers=40):
    """Random answers are on both sides; none is kept."""
    draw = random.Random(4)
    for number in range(answers):
        given = random_answer(draw), stream, str(number), draw.choice(["think_start", "think_end"])
        assert play(own, *given) == play(theirs, *given)
    assert own.decode_status == {}


@each("stream", [True, False])
@each("reasoning, tools", [(Thinks, Calls), (Thinks, None), (None, Calls), (None, None)])
def test_random_answers(ours, reasoning, tools, stream):
    own, theirs = ours(reasoning, tools), Processor(reasoning, tools)
    played_the_same(own, theirs, stream)
    assert reasons() == []
    assert own.tool_parser_dict.keys() == theirs.tool_parser_dict.keys()


UNIFIED = "fastdeploy.input.processor"


@each("stream", [True, False])
def test_the_data_processor_that_fastdeploy_has_for_all_models(stream, monkeypatch):
    """As of #7747: its module is imported with the plug-in registered."""
    imported("fastdeploy")
    monkeypatch.setattr(loading, "_finder", loading._Finder())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for seam in (SEAMS["api chunks"], *API_PARTS.values()):
        for name in seam.modules:  # what is loaded would stay ours
            monkeypatch.delitem(sys.modules, name, raising=False)
    made = []
    for prepare in (len, lambda _: entry.register()):
        monkeypatch.delitem(sys.modules, UNIFIED, raising=False)
        prepare(made)
        made.append(importlib.import_module(UNIFIED).Processor())
    theirs, own = made
    assert is_quick(own)
    assert answers_of(own.ids2tokens.__func__)
    played_the_same(own, theirs, stream, 20)
    assert reasons() == []


class ChatCompletionRequest(SimpleNamespace):
    """FastDeploy's, by its name."""


ChatCompletionRequest.__module__ = parsers.PROTOCOL


class Derived(ChatCompletionRequest):
    pass


OfAnother = type("ChatCompletionRequest", (SimpleNamespace,), {})


@each(
    "request_, is_counted",
    [
        (ChatCompletionRequest(stream=True, stream_options=None), False),
        (ChatCompletionRequest(stream=True, stream_options={"include_usage": True}), True),
        (ChatCompletionRequest(stream=True), True),
        (ChatCompletionRequest(stream=False, stream_options=None), True),
        (Derived(stream=True, stream_options=None), True),
        (OfAnother(stream=True, stream_options=None), True),
        (None, True),
    ],
)
def test_reasoning_tokens_are_counted_where_a_client_is_told(ours, request_, is_counted):
    processors = ours(), Processor()
    for ids in ([10], [11, 13], [10, 2, 11], [3], [16], [17], [18], [4], [12]):
        told = []
        for processor in processors:
            processor.model_status_dict["a"] = "think_start"
            outputs = processor.process_response_dict_streaming(result(ids), request=request_)["outputs"]
            told.append([outputs.pop("reasoning_token_num", None), outputs])
        assert told[0][1] == told[1][1]
        assert told[0][0] == (told[1][0] if is_counted else 0 if told[1][0] is not None else None)


def test_what_a_known_parser_is_given_is_short_and_real(ours, monkeypatch):
    given = []
    processor = ours()
    play(processor, [[10]])
    stock = Thinks.extract_reasoning_content_streaming
    monkeypatch.setattr(
        Thinks,
        "extract_reasoning_content_streaming",
        lambda self, *arguments: given.append(arguments) or stock(self, *arguments),
    )
    processor.model_status_dict["a"] = "think_start"
    for _ in range(2500):
        processor.process_response_dict_streaming(result([10]))
    assert {type(one) for arguments in given for one in arguments[:3]} == {str}
    assert {type(one) for arguments in given for one in arguments[3:6]} == {list}
    assert max(len(arguments[1]) for arguments in given) < 1200
    assert max(len(arguments[4]) for arguments in given) < 4


class Foreign(Thinks):
    def extract_reasoning_content_streaming(self, *arguments):
        return DeltaMessage(content=arguments[1])


@of_fastdeploy
class LooksAtMore(Thinks):
    def extract_reasoning_content_streaming(self, *arguments):
        return DeltaMessage(content=str(arguments[1].upper()))


@of_fastdeploy
class Helped(Thinks):
    def extract_reasoning_content_streaming(self, *arguments):
        return self.helped(*arguments)

    def helped(self, *arguments):
        return Thinks.extract_reasoning_content_streaming(self, *arguments)


@of_fastdeploy
class HelpedOtherwise(Helped):
    def helped(self, *arguments):
        return DeltaMessage(content=str(arguments[1].upper()))


@of_fastdeploy
class OtherMark(Thinks):
    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self.think_end_token = "Answer:"


@each(
    "reasoning, tools, reason",
    [
        (Foreign, None, "Foreign is none of FastDeploy's own parsers"),
        (LooksAtMore, Calls, "LooksAtMore.extract_reasoning_content_streaming has new code in line"),
        (HelpedOtherwise, None, "HelpedOtherwise.helped has new code in line"),
        (OtherMark, None, "OtherMark has a mark of another kind: 'Answer:'"),
    ],
)
@each("stream", [True, False])
def test_a_parser_that_is_not_known_is_given_everything(ours, reasoning, tools, reason, stream):
    own, theirs = ours(reasoning, tools), Processor(reasoning, tools)
    deltas = [[10, 11], [2], [14], [3], [16], [17, 18], [4], [11, 1]]
    assert play(own, deltas, stream) == play(theirs, deltas, stream)
    assert not is_quick(own)
    assert any(told.startswith(NOT_QUICK) and reason in told for told in noted()), noted()


def test_parsers_are_tried_before_the_first_answer(ours, monkeypatch):
    """In a process that serves; another may never have one."""
    monkeypatch.setattr(detokenising, "is_serving", lambda: True)
    own = ours()
    monkeypatch.setattr(views, "marks_of", None)
    assert is_quick(own)
    assert play(own, [[10], [11]]) == play(Processor(), [[10], [11]])


def set_thinks(processor):
    processor.reasoning_parser = Thinks(processor.tokenizer)


def set_foreign(processor):
    processor.reasoning_parser = Foreign(processor.tokenizer)


def set_method(processor):
    processor.reasoning_parser.extract_reasoning_content_streaming = lambda *arguments: DeltaMessage(
        content=arguments[1]
    )


class Another(Tokenizer):
    def decode_token(self, ids, prefix, read):
        return super().decode_token(ids, prefix, read)[0].upper(), read, len(ids)


def set_tokenizer(processor):
    processor.tokenizer = Another()


def wrap_ids2tokens(processor):
    stock = processor.ids2tokens
    processor.ids2tokens = lambda ids, name: (stock(ids, name)[0] + "!", [], "")


def wrap_streamed(processor):
    stock = processor.process_response_dict_streaming

    def streamed(response_dict, **kwargs):
        told = stock(response_dict, **kwargs)
        told["outputs"]["text"] += "!"
        return told

    processor.process_response_dict_streaming = streamed


def set_fallback(processor):
    processor.output_fallback_manager = object()


def direct(tokenizer):
    return ways.Ways(new_text=lambda *given: tokenizer.decode_token(*given[:3]))


PLAIN, PARSED = (None, None), (Thinks, Calls)
STAY_PLAIN = (set_tokenizer, wrap_streamed)


@each(
    "pair, changes",
    [
        (PARSED, {4: set_foreign, 7: set_thinks}),
        *((PARSED, {at: change}) for at in (0, 4) for change in (set_method, wrap_ids2tokens)),
        *((PLAIN, {3: change}) for change in (set_thinks, set_tokenizer, wrap_ids2tokens, wrap_streamed)),
        *((pair, {3: set_fallback}) for pair in (PLAIN, PARSED)),
    ],
)
def test_what_changes_in_the_middle_of_an_answer_counts_at_once(pair, changes, ours, monkeypatch):
    monkeypatch.setattr(ways, "ways_of", direct)
    sides = [cls(*pair) for cls in (ours, Processor)]
    assert (is_plain(sides[0]), is_quick(sides[0])) == (pair == PLAIN, True)
    for number, ids in enumerate([[10], [11, 2], [12], [10], [3], [16], [17], [18], [4], [10]]):
        told = []
        for processor in sides:
            processor.model_status_dict["a"] = "think_start"
            if number in changes:
                changes[number](processor)
            told.append(processor.process_response_dict_streaming(result(ids))["outputs"])
        assert told[0] == told[1], number
        assert sides[0].decode_status == sides[1].decode_status
    *_, last = changes.values()
    assert is_plain(sides[0]) is (pair == PLAIN and last in STAY_PLAIN)
    assert is_quick(sides[0]) is (last in (set_thinks, *STAY_PLAIN))


def test_others_who_read_the_state_find_the_text(ours):
    """FastDeploy's clear_request_status joins it, its log prints it, its engine asks for the next text."""
    own = ours()
    own.model_status_dict["a"] = "think_start"
    for ids in ([10], [11]):
        own.process_response_dict_streaming(result(ids))
    status = own.decode_status["a"]
    assert type(status[3]) is AnswerText
    assert "".join(status[3]) == " thea"
    assert f"{status}" == "[1, 2, [10, 11], ' thea']"
    assert own.ids2tokens([10], "a") == (" the", [10, 11, 10], " thea")
    assert own.decode_status["a"] == [2, 3, [10, 11, 10], " thea the"]
    assert type(own.decode_status["a"][3]) is str


def test_the_other_tokenizer_of_the_environment_stays(ours, monkeypatch):
    monkeypatch.setattr(restated_parsers.envs, "FD_USE_HF_TOKENIZER", True)
    own = ours(None, None)
    outputs = own.process_response_dict_streaming(result([10]))["outputs"]
    assert outputs["text"] == "hf"
    assert own.decode_status == {}


def test_ids_that_are_no_list_are_fastdeploys(ours):
    own, theirs = ours(None, None), Processor(None, None)
    for ids in ([10], (11,), [12]):
        for processor in (own, theirs):
            processor.ids2tokens(ids, "a")
            response = {"finished": False, "request_id": "b", "outputs": {"token_ids": ids}}
            processor.process_response_dict_normal(response)
        assert own.decode_status == theirs.decode_status
        assert {type(status[3]) for status in own.decode_status.values()} <= {str, AnswerText}


@each("stream", [True, False])
def test_an_answer_takes_hardly_more_memory_than_fastdeploys(ours, stream):
    """At most 24 bytes a token."""
    draw = random.Random(24)
    results = [[draw.randrange(10, 14)] for _ in range(1_000)]
    taken = []
    for processor in (Processor(), ours()):
        play(processor, [[10], [11]], stream)
        method = (
            processor.process_response_dict_streaming if stream else processor.process_response_dict_normal
        )
        processor.model_status_dict["a"] = "think_start"
        gc.collect()
        tracemalloc.start()
        for ids in results:
            method(result(ids), request=None)
        gc.collect()
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(processor.decode_status["a"][2]) == len(results)
    stock, own = taken
    assert own - stock < 24 * len(results)


@each("where", ["views_of", "add_ids", "count"])
@each("stream", [True, False])
@pytest.mark.falls_back
def test_a_failure_of_ours_is_fastdeploys_method(where, stream, monkeypatch):
    """The client gets the same, from the first failure on and for good."""
    theirs, own = Processor(Thinks, Calls), install()[0](Thinks, Calls)

    def fails(*_, **__):
        raise KeyError("in a test")

    if where == "views_of":
        monkeypatch.setattr(views.Processors, "_quick_views", fails)
        monkeypatch.setattr(views, "note", fails)
    elif where == "add_ids":
        monkeypatch.setattr(Excerpt, "add_ids", fails)
    else:
        monkeypatch.setattr(views.Segments, "may_cut", fails)
    played_the_same(own, theirs, stream, 12)


@each("ids", [[10], [10, 11]])
@pytest.mark.falls_back
def test_failures_that_are_not_in_a_row_switch_it_not_off(ids, monkeypatch):
    """One token, and several, which are parsed in segments."""
    monkeypatch.setenv("FD_POSTPROC_MENDS", "1")
    views_of = TwoOfThree(views.Processors.views_of)
    monkeypatch.setattr(views.Processors, "views_of", lambda *arguments: views_of(*arguments))
    sides = (play(cls(Thinks, None), [ids] * 12) for cls in (install()[0], Processor))
    own, theirs = ("".join(outputs["reasoning_content"] for outputs, _ in side) for side in sides)
    assert own == theirs != ""
    assert views_of.calls == 12

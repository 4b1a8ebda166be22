"""A data processor's own methods, on views of it: the same outputs, the same state."""

import gc
import random
import tracemalloc
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api.text import known_parsers as known
from fd_postproc.fastdeploy.api.text import parsers, views
from fd_postproc.fastdeploy.api.text.answer_text import AnswerText
from fd_postproc.fastdeploy.api.text.excerpt import Excerpt
from fd_postproc.fastdeploy.notes import NotPlain, forget, noted
from tests.lib import restated_parsers
from tests.lib.known import remember
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
def no_notes():
    with pytest.MonkeyPatch.context() as patch:
        remember(patch, "api parsers", Thinks, Calls, Raises, Counts, OtherMark, OtherCalls, TakesNoState)
        forget()
        yield


@pytest.fixture
def ours():
    cls, undo = install()
    yield cls
    for one in reversed(undo):
        one()
    for name in ("ids2tokens", "process_response_dict_streaming", "process_response_dict_normal"):
        assert vars(cls)[name] is vars(Processor)[name]


def reasons():
    return [told for told in noted() if not told.startswith("texts of new tokens")]


def play(*arguments):
    return [*restated_parsers.play(*arguments)]


@each("stream", [True, False])
@each("reasoning, tools", [(Thinks, Calls), (Thinks, None), (None, Calls), (None, None)])
def test_random_answers(ours, reasoning, tools, stream):
    own, theirs = ours(reasoning, tools), Processor(reasoning, tools)
    draw = random.Random(4)
    for number in range(40):
        deltas, state = random_answer(draw), draw.choice(["think_start", "think_end"])
        assert play(own, deltas, stream, str(number), state) == play(
            theirs, deltas, stream, str(number), state
        )
    assert reasons() == []
    assert own.decode_status == {}
    assert own.tool_parser_dict.keys() == theirs.tool_parser_dict.keys()


class ChatCompletionRequest(SimpleNamespace):
    """FastDeploy's, by its name."""


ChatCompletionRequest.__module__ = parsers.PROTOCOL


class Derived(ChatCompletionRequest):
    pass


OfAnother = type("ChatCompletionRequest", (SimpleNamespace,), {})


@pytest.fixture
def processors(ours):
    """Ours and FastDeploy's."""
    return ours(), Processor()


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
def test_reasoning_tokens_are_counted_where_a_client_is_told(processors, request_, is_counted):
    for processor in processors:
        processor.decode_status.clear()
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
class Raises(Thinks):
    def extract_reasoning_content_streaming(self, previous, current, *others):
        return DeltaMessage(content=current.find(others))


@of_fastdeploy
class Counts(Thinks):
    def extract_reasoning_content_streaming(self, previous, current, *others):
        return DeltaMessage(content=len(current))


@of_fastdeploy
class OtherMark(Thinks):
    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self.think_end_token = "Answer:"


@of_fastdeploy
class OtherCalls(Calls):
    def extract_tool_calls_streaming(self, previous, current, *others):
        return DeltaMessage(content=current.find("日"))


@each(
    "reasoning, tools, reason",
    [
        (Foreign, None, "Foreign is none of FastDeploy's own parsers"),
        (LooksAtMore, Calls, "LooksAtMore.extract_reasoning_content_streaming has new code in line"),
        (Counts, None, "is parsed otherwise"),
        (OtherMark, None, "OtherMark has a mark of another kind: 'Answer:'"),
        (None, OtherCalls, "is parsed otherwise"),
    ],
)
@each("stream", [True, False])
def test_a_parser_that_is_not_known_is_given_everything(ours, reasoning, tools, reason, stream):
    forget()
    own, theirs = ours(reasoning, tools), Processor(reasoning, tools)
    deltas = [[10, 11], [2], [14], [3], [16], [17, 18], [4], [11, 1]]
    assert play(own, deltas, stream) == play(theirs, deltas, stream)
    assert any(told.startswith(NOT_QUICK) and reason in told for told in noted()), noted()
    assert views.views_of(own).chunk is own


def test_parsers_are_tried_before_the_first_answer(ours, monkeypatch):
    """In a process that serves; another may never have one."""
    monkeypatch.setattr(parsers, "is_serving", lambda: True)
    own = ours()
    monkeypatch.setattr(views, "marks_of", None)
    assert views.views_of(own).chunk is not own
    assert play(own, [[10], [11]]) == play(Processor(), [[10], [11]])


@of_fastdeploy
class TakesNoState(Thinks):
    """As 2.4's."""

    def extract_reasoning_content_streaming(
        self, previous_text, current_text, delta_text, previous_ids, current_ids, delta_ids
    ):
        return DeltaMessage(content=len(current_text))


@each("parser, reason", [(Raises, "raises whatever it is asked"), (TakesNoState, "is parsed otherwise")])
def test_a_parser_is_not_known_that_always_raises_or_is_told_no_state(parser, reason):
    with pytest.raises(NotPlain, match=reason):
        known.marks_of(parser(Tokenizer()), None, Tokenizer())


def test_a_method_put_into_an_instance_is_used(ours):
    own = ours()
    own.reasoning_parser.extract_reasoning_content_streaming = lambda *arguments: DeltaMessage(
        content=arguments[1]
    )
    told = play(own, [[10], [11], [10]])
    assert [outputs["text"] for outputs, _ in told] == [" the", " thea", " thea the"]
    assert any("none of FastDeploy's own" in each for each in reasons())


@each("first, others", [(Thinks, {4: Foreign, 7: Thinks}), (None, {3: Thinks})])
def test_parsers_that_are_replaced_in_the_middle_of_an_answer(ours, first, others):
    sides = [cls(first, Calls if first else None) for cls in (ours, Processor)]
    for number, ids in enumerate([[10], [11, 2], [12], [10], [3], [16], [17], [18], [4], [10]]):
        told = []
        for processor in sides:
            processor.model_status_dict["a"] = "think_start"
            if number in others:
                processor.reasoning_parser = others[number](processor.tokenizer)
            told.append(processor.process_response_dict_streaming(result(ids))["outputs"])
        assert told[0] == told[1]
        assert sides[0].decode_status == sides[1].decode_status


def test_a_class_with_its_own_ids2tokens_is_given_what_it_says(ours):
    own = type("Own", (ours,), {"ids2tokens": lambda processor, ids, name: ("own", [], "")})()
    own.model_status_dict["a"] = "think_start"
    assert own.process_response_dict_streaming(result([10]))["outputs"]["completion_tokens"] == "own"
    assert views.views_of(own).chunk is own


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


class WithFallback(Processor):
    """As FastDeploy #7942: something may change the text before the parsers see it."""

    def __init__(self, *arguments, fallback=None):
        super().__init__(*arguments)
        self.output_fallback_manager = fallback

    ids2tokens = Processor.ids2tokens
    process_response_dict_normal = Processor.process_response_dict_normal

    def process_response_dict_streaming(self, response_dict, **kwargs):
        if self.output_fallback_manager is None:
            return Processor.process_response_dict_streaming(self, response_dict, **kwargs)
        said = Processor.process_response_dict_streaming(self, response_dict, **kwargs)
        said["outputs"]["text"] = self.output_fallback_manager(self.decode_status["a"][3])
        return said


@each("fallback", [None, str.upper])
def test_an_output_fallback_that_is_on_is_given_everything(fallback):
    cls, _ = install(WithFallback)
    own, theirs = cls(fallback=fallback), WithFallback(fallback=fallback)
    deltas = [[10], [11], [2], [10]]
    for ids in deltas:
        told = []
        for processor in (own, theirs):
            processor.model_status_dict["a"] = "think_start"
            told.append(processor.process_response_dict_streaming(result(ids))["outputs"])
        assert told[0] == told[1]
    assert (views.views_of(own).chunk is not own) is (fallback is None)


def test_planted_differences_are_seen(monkeypatch):
    """The trial tells an excerpt that has lost something."""
    shortened = known.Excerpts._shortened
    for planted in (
        lambda self: shortened(self).replace("\n", ""),
        lambda self: shortened(self).replace("</think>", "", 1),
        lambda self: shortened(self)[:-3],
    ):
        monkeypatch.setattr(known.Excerpts, "_shortened", planted)
        with pytest.raises(NotPlain, match="is parsed otherwise"):
            known.marks_of(Thinks(Tokenizer()), Calls, Tokenizer())


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


@pytest.mark.parametrize("where", ["views_of", "add_ids", "count"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_of_ours_is_fastdeploys_method(where, stream, ours, monkeypatch):
    """The client gets the same, from the first failure on and for good."""
    theirs, own = Processor(Thinks, Calls), ours(Thinks, Calls)

    def fails(*_, **__):
        raise KeyError("in a test")

    if where == "views_of":
        monkeypatch.setattr(views.Processors, "_quick_views", fails)
        monkeypatch.setattr(views, "note", fails)
    elif where == "add_ids":
        monkeypatch.setattr(Excerpt, "add_ids", fails)
    else:
        monkeypatch.setattr(views.Segments, "may_cut", fails)
    draw = random.Random(4)
    for number in range(12):
        deltas, state = random_answer(draw), draw.choice(["think_start", "think_end"])
        assert play(own, deltas, stream, str(number), state) == play(
            theirs, deltas, stream, str(number), state
        )
    assert own.decode_status == {}

"""Answers that no parser reads: the text goes straight into the response, as FastDeploy's method does it."""

import random

import pytest

from fd_postproc.fastdeploy.api.text import joined_results, parsers, views, ways
from fd_postproc.fastdeploy.notes import forget
from tests.lib.restated_parsers import Processor, Thinks, Tokenizer, install, play, random_answer, result
from tests.lib.rows import each

STREAMED = parsers.STREAMED
IDS = [10, 11, 12, 14]


class Stock(Processor):
    """FastDeploy's of 2.5: it sets more keys, in another order; and notes what it is asked."""

    asked = ()

    ids2tokens = Processor.ids2tokens
    process_response_dict_normal = Processor.process_response_dict_normal

    def process_response_dict_streaming(self, response_dict, **kwargs):
        outputs, ids = response_dict["outputs"], response_dict["outputs"]["token_ids"]
        Stock.asked.append(ids)
        outputs["enable_parser"] = False
        outputs["skipped"] = False
        text, _, _ = self.ids2tokens(ids, response_dict["request_id"])
        outputs["text"] = outputs["completion_tokens"] = text
        outputs["tool_calls"], outputs["reasoning_content"] = None, ""
        if response_dict["finished"]:
            del self.decode_status[response_dict["request_id"]]
        return response_dict


@pytest.fixture
def counted(monkeypatch):
    """What FastDeploy's own method is asked, and by how many calls a text is made directly."""
    calls = []

    def ways_of(tokenizer):
        def new_text(ids, prefix, read, to_the_end=False):
            calls.append(len(ids))
            return tokenizer.decode_token(ids, prefix, read) if ids[-1] != 12 else None

        return ways.Ways(new_text=new_text)

    monkeypatch.setattr(ways, "ways_of", ways_of)
    monkeypatch.setattr(Stock, "asked", [])
    forget()
    return calls


def plain(cls, *arguments):
    return cls(None, None, *arguments)


def is_plain(processor):
    methods = (vars(one).get(STREAMED) for one in type(processor).__mro__)
    ours = next(filter(None, map(views.processors_of, methods)))
    return ours.views_of(processor).plain is not None


def test_fastdeploys_method_makes_an_answers_last_result_only(counted):
    cls, _ = install(Stock)
    own, theirs = plain(cls), plain(Stock)
    assert is_plain(own)
    deltas = [[10], [11, 14], [], [12], [13]]
    right = [f"{outputs} {state}" for outputs, state in play(theirs, deltas)]  # in their order
    Stock.asked.clear()
    assert [f"{outputs} {state}" for outputs, state in play(own, deltas)] == right
    assert Stock.asked == [[13]]
    assert counted


@each("joined", [False, True])
def test_random_answers_that_take_turns(counted, joined, monkeypatch):
    """Tokens that only the tokenizer knows are among them, and results that a stream interval has joined."""
    monkeypatch.setattr(joined_results, "_are_expected", joined)
    cls, _ = install(Stock)
    own, theirs = plain(cls), plain(Stock)
    draw = random.Random(60)
    answers = {str(number): random_answer(draw) for number in range(20)}
    while answers:
        name = draw.choice([*answers])
        ids = answers[name].pop(0)
        finished = not answers[name]
        told = [one.process_response_dict_streaming(result(ids, finished, name)) for one in (own, theirs)]
        assert told[0] == told[1]
        if finished:
            del answers[name]
    assert own.decode_status == theirs.decode_status == {}


class Another(Tokenizer):
    def decode_token(self, ids, prefix, read):
        return super().decode_token(ids, prefix, read)[0].upper(), read, len(ids)


def set_parser(processor):
    processor.reasoning_parser = Thinks(processor.tokenizer)
    processor.model_status_dict["a"] = "think_end"


def set_tokenizer(processor):
    processor.tokenizer = Another()


def wrap_ids2tokens(processor):
    stock = processor.ids2tokens
    processor.ids2tokens = lambda ids, name: (stock(ids, name)[0] + "!", [], "")


def wrap_method(processor):
    stock = getattr(processor, STREAMED)

    def streamed(response_dict, **kwargs):
        told = stock(response_dict, **kwargs)
        told["outputs"]["text"] += "!"
        return told

    setattr(processor, STREAMED, streamed)


def set_fallback(processor):
    processor.output_fallback_manager = object()


@each("change", [set_parser, set_tokenizer, wrap_ids2tokens, wrap_method, set_fallback])
def test_what_changes_in_the_middle_of_an_answer_counts_at_once(counted, change):
    cls, _ = install()
    sides = plain(cls), plain(Processor)
    for number in range(6):
        if number == 3:
            assert is_plain(sides[0])
            for one in sides:
                change(one)
        told = [one.process_response_dict_streaming(result([IDS[number % 3], 10])) for one in sides]
        assert told[0] == told[1], number
    assert is_plain(sides[0]) is (change in (set_tokenizer, wrap_method))


def more(cls):
    """The class's result with a mark, by a method of its own."""
    stock = getattr(cls, STREAMED)

    def streamed(self, response_dict, **kwargs):
        told = stock(self, response_dict, **kwargs)
        told["outputs"]["text"] += "!"
        return told

    return streamed


def numbers(self, response_dict, **kwargs):
    told = Processor.process_response_dict_streaming(self, response_dict, **kwargs)
    told["outputs"]["count"] = len(told["outputs"]["token_ids"])
    return told


def lists(self, response_dict, **kwargs):
    told = Processor.process_response_dict_streaming(self, response_dict, **kwargs)
    told["outputs"]["parts"] = []
    return told


def marks(self, response_dict, **kwargs):
    told = Processor.process_response_dict_streaming(self, response_dict, **kwargs)
    told["seen"] = True
    return told


def changed(method):
    """FastDeploy's own class with another method, which the plug-in then finds."""
    body = {**vars(Processor), STREAMED: method}
    return install(type("Changed", (Processor,), body))[0], type("Changed", (Processor,), body)


def derived(own_methods):
    def pair():
        return [
            type("Derived", (one,), {STREAMED: more(one)} if own_methods else {})
            for one in (install()[0], Processor)
        ]

    return pair


@each(
    "pair",
    [derived(True), derived(False), *(lambda one=one: changed(one) for one in (numbers, lists, marks))],
)
def test_another_class_or_method_stays_fastdeploys(counted, pair):
    own, theirs = (plain(cls) for cls in pair())
    assert not is_plain(own)
    for ids in ([10], [11, 14], [12]):
        told = [one.process_response_dict_streaming(result(ids)) for one in (own, theirs)]
        assert told[0] == told[1]


@each("error", [KeyError, IndexError])
def test_a_failure_of_ours_costs_no_text(counted, error, monkeypatch):
    """FastDeploy's own method makes the text, from the state before; what it raises, it raises once."""
    cls, _ = install()
    own, theirs = plain(cls), plain(Processor)
    own.process_response_dict_streaming(result([10]))

    def fails(*_):
        raise error("in a test")

    theirs.process_response_dict_streaming(result([10]))
    answer = own.decode_status["a"][3]
    answer.way = answer.way[0], fails
    for ids in ([11], [10, 14], ["no id"], [13]):
        told = []
        for one in (own, theirs):
            try:
                told.append(one.process_response_dict_streaming(result(ids)))
            except KeyError as raised:
                told.append(repr(raised))
        assert told[0] == told[1], ids
        assert own.decode_status == theirs.decode_status

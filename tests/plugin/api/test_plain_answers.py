"""Answers that no parser reads: the text goes straight into the response, as FastDeploy's method does it."""

import random

import pytest

from fd_postproc.fastdeploy.api.text import joined_results, parsers, views, ways
from fd_postproc.fastdeploy.events.counters import forget
from tests.lib.restated_parsers import Processor, install, play, random_answer, result
from tests.lib.rows import each

STREAMED = parsers.STREAMED


class Stock(Processor):
    """FastDeploy's of 2.5: it sets more keys, in another order; and notes what it is asked."""

    asked = ()
    output_fallback_manager = None  # there, and off

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


def plain(cls):
    return cls(None, None)


def is_plain(processor):
    methods = (vars(one).get(STREAMED) for one in type(processor).__mro__)
    ours = next(filter(None, map(views.processors_of, methods)))
    return ours.views_of(processor).plain is not None


def test_fastdeploys_method_makes_an_answers_last_result_only(counted):
    own, theirs = plain(install(Stock)[0]), plain(Stock)
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
    sides, draw = (plain(install(Stock)[0]), plain(Stock)), random.Random(60)
    answers = {str(number): random_answer(draw) for number in range(20)}
    while answers:
        name = draw.choice([*answers])
        given = result(answers[name].pop(0), not answers[name], name)
        same(sides, given)
        if given["finished"]:
            del answers[name]
    assert sides[0].decode_status == sides[1].decode_status == {}


@each("joined, text", [(False, ""), (True, " the")])
def test_a_joined_result_gives_what_its_tokens_give_one_by_one(counted, joined, text, monkeypatch):
    """Its last token begins a character: of a step's own tokens FastDeploy gives nothing then."""

    def decode_token(self, ids, prefix, read):
        new = self.decode(ids[read:])
        return ("", prefix, read) if new.endswith("\ufffd") else (new, read, len(ids))

    monkeypatch.setattr(joined_results, "_are_expected", joined)
    processor = plain(install(Stock)[0])
    monkeypatch.setattr(type(processor.tokenizer), "decode_token", decode_token)
    processor.tokenizer.texts[30] = "\ufffd"
    told = [
        processor.process_response_dict_streaming(result(ids))["outputs"]["text"] for ids in ([10], [10, 30])
    ]
    assert told == [" the", text]


def same(sides, given):
    """Both make the same of a result, or raise the same."""
    told = []
    for one in sides:
        try:
            told.append(one.process_response_dict_streaming({**given, "outputs": {**given["outputs"]}}))
        except KeyError as raised:
            told.append(repr(raised))
    assert told[0] == told[1], given


def changed(stock, change):
    """A streaming method that changes what another says."""

    def streamed(self, response_dict, **kwargs):
        told = stock(self, response_dict, **kwargs)
        change(told)
        return told

    return streamed


def fastdeploys(change):
    """Ours in a copy of FastDeploy's class with another method, and that class."""
    body = {**vars(Processor), STREAMED: changed(vars(Processor)[STREAMED], change)}
    return install(type("Changed", (Processor,), body))[0], type("Changed", (Processor,), body)


def derived(methods_of, package="fastdeploy"):
    """Classes derived from ours and from FastDeploy's."""
    sides = (install()[0], Processor)
    return [type("Derived", (one,), {"__module__": f"{package}.a", **methods_of(one)}) for one in sides]


def marks(told):
    told["outputs"]["text"] += "!"


def numbers(told):
    told["outputs"]["count"] = len(told["outputs"]["token_ids"])


def lists(told):
    told["outputs"]["parts"] = []


def more(told):
    told["seen"] = True


@each(
    "pair",
    [
        lambda: derived(lambda base: {}, "plug_in"),
        lambda: derived(lambda base: {STREAMED: changed(vars(base)[STREAMED], marks)}),
        lambda: derived(lambda base: {"ids2tokens": lambda processor, ids, name: ("own", [], "")}),
        *(lambda change=change: fastdeploys(change) for change in (numbers, lists, more)),
    ],
)
def test_another_class_or_method_stays_fastdeploys(counted, pair):
    sides = [plain(cls) for cls in pair()]
    assert not is_plain(sides[0])
    for ids in ([10], [11, 14], [12]):
        same(sides, result(ids))


@each("error", [KeyError, IndexError])
def test_a_failure_of_ours_costs_no_text(counted, error):
    """FastDeploy's own method makes the text, from the state before; what it raises, it raises once."""
    own, theirs = sides = plain(install()[0]), plain(Processor)
    same(sides, result([10]))

    def fails(*_):
        raise error("in a test")

    answer = own.decode_status["a"][3]
    answer.way = answer.way[0], fails
    for ids in ([11], [10, 14], ["no id"], [13]):
        same(sides, result(ids))
        assert own.decode_status == theirs.decode_status

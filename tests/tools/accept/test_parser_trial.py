"""The trial of parsers tells one that reads more than its marks, and an excerpt that has lost something."""

import sys
from types import ModuleType

import pytest

from fd_postproc.fastdeploy.gate.seams import NotPlain
from tests.lib.restated_parsers import Calls, DeltaMessage, Thinks
from tests.lib.rows import each
from tools.accept import parser_trial
from tools.accept.parser_trial import Tokenizer, compare, differences


class Raises(Thinks):
    def extract_reasoning_content_streaming(self, previous, current, *others):
        return DeltaMessage(content=current.find(others))


class Counts(Thinks):
    def extract_reasoning_content_streaming(self, previous, current, *others):
        return DeltaMessage(content=len(current))


class OtherCalls(Calls):
    def extract_tool_calls_streaming(self, previous, current, *others):
        return DeltaMessage(content=current.find("日"))


class TakesNoState(Thinks):
    """As 2.4's."""

    def extract_reasoning_content_streaming(
        self, previous_text, current_text, delta_text, previous_ids, current_ids, delta_ids
    ):
        return DeltaMessage(content=len(current_text))


@each(
    "reasoning, tools, reason",
    [
        (Counts, None, "is parsed otherwise"),
        (None, OtherCalls, "is parsed otherwise"),
        (Raises, None, "raises whatever it is asked"),
        (TakesNoState, None, "is parsed otherwise"),
    ],
)
def test_a_parser_that_reads_more_than_marks_is_told(reasoning, tools, reason):
    tokenizer = Tokenizer()
    with pytest.raises(NotPlain, match=reason):
        compare(reasoning and reasoning(tokenizer), tools, tokenizer)


def test_differences_are_named_by_class(monkeypatch):
    assert differences(["tests.lib.restated_parsers"]) == {}
    module = ModuleType("a_module_of_parsers")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for base in (Thinks, Counts):
        cls = type(base.__name__, (base,), {**vars(base), "__module__": module.__name__})
        setattr(module, base.__name__, cls)
    told = differences([module.__name__])
    assert told.keys() == {"Counts"}
    assert "is parsed otherwise" in told["Counts"]


def test_planted_differences_are_seen(monkeypatch):
    """The trial tells an excerpt that has lost something."""
    shortened = parser_trial.Excerpts._shortened
    for planted in (
        lambda self: shortened(self).replace("\n", ""),
        lambda self: shortened(self).replace("</think>", "", 1),
        lambda self: shortened(self)[:-3],
    ):
        monkeypatch.setattr(parser_trial.Excerpts, "_shortened", planted)
        with pytest.raises(NotPlain, match="is parsed otherwise"):
            compare(Thinks(Tokenizer()), Calls, Tokenizer())

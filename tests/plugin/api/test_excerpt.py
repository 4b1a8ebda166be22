"""The excerpt that stands for an answer's earlier text and ids."""

import random
import re
import sys
import tracemalloc

from hypothesis import example, given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.api.text.answer_text import AnswerText
from fd_postproc.fastdeploy.api.text.excerpt import Excerpt, Marks
from tests.lib.rows import each
from tools.accept.parser_trial import Excerpts

CALL = ("<call>", "</call>")
MARKS = Marks(("<think>", "</think>", *CALL), frozenset({1, 2}), CALL)
PARTS = ["<think>", "</think>", *CALL, "<thi", "nk>", "a", "\n", "\n\n", " ", "<", ">", "b" * 300, "{1}"]


def excerpt_of(parts, marks=MARKS, cls=Excerpt):
    made = cls(marks)
    for part in parts:
        made.add_text(part)
    return made.text


def seen(text):
    """What a parser sees: marks, whether something or only newlines are between them, the last call."""
    pieces = re.split("(" + "|".join(MARKS.texts) + ")", text)
    between = [part if part in MARKS.texts else ("x" if part.strip("\n") else part[:1]) for part in pieces]
    return between, text.split("<call>")[1:][-1:] and text.split("<call>")[-1].split("</call>")[0]


@given(st.lists(st.sampled_from(PARTS), max_size=60), st.sampled_from(["", *PARTS]))
@example(["<think>", " ", "\n", "</think>", "a"], "")
def test_a_parser_sees_the_same_also_with_what_comes_next(parts, following):
    """A mark may be cut anywhere."""
    for cls in (Excerpt, Excerpts):  # the latter is shortened at each delta
        assert seen(excerpt_of(parts, cls=cls) + following) == seen("".join(parts) + following)


@each("cut", range(1, 8))
@each("mark", MARKS.texts)
def test_a_mark_may_be_cut_anywhere_when_the_text_before_is_shortened(cut, mark):
    parts = ["b" * 600, mark[:cut]]
    assert seen(excerpt_of(parts, cls=Excerpts) + mark[cut:]) == seen("".join(parts) + mark[cut:])


def test_a_long_answer_is_short():
    draw = random.Random(1)
    parts = ["<think>", *draw.choices(["a", " the", "\n"], k=50_000), "</think>", *["b\n"] * 50_000]
    assert len(excerpt_of(parts)) < 1200
    assert len(excerpt_of(parts, Marks(("<think>", "</think>"), frozenset()))) < 1200


def test_the_last_tool_call_is_whole():
    call = "<call>" + '{"a": 1}\n' * 300 + "</call>"
    made = excerpt_of(["a" * 900, "<call>" + "b" * 900 + "</call>", call, *["c" * 100] * 90])
    assert call in made
    assert "bb" not in made


def test_ids_are_the_first_and_the_marks():
    made = Excerpt(MARKS)
    for ids in ([], [7, 8], [1, 9, 1], [2], [7]):
        made.add_ids(ids)
    assert made.ids == [7, 1, 2]


@each("parts", [[], ["a"], ["é", "日本", "\n"], ["\r\n", "\ud800", "\udc00", "\0"]])
def test_the_text_of_an_answer_reads_as_the_string(parts):
    answer, text = AnswerText(parts[0] if parts else ""), "".join(parts)
    for part in parts[1:]:
        answer.append(part)
    assert str(answer) == text
    assert answer == text
    assert answer == AnswerText(text)
    assert answer != text + "x"
    assert "".join(answer) == text
    assert repr(answer) == repr(text)


def test_a_growing_text_keeps_no_string_that_was_added():
    answer, parts = AnswerText(""), 10_000
    tracemalloc.start()
    try:
        for number in range(parts):
            answer.append(f"{number} é")
        held = tracemalloc.get_traced_memory()[0] + sys.getsizeof(answer.append.__self__)
    finally:
        tracemalloc.stop()
    assert str(answer) == "".join(f"{number} é" for number in range(parts))
    assert held < 2 * len(str(answer).encode()) + 10_000

"""What the service's tool (harness/service) calls a difference of two services' answers."""

import importlib.util

import pytest

from tests.lib.rows import each
from tests.lib.service_tool import FOLDER


@pytest.fixture(scope="module")
def comparison():
    """The module by itself: the rest of the tool needs a client's libraries."""
    spec = importlib.util.spec_from_file_location("service_comparison", FOLDER / "comparison.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chunk(index, text, **more):
    return {"id": "one", "choices": [{"index": index, "text": text, **more}]}


ANSWER = [chunk(0, "a"), chunk(1, "b"), chunk(0, "c"), "ended"]


@each(
    "other, count",
    [
        (ANSWER, 0),
        ([chunk(1, "b"), chunk(0, "a"), chunk(0, "c"), "ended"], 0),  # choices are served in any order
        ([chunk(0, "c"), chunk(1, "b"), chunk(0, "a"), "ended"], 1),
        ([*ANSWER[:3], "hangs"], 1),
        (ANSWER[1:], 1),
        ([chunk(0, "a"), chunk(1, "b", logprobs=None), chunk(0, "c"), "ended"], 1),
        (None, 1),  # a case of which one side has nothing at all
    ],
)
def test_what_is_a_difference(other, count, comparison):
    right, got = {"case": ANSWER, "beside": ["x"]}, {"beside": ["x"]}
    if other is not None:
        got["case"] = other
    for one, two in (right, got), (got, right):
        found = comparison.differences(one, two, crowd=False)
        assert [line.partition(":")[0] for line in found] == ["case"] * count


def test_what_the_clock_decides_is_no_difference(comparison):
    ids = {"id": "chatcmpl-1", "created": 7, "choices": [{"text": "a", "request_id": "x"}]}
    assert comparison.tidy(ids) == {"choices": [{"text": "a"}]}
    alone, beside = ({"case": [{"accept_ratio": ratio, "text": "a"}]} for ratio in (0.5, 0.25))
    assert comparison.differences(alone, beside, crowd=True) == []
    assert comparison.differences(alone, beside, crowd=False) != []

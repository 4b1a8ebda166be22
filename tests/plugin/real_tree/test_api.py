"""The API server's side in FastDeploy's own serving code, on the real trees."""

import os
import random

import pytest

from tests.lib.real_tree import LIB, check, each_tree, run

pytestmark = pytest.mark.fastdeploy

RANDOM = str(LIB / "random_answers.py")
UNMENDED = {"FD_POSTPROC_MENDS": "0"}
SERVE = str(LIB / "chunk_replay" / "serve.py")
TRIAL = """
import importlib, json
from fd_postproc.fastdeploy.gate.judgements import gate
from fd_postproc.fastdeploy.gate.seams import SEAMS
names = ("serving_chat", "serving_completion", "utils")
*modules, utils = [importlib.import_module(f"fastdeploy.entrypoints.openai.{name}") for name in names]
told = [gate.judge("api connections", utils).reason]
told += [gate.put_in(SEAMS["api chunks"], module) for module in modules]
told += [gate.judge("api answers", module).reason for module in modules]
print("told: " + json.dumps([reason or "" for reason in told]))
"""
PLANTED = """
import importlib, json
from fd_postproc.fastdeploy.gate import judgements
from fd_postproc.fastdeploy.gate.judgements import gate
from fd_postproc.fastdeploy.api import feed, lane
from tools.accept import answers, answer_scripts
gate.judge = lambda *told: judgements.Verdict((), {})
module = importlib.import_module("fastdeploy.entrypoints.openai.serving_chat")
tried = answer_scripts.scripts(True, 40)
values, part, told = lane.Lane._values, feed.Feed._part, []
def later(*told, **how):
    made = values(*told, **how)
    made[3] += not how
    return made
lane.Lane._values = later
if answers.are_batches():
    told.append(answers.first_difference(module, tried))
lane.Lane._values = values
feed.Feed._part = lambda self, text: part(self, text).replace("null", "0", 1)
told.append(answers.first_difference(module, tried))
feed.Feed._part = part
async def fails(self, request, request_id):
    raise OSError("no disk")
    yield
module.OpenAIServingChat.chat_completion_stream_generator = fails
try:
    answers.first_difference(module, tried)
except RuntimeError as error:
    told.append(str(error))
print("told: " + json.dumps(told))
"""


def serve(tree, folder, *arguments, **variables):
    folder.mkdir(exist_ok=True)
    told, _ = run(tree, SERVE, *arguments, folder=folder, shim=False, **variables)
    if "other" in told:
        pytest.skip(told["other"])
    return told


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


@each_tree
def test_ours_is_used_or_a_reason_is_given(tree, tmp_path):
    reasons, _ = run(tree, TRIAL, folder=tmp_path, shim=False)
    for reason in reasons:
        assert "Error" not in reason
        assert not reason or os.environ.get("FD_POSTPROC_MAY_FALL_BACK") == "1"


LANED = """
import json, sys
from fd_postproc.fastdeploy.gate import judgements
from fd_postproc.fastdeploy.gate.judgements import gate
from tools.accept import prove
gate.judge = lambda *told: judgements.Verdict((), {})
print("told: " + json.dumps(prove.chunks(int(sys.argv[1]), lambda *at: None)))
"""


@each_tree
@pytest.mark.parametrize("rounds", [30, nightly(4000)])
def test_random_streams_are_the_same(tree, tmp_path, rounds):
    told, _ = run(tree, LANED, rounds, folder=tmp_path, shim=False)
    assert told == ""


WITHHELD = """
import json, sys
from fd_postproc.fastdeploy.gate import judgements
from fd_postproc.fastdeploy.gate.judgements import gate
from tools.accept import prove
gate.judge = lambda *told: judgements.Verdict((), {})
print("told: " + json.dumps(prove.chunks(int(sys.argv[1]), lambda *at: None, whole=True)))
"""


@each_tree
@pytest.mark.parametrize("rounds", [30, nightly(4000)])
def test_random_whole_answers_are_the_same(tree, tmp_path, rounds):
    told, _ = run(tree, WITHHELD, rounds, folder=tmp_path, shim=False)
    assert told == ""


@each_tree
def test_a_difference_is_found_and_a_fastdeploy_that_fails_is_not_compared(tree, tmp_path):
    *differences, failure = run(tree, PLANTED, folder=tmp_path, shim=False)[0]
    assert differences
    assert all("is expected, ours is" in one for one in differences)
    assert "FastDeploy's own code fails in the trial" in failure
    assert "OSError: no disk" in failure


def left_of(tree, told):
    """What was left to FastDeploy, but for what its log asks for: some versions log log-probabilities."""
    source = (tree / "fastdeploy" / "entrypoints" / "openai" / "serving_chat.py").read_text()
    asked = {"the full LogProbs was asked for"} if "logprobs={logprobs}" in source else set()
    return {reason: n for reason, n in told["left"].items() if reason not in asked}


@each_tree
def test_recorded_answers_are_the_same_with_it_and_without(tree, tmp_path):
    off = serve(tree, tmp_path / "off")
    on = serve(tree, tmp_path / "on", FD_PLUGINS="fd_postproc", **UNMENDED)
    assert off["laned"] == off["withheld"] == 0
    assert on["laned"] > 300
    assert on["withheld"] > 20
    assert on["wrong"] == off["wrong"]
    assert on["played"] == off["played"] > 290
    # Each of some forty data processors has a tokenizer of its own, which is told of once.
    left = {
        reason: n for reason, n in left_of(tree, on).items() if not reason.startswith("texts of new tokens")
    }
    assert sum(left.values()) < on["laned"] / 100, left


MENDED = {
    "a result with marks or a call, of several tokens": (
        *("both-think-marks-cs", "both-think-marks-ts", "g088", "g105", "g115", "g135", "g161", "g178"),
        *("g006", "g036", "g069", "g070", "g133"),
    ),
    "text that waits at the end, or before a mark": (
        *("bytes-tf-metaspace", "draft-cs", "floats-cs-extreme", "g106", "g112", "g166", "g169"),
    ),
    "text beside a broken character": (
        *("bytes-tf-sentencepiece", "g003", "g047", "g055", "g065", "g067", "g077", "g156", "g163"),
        "plain-cs-sentencepiece",
    ),
    "a whole answer of qwen3 without </think>": ("g010", "g092", "no-think-end-cf", "no-think-end-tf"),
}
"""Recorded answers of 2.6 that are others by default, and why."""


@each_tree
def test_recorded_answers_that_are_mended(tree, tmp_path):
    off = serve(tree, tmp_path / "off")
    on = serve(tree, tmp_path / "on", FD_PLUGINS="fd_postproc")
    changed = on["wrong"].keys() - off["wrong"].keys()
    same = {*off["wrong"]}
    source = (tree / "fastdeploy" / "entrypoints" / "openai" / "serving_completion.py").read_text()
    if 'ValueError("{}".format(data["error_msg"]))' in source:
        same.add("g010")  # it ends aborted, which is an error there: no text is seen
    assert changed == {name for names in MENDED.values() for name in names} - same


@each_tree
def test_recorded_rollouts_are_the_same(tree, tmp_path):
    """Experts, masks and log-probabilities, as lists in the messages and as arrays.

    A development branch writes fewer fields than 2.6 did when they were recorded.
    """
    off = serve(tree, tmp_path / "off", "rollouts")
    on = serve(tree, tmp_path / "on", "rollouts", FD_PLUGINS="fd_postproc", **UNMENDED)
    assert on["wrong"] == off["wrong"]
    assert on["played"] == off["played"] == 48
    assert left_of(tree, on) == {}


def random_answers(tree, folder, how, *numbers, **variables):
    """What the program says; each nightly run has a seed of its own."""
    seed = 1 if numbers[0] < 100 else random.randrange(1 << 30)
    return run(tree, RANDOM, how, seed, *numbers, folder=folder, shim=False, **variables)[0]


@each_tree
@pytest.mark.parametrize("deltas", [60, nightly(25_000)])
def test_random_answers_are_parsed_the_same(tree, tmp_path, deltas):
    """Through every parser, on every kind of tokenizer: equal, and by excerpts."""
    told = random_answers(tree, tmp_path, "same", deltas, **UNMENDED)
    assert told["wrong"] == []
    assert all(told["quick"].values()), told["left"]
    assert min(told["played"].values()) >= deltas
    assert len(told["played"]) >= 40


def tells_state(tree):
    """Skip the test where parsers are 2.4's, which the gate does not know: their results are not cut."""
    check(tree)
    if "model_status" not in (tree / "fastdeploy" / "reasoning" / "qwen3_reasoning_parsers.py").read_text():
        pytest.skip("its parsers are told no state")


KINDS = ("bytebpe", "metaspace", "sentencepiece")


@each_tree
@pytest.mark.parametrize(("times", "kinds"), [(1, KINDS), *(nightly(8, [kind]) for kind in KINDS)])
def test_random_cuts_are_parsed_as_one_token_a_result(tree, tmp_path, times, kinds):
    """For every pair of parsers."""
    tells_state(tree)
    answers, many = (8, 3) if times == 1 else (250, 8)
    for _ in range(times):
        told = random_answers(tree, tmp_path, "cuts", answers, many, *kinds)
        assert told["wrong"] == {}
        assert told["left"] == []
        assert told["pairs"] >= 14 * len(kinds)
        assert told["streams"] == told["pairs"] * answers * many
        assert told["stock_wrong"] > told["stock"] / 10

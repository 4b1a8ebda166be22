"""Recorded rollouts, written without FastDeploy: with restated parts, and with ours from packed messages."""

import json

import msgpack
import pytest

from fd_postproc.fastdeploy.api.chunks._chunks import ARRAY, give_arrays, unpack
from tests.lib.chunk_replay.alone import Ours, Stock, Tokenizer, answer, play
from tests.lib.chunk_replay.cases import ROLLOUTS, cases
from tests.lib.rows import each
from tools.accept.canned_answers import EXPERTS, as_one_value

CASES = cases(ROLLOUTS)
STREAMED = {name for name, case in CASES.items() if case["dimensions"]["stream"]}

each_whole = each("name", sorted(CASES.keys() - STREAMED))
each_stream = each("name", sorted(STREAMED))


def rendered(dumped):
    """As FastDeploy's application does it."""
    return json.dumps(dumped, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def with_texts(case):
    """The messages with what the data processor said in their results, out of msgpack as ours unpacks it."""
    said = iter(case["processed"])
    results = []
    for frame in case["frames"]:
        ((one,),) = frame
        experts = {EXPERTS: msgpack.ExtType(ARRAY, as_one_value(one[EXPERTS]))} if one.get(EXPERTS) else {}
        results.append(one | experts | {"outputs": one["outputs"] | {"tool_calls": None} | next(said)})
    return [unpack(msgpack.packb([[one]]))[0][0] for one in results]


@pytest.fixture
def packed():
    give_arrays(True)
    yield
    give_arrays(False)


def test_every_kind_is_there():
    kinds = {name.rpartition(", ")[0] for name in CASES}
    assert {"experts", "masks", "prompt", "prompt, vocabulary", "logprobs, vocabulary"} < kinds
    assert len(CASES) == 24
    assert len(STREAMED) == 8


@each_whole
def test_the_restated_parts_write_it(name):
    case = CASES[name]
    written = rendered(answer(case, Stock(Tokenizer(case["server"]).steps())).model_dump())
    assert [written] == case["output"]["chunks"]


@pytest.mark.usefixtures("packed")
@each_whole
def test_ours_write_it_from_packed_messages(name, monkeypatch):
    case = CASES[name]
    monkeypatch.setattr("tests.lib.chunk_replay.alone.results_of", with_texts)
    made = answer(case, Ours(Tokenizer(case["server"])))
    pieces = made.stand_in().response_pieces()
    if pieces.whole is None:
        list(pieces.settle())
        assert b"".join(pieces).decode() == case["output"]["chunks"][0]
    else:
        assert pieces.whole.decode() == case["output"]["chunks"][0]
    assert [rendered(made.model_dump())] == case["output"]["chunks"]


@pytest.mark.usefixtures("packed")
@each_stream
def test_ours_stream_it_from_packed_messages(name, monkeypatch):
    case = CASES[name]
    monkeypatch.setattr("tests.lib.chunk_replay.alone.results_of", with_texts)
    assert play(case, Ours(Tokenizer(case["server"]))) == case["output"]["chunks"]

"""Recorded answers of FastDeploy's API server, written without it: with restated parts, and with ours."""

import json

import msgpack
import pytest

from fd_postproc.fastdeploy import notes
from fd_postproc.fastdeploy.api.chunks import _chunks
from fd_postproc.fastdeploy.api.chunks._chunks import ARRAY, give_arrays, unpack
from tests.lib.chunk_replay.alone import Ours, Stock, Tokenizer, answer, play
from tests.lib.chunk_replay.cases import ROLLOUTS, cases
from tests.lib.rows import each
from tools.accept.canned_answers import EXPERTS, as_one_value


def rendered(dumped):
    """As FastDeploy's application does it."""
    return json.dumps(dumped, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# ---- Streams -----------------------------------------------------------


STREAMS = [case for case in cases().values() if case["dimensions"]["stream"] and case["derived"]]


def first_difference(case, made):
    for number, (own, recorded) in enumerate(zip(made, case["output"]["chunks"], strict=False)):
        if own != recorded:
            return f"{case['name']}, chunk {number}: {own!r} is not {recorded!r}"
    if len(made) != len(case["output"]["chunks"]):
        return f"{case['name']}: {len(made)} chunks, not {len(case['output']['chunks'])}"
    return None


def differing_streams(parts_of):
    found = (first_difference(case, play(case, parts_of(Tokenizer(case["server"])))) for case in STREAMS)
    return filter(None, found)


def test_every_stream_is_written_byte_for_byte_and_nearly_all_by_ours():
    assert len(STREAMS) > 200
    notes.forget()
    before = _chunks.written()
    assert [*differing_streams(Ours)] == []
    written, left = _chunks.written() - before, notes.noted()
    assert written > 1500
    assert sum(left.values()) < written / 100, left
    assert [*differing_streams(lambda tokenizer: Stock(tokenizer.steps()))] == []


def test_a_wrong_text_is_seen(monkeypatch):
    """The comparison can fail: a tokenizer that says something else once in a while."""
    said = Tokenizer.process_logprob_response
    monkeypatch.setattr(
        Tokenizer,
        "process_logprob_response",
        lambda self, ids, **options: said(self, ids) + (" " if ids == [100] else ""),
    )
    assert any(differing_streams(Ours))


# ---- Answers that are not streamed -------------------------------------


WHOLE = [
    case
    for case in cases().values()
    if not case["dimensions"]["stream"]
    and case["derived"]
    and case["output"]["status"] == 200
    and not case["output"].get("raised")
    and case["output"]["chunks"] != ["null"]
]


def test_ours_and_the_restated_parts_write_every_answer():
    assert len(WHOLE) > 60
    for parts_of in Ours, lambda tokenizer: Stock(tokenizer.steps()):
        for case in WHOLE:
            made = answer(case, parts_of(Tokenizer(case["server"])))
            assert [rendered(made.model_dump())] == case["output"]["chunks"], case["name"]


# ---- Rollouts -----------------------------------------------------------


CASES = cases(ROLLOUTS)
STREAMED = {name for name, case in CASES.items() if case["dimensions"]["stream"]}

each_whole = each("name", sorted(CASES.keys() - STREAMED))
each_stream = each("name", sorted(STREAMED))


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


def test_rollouts_of_every_kind_are_there():
    kinds = {name.rpartition(", ")[0] for name in CASES}
    assert {"experts", "masks", "prompt", "prompt, vocabulary", "logprobs, vocabulary"} < kinds
    assert len(CASES) == 24
    assert len(STREAMED) == 8


@pytest.mark.usefixtures("packed")
@each_whole
def test_ours_write_rollouts_from_packed_messages(name, monkeypatch):
    case = CASES[name]
    monkeypatch.setattr("tests.lib.chunk_replay.alone.results_of", with_texts)
    if "prompt" in name:
        made = answer(case, Stock(Tokenizer(case["server"]).steps()))
        assert [rendered(made.model_dump())] == case["output"]["chunks"]
    made = answer(case, Ours(Tokenizer(case["server"])))
    pieces = made.stand_in().response_pieces()
    if pieces.whole is None:
        list(pieces.settle())
    assert (pieces.whole or b"".join(pieces)).decode() == case["output"]["chunks"][0]
    assert [rendered(made.model_dump())] == case["output"]["chunks"]


@pytest.mark.usefixtures("packed")
@each_stream
def test_ours_stream_rollouts_from_packed_messages(name, monkeypatch):
    case = CASES[name]
    monkeypatch.setattr("tests.lib.chunk_replay.alone.results_of", with_texts)
    assert play(case, Ours(Tokenizer(case["server"]))) == case["output"]["chunks"]

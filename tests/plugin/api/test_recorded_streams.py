"""Recorded streams of FastDeploy's API server, written without it: with restated parts, and with ours."""

from fd_postproc.fastdeploy.api.chunks import _chunks
from tests.lib.chunk_replay.alone import Ours, Stock, Tokenizer, play
from tests.lib.chunk_replay.cases import cases

STREAMS = [case for case in cases().values() if case["dimensions"]["stream"] and case["derived"]]


def first_difference(case, made):
    for number, (own, recorded) in enumerate(zip(made, case["output"]["chunks"], strict=False)):
        if own != recorded:
            return f"{case['name']}, chunk {number}: {own!r} is not {recorded!r}"
    if len(made) != len(case["output"]["chunks"]):
        return f"{case['name']}: {len(made)} chunks, not {len(case['output']['chunks'])}"
    return None


def test_every_stream_is_written_byte_for_byte_and_nearly_all_by_ours():
    assert len(STREAMS) > 200
    _chunks.forget_totals()
    found = [first_difference(case, play(case, Ours(Tokenizer(case["server"])))) for case in STREAMS]
    assert [difference for difference in found if difference] == []
    written, left = _chunks.totals()
    assert written > 1500
    assert sum(left.values()) < written / 100, left


def test_the_restated_parts_write_the_same():
    found = [first_difference(case, play(case, Stock(Tokenizer(case["server"]).steps()))) for case in STREAMS]
    assert [difference for difference in found if difference] == []


def test_a_wrong_text_is_seen(monkeypatch):
    """The comparison can fail: a tokenizer that says something else once in a while."""
    said = Tokenizer.process_logprob_response
    monkeypatch.setattr(
        Tokenizer,
        "process_logprob_response",
        lambda self, ids, **options: said(self, ids) + (" " if ids == [100] else ""),
    )
    assert any(first_difference(case, play(case, Ours(Tokenizer(case["server"])))) for case in STREAMS)

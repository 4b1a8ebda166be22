"""Log-probabilities of streams, which FastDeploy's generators do not see, and are put into their chunks."""

import asyncio
import contextlib
import importlib
import types
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import feed, lane, scores, streams
from fd_postproc.fastdeploy.api.activation import CHAT
from fd_postproc.fastdeploy.api.chunks._chunks import ChatScores
from fd_postproc.fastdeploy.api.chunks.float_style import float_style
from fd_postproc.fastdeploy.events.guard import Guard
from tests.lib.rows import each
from tools.accept import answer_scripts, answers

from .laned import (
    APIS,
    asked,
    both,
    scored,
    stream_of,
    the_same,
)


@each("api", APIS)
@each("more", [{}, {"return_token_ids": True}, {"stream_options": {"include_usage": True}}])
@each("packed", [False, True])
def test_log_probabilities_are_put_into_all_chunks(api, more, packed, laned, spelling):
    laned.clear()
    options = {**asked(api), **more, "make": lambda: scored(api, packed=packed)}
    theirs, ours = both(api, spelling, **options)
    assert ours == theirs
    assert len(spelling.asked) == 12  # theirs
    spelling.asked.clear()
    assert len(laned) in (9, 10)


@each("api", APIS)
@each(
    "odd",
    [[[[0]], [[True]], [1]], [[[0]], [["-0.5"]], [1]], [[[77]], [[-0.5]], [1]], [[0], [-0.5], [1]], "abc"],
)
@pytest.mark.falls_back
def test_log_probabilities_that_ours_does_not_know_are_fastdeploys(api, odd, laned, spelling):
    laned.clear()
    the_same(api, spelling, lambda: scored(api, odd=odd), **asked(api))
    assert len(laned) >= 7


@pytest.mark.parametrize("api", APIS)
def test_streams_without_a_lane_have_log_probabilities_of_ours(api, laned, spelling):
    several, extra = "max_streaming_response_tokens", "metadata" if api == CHAT else "suffix"
    for options in (
        {"collect_metrics": True},
        {several: 3},
        *({extra: {several: many}} for many in (2, "1")),
    ):
        spelling.asked.clear()
        the_same(api, spelling, lambda: scored(api, 3, speculate_metrics=None), **asked(api), **options)
        assert len(spelling.asked) == 3
        with contextlib.closing(asyncio.new_event_loop()):
            for more, kind in ((asked(api), lane.Spliced), ({}, types.AsyncGeneratorType)):
                _, stream = stream_of(api, spelling(None, None), True, **more, **options)
                assert type(stream) is kind
    assert not laned


@each(
    "kind, options",
    [
        (scores.AskedOfChat, {"logprobs": True, "top_logprobs": -1}),
        (scores.AskedOfCompletion, {"logprobs": -1}),
    ],
)
def test_all_columns_are_as_many_as_the_vocabulary_has(kind, options):
    request = SimpleNamespace(prompt_logprobs=-1, include_logprobs_decode_token=False, **options)
    client = SimpleNamespace(ori_vocab_size=100, data_processor=None)
    asked = kind(SimpleNamespace(engine_client=client), request)
    assert asked.columns == asked.prompt_columns == 100


def feed_of(results, shows_ids=False):
    request = SimpleNamespace(return_token_ids=shows_ids, include_draft_logprobs=True)
    guards = Guard("api chunks"), Guard("api chunks")
    asked = SimpleNamespace(columns=0, prompt_columns=None, scores=lambda top: ChatScores.of(top, 0, None))
    made = feed.Feed("a", request, asked, float_style(), *guards)
    for one in results:
        made._withhold(one)
    return made


def shown(value, draft="null"):
    return f'{{"logprobs":{value},"draft_logprobs":{draft}}}'


def chunk_of(*choices):
    return f'{{"arrival_time":1,"choices":[{",".join(choices)}]}}'


def test_choices_of_one_chunk_get_each_its_own():
    """Results that a parser holds back have none, nor those that are no text; what is odd stays in."""

    def one(score, draft=None, **more):
        tops = [None if value is None else [[[1]], [[value]], [1]] for value in (score, draft)]
        return {"outputs": {"skipped": False, "top_logprobs": tops[0], "draft_top_logprobs": tops[1], **more}}

    def text(score):
        return ChatScores.of([[[1]], [[score]], [1]], 0, None).json(float_style())

    results = [one(-1.0), one(-2.0, skipped=True), one(-3.0, -4.0), one("odd"), one(None), one(-5.0)]
    del results[4]["outputs"]["skipped"]
    made = feed_of(results)
    assert [each["outputs"]["top_logprobs"] is None for each in results] == [1, 1, 1, 0, 1, 1]
    assert made.spliced('{"role":"assistant"}') == '{"role":"assistant"}'
    first = made.spliced(chunk_of(shown("null"), shown("null")))
    assert first == chunk_of(shown(text(-1.0)), shown(text(-3.0), text(-4.0)))
    assert made.spliced(chunk_of(shown('{"own":1}'))) == chunk_of(shown('{"own":1}'))
    assert made.spliced(chunk_of(shown("null"))) == chunk_of(shown(text(-5.0)))
    made = feed_of([one(-1.0, skipped=True)], shows_ids=True)
    assert made.spliced(chunk_of(shown("null"))) == chunk_of(shown(text(-1.0)))
    made = feed_of([one(-1.0, skipped=True), one(-2.0)], shows_ids=True)
    made.shows_skipped = False  # before April 2026
    assert made.spliced(chunk_of(shown("null"))) == chunk_of(shown(text(-2.0)))


@pytest.mark.falls_back
@pytest.mark.parametrize("api", APIS)
def test_a_generator_of_before_april_shows_no_result_without_text(api, monkeypatch):
    """The trial finds it where the two are mixed up: the double's is a newer one."""
    scripts = answer_scripts.scripts(api == CHAT, 80)
    monkeypatch.setattr(streams, "_SHOWN", "no such text")
    assert "is expected, ours is" in answers.first_difference(importlib.import_module(api), scripts)


@pytest.mark.parametrize("api", APIS)
def test_a_result_without_log_probabilities_key_is_fastdeploys_error(api, laned, spelling):
    def without():
        made = scored(api)
        del made[6]["outputs"]["top_logprobs"]
        return made

    chunks, *_ = the_same(api, spelling, without, **asked(api))
    assert "top_logprobs" in chunks[-2]


@pytest.mark.falls_back
def test_once_the_guard_is_off_choices_of_one_chunk_keep_their_own():
    def one(score):
        return {"outputs": {"skipped": False, "top_logprobs": [[[1]], [[score]], [1]]}}

    made = feed_of([one(-1.0)])
    for _ in range(3):
        made._scores_guard.failed(KeyError("in a test"))
    made._withhold(one(-2.0))
    text = ChatScores.of([[[1]], [[-1.0]], [1]], 0, None).json(float_style())
    assert made.spliced(chunk_of(shown("null"), shown('{"own":1}'))) == chunk_of(
        shown(text), shown('{"own":1}')
    )


@pytest.mark.falls_back
def test_a_chunk_without_a_place_is_an_error():
    result = {
        "outputs": {"skipped": False, "top_logprobs": [[[1]], [[-0.5]], [1]], "draft_top_logprobs": None}
    }
    with pytest.raises(ValueError, match="no place for log-probabilities"):
        feed_of([result]).spliced(chunk_of(shown('{"own":1}')))


@each("api", APIS)
@each("more", [{}, {"collect_metrics": True}])
@each("count", [0, 1])  # the chunk by which a stream becomes steady; its last one
@pytest.mark.falls_back
def test_what_cannot_be_put_into_its_chunk_is_an_error_of_the_stream(
    api, more, count, laned, spelling, monkeypatch
):
    """In a chunk of FastDeploy's without them the client would read that there are none."""
    part, works = feed.Feed._part, [True] * count

    def fails(made, text):
        if works and works.pop():
            return part(made, text)
        raise ValueError("planted")

    the_same(api, spelling, lambda: scored(api), **asked(api), **more)  # from now on there is a template
    monkeypatch.setattr(feed.Feed, "_part", fails)
    theirs, ours = both(api, spelling, lambda: scored(api), **asked(api), **more)
    assert "planted" in ours[0][-2]
    assert (ours[0][:-2], ours[0][-1], ours[1]) == (theirs[0][: len(ours[0]) - 2], theirs[0][-1], theirs[1])

"""Streams in the steady lane beside the same streams of FastDeploy's generators, here the double's.

With hand-overs at random places: tools/accept; recorded answers: real_tree/test_api.py.
"""

import asyncio
import gc
import importlib
import weakref
import zlib
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api import feed, lane
from fd_postproc.fastdeploy.api.activation import CHAT, COMPLETION
from fd_postproc.fastdeploy.api.chunks._chunks import Template
from fd_postproc.fastdeploy.api.chunks.float_style import float_style
from fd_postproc.fastdeploy.api.connections import NoResults
from fd_postproc.fastdeploy.events.counters import noted
from tests.lib.fakes import TwoOfThree
from tests.lib.restated_parsers import Thinks
from tests.lib.rows import each
from tools.accept import answer_scripts, answers, virtual_time

from .laned import (
    APIS,
    NAMES,
    answer,
    result,
    stream_of,
    the_same,
    turns,
)

# ---- The same chunks ---------------------------------------------------------------------------------------


@each("api", APIS)
@each(
    "options",
    [
        {},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"return_token_ids": True},
        {"include_stop_str_in_output": True},
    ],
)
def test_chunks_are_fastdeploys_and_most_are_written_by_the_lane(api, options, laned, processor_class):
    for count in ((9, 10), (10,)):
        laned.clear()
        chunks, said, _ = the_same(api, processor_class, lambda: answer(api), **options)
        assert said == ["released"]
        # Of 12: not the first, whose copy is the proof, nor the last; nor the second where no template was.
        assert len(laned) in count
        assert [chunk for chunk in chunks if chunk in laned] == laned


@pytest.mark.parametrize("api", APIS)
def test_with_a_parser_results_that_are_held_back_are_counted(api, laned, processor_class):
    def thought():
        ids = [[1], [10], [11, 2], [12], [12], [14], [15], [12, 13], [14], [10], [12], [4]]
        return [result(api, step, one, finished=one == [4]) for step, one in enumerate(ids)]

    usage = {"include_usage": True, "continuous_usage_stats": True}
    for options in ({}, {"stream_options": usage}, {"stream_options": usage, "return_token_ids": True}):
        laned.clear()
        the_same(api, processor_class, thought, reasoning=Thinks, **options)
        assert laned


@pytest.mark.falls_back
@pytest.mark.parametrize("api", APIS)
def test_random_answers_with_hand_overs_at_random_places(api):
    module, is_chat = importlib.import_module(api), api == CHAT
    scripts = [answer_scripts.random_script(number, is_chat) for number in (*range(40), 248)]
    assert answers.first_difference(module, scripts) is None


@pytest.mark.falls_back
@pytest.mark.parametrize("fault", ["count", "usage", "text", "nothing"])
def test_the_trial_finds_what_is_wrong_after_a_hand_over(fault, monkeypatch):
    """`usage` is in the last chunk only: no byte of another one says it."""
    joined, values = feed.Choice.joined, lane.Lane._values

    def less(choice):
        made = joined(choice)
        made["outputs"]["token_ids"].pop()
        return made

    def shown(stream, *told, **how):
        made = values(stream, *told, **how)
        made[1] += " " * (fault == "text" and "is_shown" not in how)
        return made

    scripts = [answer_scripts.random_script(number, True) for number in range(40)]
    if fault in ("count", "usage"):
        monkeypatch.setattr(feed.Choice, "joined", less)
    if fault == "usage":
        scripts = [one for one in scripts if "'continuous_usage_stats': True" not in str(one.options)]
    monkeypatch.setattr(lane.Lane, "_values", shown)
    if fault == "nothing":
        monkeypatch.setattr(lane.Lane, "_look", lambda *told: None)
    found = answers.first_difference(importlib.import_module(CHAT), scripts)
    expected = "ours has written nothing" if fault == "nothing" else "is expected, ours is"
    assert expected in found


# ---- What is not plain, and what fails ---------------------------------------------------------------------


@each("api", APIS)
@each(
    "more",
    [
        {"new_key": 1},
        {"error_msg": "Recover"},
        {"speculate_metrics": {"accepted_tokens": 1}},
        {"engine_recv_latest_token_time": 1002},
        {"sampling_mask": [[1]]},
        {"decode_type": 2},
        {"send_idx": 0},
        {"reasoning_token_num": 1.0},
        {"token_ids": []},
        "outputs",
    ],
)
def test_a_result_that_is_not_plain_goes_to_fastdeploys_generator(api, more, laned, processor_class):
    def with_one():
        made = answer(api)
        if more == "outputs":
            made[6]["outputs"]["new_key"] = None
        else:
            made[6] = result(api, 6, **more)
        return made

    the_same(api, processor_class, with_one, stream_options={"include_usage": True})
    laned.clear()
    the_same(api, processor_class, with_one, stream_options={"include_usage": True})
    # A plain chunk of FastDeploy's is the next proof, so one chunk is not the lane's, and else two are not.
    assert len(laned) == (9 if more == {"send_idx": 0} else 8)


def fails(*told, **how):
    raise KeyError("in a test")


@pytest.mark.falls_back
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "place",
    [(lane.Lane, "_choice_of"), (lane.Lane, "_values"), (lane.Lane, "_is_plain"), (feed.Feed, "_begin")],
)
def test_where_ours_raises_fastdeploys_generator_writes_the_chunk(
    api, place, laned, processor_class, monkeypatch
):
    stock = getattr(*place)
    for planted in (fails, TwoOfThree(stock)):
        monkeypatch.setattr(*place, lambda *told, _planted=planted, **how: _planted(*told, **how))
        the_same(api, processor_class, lambda: answer(api), stream_options={"include_usage": True})
    monkeypatch.setattr(*place, stock)


@pytest.mark.falls_back
@pytest.mark.parametrize("is_looking", [False, True])
def test_after_three_failures_in_a_row_all_streams_are_fastdeploys(
    is_looking, laned, processor_class, monkeypatch
):
    values = lane.Lane._values

    def planted(*told, **how):
        return fails() if is_looking or not how else values(*told, **how)

    with monkeypatch.context() as patch:
        patch.setattr(lane.Lane, "_values", planted)
        for _ in range(4):
            the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert not laned
    the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert not laned  # and it stays so
    _, stream = stream_of(CHAT, processor_class(None, None), True)
    assert not isinstance(stream, lane.Lane)
    the_same(COMPLETION, processor_class, lambda: answer(COMPLETION))
    assert laned  # whose guard is another one


@pytest.mark.falls_back
def test_failures_that_are_not_in_a_row_switch_it_not_off(laned, processor_class, monkeypatch):
    values, planted = lane.Lane._values, TwoOfThree(lane.Lane._values)
    monkeypatch.setattr(
        lane.Lane, "_values", lambda *told, **how: values(*told, **how) if how else planted(*told)
    )
    for _ in range(3):
        the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert planted.calls > 9
    assert laned


def test_a_stream_in_the_lane_leaves_it_once_the_guard_is_off(laned, processor_class):
    async def switch_off(number, client, reading):
        if number == 6 and isinstance(client.stream, lane.Lane):
            client.stream._guard.is_on = False

    the_same(CHAT, processor_class, lambda: answer(CHAT), between=switch_off)
    assert 0 < len(laned) < 6


@pytest.mark.parametrize("unknown", ["a value that it does not have", "a part that is never the same"])
def test_a_stream_whose_chunks_are_not_as_expected_stays_fastdeploys(
    unknown, laned, processor_class, monkeypatch
):
    values, module = lane.Lane._values, importlib.import_module(CHAT)
    stock = module.event

    def other(stream, outputs, choice, arrival, is_shown=False):
        return [choice.index, *values(stream, outputs, choice, arrival, is_shown)[1:3], 0.5, None, None]

    def event(model):
        chunk = stock(model)
        return f"{chunk[:-2]}: {zlib.crc32(chunk.encode())}\n\n"

    if "value" in unknown:
        monkeypatch.setattr(lane.Lane, "_values", other)
    else:
        monkeypatch.setattr(module, "event", event)
    the_same(CHAT, processor_class, lambda: answer(CHAT))
    assert not laned
    assert [one for one in noted() if "not as expected" in one]


@pytest.mark.parametrize("api", APIS)
def test_an_error_of_the_data_processor_reaches_the_client(api, laned, processor_class, monkeypatch):
    def refused():
        made = answer(api)
        made[6]["outputs"]["token_ids"] = [999]
        return made

    chunks, *_ = the_same(api, processor_class, refused)
    assert laned
    assert "999" in chunks[-2]


@pytest.mark.parametrize("api", APIS)
def test_errors_in_the_middle_of_a_stream(api, laned, processor_class):
    def failing():
        made = answer(api)
        made[6] |= {"error_code": 500, "error_msg": "it failed", "outputs": None}
        return made

    def silent():
        made = answer(api)
        made[6] = result(api, 6, error_code=500, error_msg="")
        return made

    def dropped():  # by the watchdog
        made = answer(api)
        made[6:] = [NoResults(OSError("the engine is gone"))]
        return made

    async def clear(number, client, reading):
        client.is_cleared = number >= 6

    for make, between, text in (
        (failing, None, "it failed"),
        (silent, None, '{"error": ""}'),
        (dropped, None, "the engine is gone"),
        (lambda: answer(api)[:8], clear, "the weights are cleared"),
    ):
        laned.clear()
        chunks, *_ = the_same(api, processor_class, make, between=between, return_token_ids=True)
        assert text in chunks[-2]
        assert laned


def test_a_lone_surrogate_is_fastdeploys(laned, processor_class, monkeypatch):
    class Odd(processor_class):
        def __init__(self, *told):
            super().__init__(*told)
            self.tokenizer.texts[99] = "\ud800"

    Odd.__module__ = "fastdeploy.restated"

    def odd():
        made = answer(CHAT)
        made[6]["outputs"]["token_ids"] = [99]
        return made

    chunks, *_ = the_same(CHAT, Odd, odd)
    assert "surrogates" in chunks[-2]


# ---- Time, cancellation, clean-up --------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("shows_ids", [False, True])
def test_silence_is_fastdeploys(api, shows_ids, laned, processor_class):
    """Its generator asks for the engine's health after its own time, once more for each such time."""

    async def pause(number, client, reading):
        if number in (6, 9):
            await asyncio.sleep(35)

    usage = {"include_usage": True}
    _, said, _ = the_same(
        api,
        processor_class,
        lambda: answer(api),
        between=pause,
        stream_options=usage,
        return_token_ids=shows_ids,
    )
    assert said.count("asked for health") == 6
    assert len(laned) > 4


@pytest.mark.parametrize("api", APIS)
def test_a_stream_that_is_cancelled_while_the_lane_waits(api, laned, processor_class):
    async def leave(number, client, reading):
        if number == 6:
            reading.cancel()
            await turns()
            client.connection_manager.request_map.setdefault(NAMES[api], SimpleNamespace(put_nowait=id))
        if number == 11:
            del client.connection_manager.request_map[NAMES[api]]

    chunks, said, _ = the_same(api, processor_class, lambda: answer(api), between=leave)
    assert said == [("aborted", NAMES[api], 1), "released"]
    assert chunks[-1] == "data: [DONE]\n\n"
    assert laned


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("taken", [2, 7], ids=["a chunk of FastDeploy's", "a chunk of the lane's"])
def test_a_client_that_leaves_in_the_middle_of_a_send_is_cleaned_up_without_the_collector(
    api, taken, laned, processor_class
):
    async def left(is_laned):
        client, stream = stream_of(api, processor_class(None, None), is_laned)

        async def send(stream):
            async for _ in stream:
                seen.append(1)
                if len(seen) == taken:
                    await asyncio.Event().wait()

        seen, sending = [], asyncio.ensure_future(send(stream))
        gone = weakref.ref(stream)
        del stream
        await turns()
        for one in answer(api)[:-1]:
            client.connection_manager.request_map[NAMES[api]].put_nowait([one])
        await turns(40)
        assert len(seen) == taken
        sending.cancel()
        await turns()
        del sending
        await turns()
        return client.said, dict(client.connection_manager.request_map), gone()

    gc.collect()
    gc.disable()
    try:
        for is_laned in (False, True):
            with virtual_time.Loop() as loop:
                loop.set_exception_handler(lambda *told: None)  # its generator ignores GeneratorExit
                assert loop.run_until_complete(left(is_laned)) == (["released"], {}, None)
    finally:
        gc.enable()
    assert bool(laned) is (taken > 2)


@pytest.mark.parametrize("ends", ["aclose", "athrow"])
def test_the_ends_of_a_generator(ends, laned, processor_class):
    async def ended():
        client, stream = stream_of(CHAT, processor_class(None, None), True)
        for one in answer(CHAT):
            client.connection_manager.request_map.get(NAMES[CHAT]).put_nowait([one])
        seen = [await stream.__anext__() for _ in range(6)]
        if ends == "athrow":
            seen.append(await stream.athrow(asyncio.CancelledError()))
            with pytest.raises(StopAsyncIteration):
                await stream.asend(None)
        else:
            with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
                await stream.aclose()
        return client.said, seen[-1]

    with virtual_time.Loop() as loop:
        said, last = loop.run_until_complete(ended())
    assert said[-1] == "released"
    assert (("aborted", NAMES[CHAT], 1) in said, last == "data: [DONE]\n\n") == (ends == "athrow",) * 2
    assert laned


def test_a_template_needs_its_values_in_the_chunk():
    style, chunk = float_style(), 'data: {"a":"x \\"b\\":1","b":1,"c":null,"d":[1,2],"e":0.5}\n\n'
    keys, values = ["b", "a", "c", "d", "e"], [1, 'x "b":1', None, [1, 2], 0.5]
    template = Template(chunk, keys, values, style)
    assert template.text(values) == chunk
    other = template.text([2, "é\n", "", [], -0.0])
    assert other == 'data: {"a":"é\\n","b":2,"c":"","d":[],"e":-0.0}\n\n'
    begun = template.headed('data: {"head":"other","a":"from here on"')
    assert begun.text(values) == f'data: {{"head":"other",{chunk[7:]}'
    with pytest.raises(ValueError, match="not found"):
        template.headed('data: {"b":1}')
    with pytest.raises(ValueError, match="not found"):
        Template(chunk, ["b"], [3], style)
    with pytest.raises(ValueError, match="zip"):
        Template(chunk, ["b", "c"], [1], style)

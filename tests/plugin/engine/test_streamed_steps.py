"""Steps that come as objects, as FastDeploy 2.6 has processed them: golden_streams/README.md."""

import pytest

from tests.lib.plugged import plugin_class, stock_class
from tests.lib.quiet import imported
from tests.lib.step_replay.compare import differences

pytestmark = pytest.mark.framework

# The receive loop's and the log's doings, which are ours.
OURS = ("op", "raised", "swallowed", "health", "transfer_polls", "error_logs", "loop_died")
# FastDeploy's class refuses it; what ours gets then are no objects: test_streamed_drafts.py.
SPECULATIVE = "v1_h_speculative"


def stream_replay():
    return imported("tests.lib.stream_replay")


@pytest.fixture(scope="module")
def traces():
    return stream_replay().traces()


@pytest.fixture(scope="module")
def ours():
    return plugin_class()


def without_drafts(traces, every=1):
    """Those that have no drafts, or every so-manieth of them."""
    return [(name, trace) for name, trace in traces.items() if name != SPECULATIVE][::every]


some = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])


def replayed(trace, cls, deliver, ignore=("op", "error_logs"), *, until_lost=False):
    """(steps compared, lines that say what differs in the first step that does, or at the end)."""
    compared = 0
    with stream_replay().StreamReplay(trace, cls, deliver) as replay:
        steps = replay.steps()
        for event in [event for event in trace.events if "after" in event]:
            lost = until_lost and stream_replay().is_lost(replay, event)
            step = next(steps)
            if lost:
                return compared, []
            lines = differences(step.expected, step.actual, ignore=ignore, sum_tolerance=1e-9)
            if lines:
                return compared, [f"step {step.number}: {line}" for line in lines]
            compared += 1
        for _ in steps:
            pass
        return compared, [f"end: {line}" for line in differences(*replay.end(), sum_tolerance=1e-9)]


def test_all_traces_are_there(traces):
    assert len(traces) == 102
    assert sum("after" in event for trace in traces.values() for event in trace.events) == 523


@some
def test_the_doubles_own_class_does_what_fastdeploys_did(traces, every):
    replay, chosen = stream_replay(), [*traces.items()][::every]
    found = {name: replayed(trace, stock_class(), replay.through_loop)[1] for name, trace in chosen}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_our_class_does_what_fastdeploys_did(traces, ours, every):
    """Up to the first step in which FastDeploy loses something."""
    replay, found, compared = stream_replay(), {}, 0
    for name, trace in without_drafts(traces, every):
        steps, found[name] = replayed(trace, ours, replay.one_message, OURS, until_lost=True)
        compared += steps
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert compared > 440 // every * 0.8


@some
def test_every_token_reaches_its_client_once_and_in_order(traces, ours, every):
    """In every step of a trace, also after those in which FastDeploy loses something."""
    replay, wrong = stream_replay(), {}
    for name, trace in without_drafts(traces, every):
        given, told = {}, {}
        with replay.StreamReplay(trace, ours, replay.one_message) as replaying:
            raises = False
            for step in replaying.steps():
                raises |= (
                    step.expected["raised"] == "postprocess:RuntimeError"
                )  # the scheduler has dropped it
                for request, task in step.actual["tasks"].items():
                    given.setdefault(request, []).extend(task.get("appended", ()))
                sent = [result for results in step.actual["put"] for result in results]
                sent += [
                    result for _, _, results in step.actual.get("split_connector", ()) for result in results
                ]
                for result in {id(one): one for one in sent}.values():
                    aborted = result["error_msg"] == "Aborted" or result["error_code"] == 500
                    if "token_ids" in result["outputs"] and not aborted and "clear_data" not in step.event:
                        row = (result["outputs"]["send_idx"], result["outputs"]["token_ids"])
                        rows = told.setdefault(result["request_id"], [])
                        rows += [row] if rows[-1:] != [row] else []  # a decode instance is told the same
            if raises:
                continue
        for request, tokens in given.items():
            rows = told.get(request, [])
            if [token for _, row in rows for token in row] != tokens:
                wrong[name, request] = tokens, rows
    assert wrong == {}


def first_put(trace, ours, number):
    replay = stream_replay()
    with replay.StreamReplay(trace, ours, replay.one_message) as replaying:
        steps = [step for step, _ in zip(replaying.steps(), range(number + 1), strict=False)]
    return steps[number]


def told(step):
    """(request, finished, tokens, error code) of each result."""
    results = [result for results in step.actual["put"] for result in results]
    return [
        (one["request_id"], one["finished"], one["outputs"].get("token_ids"), one["error_code"])
        for one in results
    ]


def test_a_recovery_stop_ends_its_request(traces, ours):
    step = first_put(traces["v1_h_recovery_stop"], ours, 1)
    assert told(step)[0] == ("req-0", True, [], 200)
    assert step.actual["put"][0][0]["error_msg"].startswith("Recover is not supported")
    assert ["finish_requests_async", "req-0"] in step.actual["rm_calls"]


def test_a_missing_start_is_left_out_of_the_metrics_only(traces, ours):
    step = first_put(traces["v1_h_no_start_time"], ours, 0)
    assert [one[1:] for one in told(step)] == [(False, [11], 200), (False, [12], 200)]


def test_an_end_at_the_instant_of_its_start_is_an_end(traces, ours):
    step = first_put(traces["v1_h_zero_time"], ours, 1)
    assert told(step)[0][:2] == ("z", True)


def test_a_slot_without_a_task_is_passed_over(traces, ours):
    step = first_put(traces["v1_h_none_task"], ours, 1)
    assert len(told(step)) == 2
    assert not any(finished for _, finished, _, _ in told(step))


def test_an_id_that_nobody_has_any_more_stops_no_step(traces, ours):
    step = first_put(traces["v1_h_preempt_unknown"], ours, 1)
    assert told(step) == [("req-0", False, [12], 200)]


def test_one_request_with_an_odd_object_ends_alone(traces, ours):
    """A pooling step for an ordinary request: FastDeploy loses the step, of all requests."""
    step = first_put(traces["v1_h_pooling_mixed_up"], ours, 1)
    codes = {name: code for name, _, _, code in told(step)}
    assert 500 in codes.values()
    assert any(code != 500 for code in codes.values())


def test_a_failed_receive_ends_nothing(traces, ours):
    for name in ("v1_h_receive_fails_first", "v1_h_receive_fails_later"):
        replay = stream_replay()
        with replay.StreamReplay(traces[name], ours, replay.one_message) as replaying:
            for step in replaying.steps():
                assert "loop_died" not in step.actual


def test_other_payloads_are_refused_and_counted(traces, ours):
    replay = stream_replay()
    with replay.StreamReplay(traces["v1_h_odd_payloads"], ours, replay.one_message) as replaying:
        for _ in replaying.steps():
            pass
        assert replaying.processor.counters.malformed == 2

"""What the plug-in's results are to their readers: FastDeploy's objects, made when they are looked at."""

import copy
import gc
import pickle
import sys
import types
import weakref

import msgpack
import numpy as np
import pytest

from fd_postproc.fastdeploy.engine.results._results import Messages, by_process
from tests.lib.quiet import imported
from tests.lib.rows import each

pytestmark = pytest.mark.framework

TOKENS = {0: [30, 31]}


@pytest.fixture
def rig(rig_of):
    rig = rig_of("spec_topk", ["only"])
    rig.step(TOKENS)  # a first token is handled with more care
    return rig


@pytest.fixture
def output(rig):
    (result,) = rig.step(TOKENS)["only"]
    return result.outputs


def as_sent():
    lists = imported("fastdeploy.worker.output").LogprobsLists
    return lists([[30, 0], [31, 0]], [[-3.75, -3.75], [-3.875, -3.875]], [30 % 7, 31 % 7])


def test_an_output_is_fastdeploys_and_kept(rig):
    (result,) = rig.step(TOKENS)["only"]
    output = result.outputs
    assert type(output) is imported("fastdeploy.engine.request").CompletionOutput
    assert output.top_logprobs == as_sent()
    assert type(output.top_logprobs) is type(as_sent())
    assert [type(part) for part in output.top_logprobs] == [list] * 3
    assert (output.logprob, output.token_ids, output.draft_token_ids) == (-3.875, [30, 31], [])
    assert result.outputs is output
    assert result.metrics is result.metrics
    assert result.outputs is output
    assert result.raw is result
    assert repr(result) == "RequestOutput(request_id=only, ...)"


@each("copied", [lambda one: one, copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_have_lists_and_metrics(rig, copied):
    (result,) = rig.step(TOKENS)["only"]
    rows = copied(result.outputs).top_logprobs
    assert rows == as_sent() == copied(result).outputs.to_dict()["top_logprobs"]
    assert type(rows) is type(as_sent())
    (result,) = rig.step(TOKENS)["only"]
    assert copied(result).metrics == rig.requests["only"].metrics


@each("first", ["outputs", "metrics", "num_cached_tokens", None])
def test_changes_stay(rig, first):
    """Of a part that is read alone, of any attribute, and whatever is looked at before."""
    (result,) = rig.step(TOKENS)["only"]
    _ = first and getattr(result, first)
    result.outputs.top_logprobs.logprobs[0][0] = -1.0
    result.outputs.token_ids, result.outputs.text = [7], "a text"
    assert result.to_dict()["outputs"]["top_logprobs"].logprobs[0][0] == -1.0
    assert result.to_dict()["outputs"]["token_ids"] == [7]
    result.request_id, result.finished, result.num_cached_tokens = "another", True, 5
    made = result.to_dict()
    assert (made["request_id"], made["finished"], made["num_cached_tokens"]) == ("another", True, 5)
    assert made["outputs"]["text"] == "a text"
    assert made == upstream_dict(result)
    del result.num_cached_tokens
    assert not hasattr(result, "num_cached_tokens")
    with pytest.raises(AttributeError, match="num_cached_tokens"):
        result.to_dict()
    assert not hasattr(result, "nothing")


@each("what", ["outputs", "metrics", "prompt"])
def test_attributes_can_be_deleted_and_set(rig, what):
    (result,) = rig.step(TOKENS)["only"]
    delattr(result, what)
    assert not hasattr(result, what)
    setattr(result, what, None)
    assert result.to_dict()[what] is None
    assert list(vars(result)) == list(vars(imported("fastdeploy.engine.request").RequestOutput("a")))


def test_slots_that_a_step_does_not_have(rig):
    step = rig.message({0: [30], 1: [31]})
    lists = rig.processor.plan.logprobs_lists
    assert lists(step, 1, 5).logprob_token_ids == [[31, 0]]
    for slot in -1, -(1 << 40), 2, 3, 1 << 40:
        assert lists(step, slot, 1) is None
    assert lists(step, 0, -1) is lists(step, 0, 0) is None


def test_a_waiting_result_keeps_its_own_rows_only(rig):
    step = rig.message(TOKENS, columns=21)
    before = sys.getrefcount(step)
    rig.processor.parts.steps.process(step)
    (result,) = rig.sink.puts[-1]
    assert sys.getrefcount(step) == before
    del step
    assert np.shape(result.outputs.top_logprobs.logprobs) == (2, 21)


# ---- metrics -----------------------------------------------------------------------------------------------


def upstream_dict(result):
    """What FastDeploy's own method makes of a result; a result of its own, for it reads everything."""
    return imported("fastdeploy.engine.request").RequestOutput.to_dict(copy.copy(result))


@each("read", [False, True])
def test_metrics_are_those_of_their_step(rig, read):
    task = rig.requests["only"]
    (early,) = rig.step(TOKENS)["only"]
    then = copy.copy(task.metrics)
    if read:
        assert early.metrics == then
    task.metrics.preempted_count += 1
    task.metrics.decode_recv_req_time = 5.0
    (late,) = rig.step(TOKENS)["only"]
    (latest,) = rig.step(TOKENS)["only"]
    assert late.to_dict()["metrics"]["preempted_count"] == then.preempted_count + 1
    assert latest.to_dict()["metrics"] == task.metrics.to_dict()
    assert early.to_dict()["metrics"] == then.to_dict()
    assert early.metrics == then
    assert early.metrics.model_execute_time < late.metrics.model_execute_time


def test_a_dictionary_is_a_copy(rig):
    (result,) = rig.step(TOKENS)["only"]
    made = result.to_dict()
    assert list(made["metrics"]) == list(upstream_dict(result)["metrics"])
    made["metrics"]["arrival_time"] = None  # of this dictionary alone
    (result,) = rig.step(TOKENS)["only"]
    made = result.to_dict()
    made["prompt_token_ids"].append(5)
    assert result.to_dict() == upstream_dict(result)
    assert result.to_dict()["prompt_token_ids"] == result.prompt_token_ids == []
    assert result.metrics.to_dict() == result.to_dict()["metrics"]


def test_metrics_that_are_no_plain_values(rig):
    rig.requests["only"].metrics.speculate_metrics = {"accepted": [1, 2]}
    (result,) = rig.step(TOKENS)["only"]
    made = result.to_dict()
    assert made == upstream_dict(result)
    made["metrics"]["speculate_metrics"]["accepted"].append(3)  # FastDeploy's copy is a deep one
    assert result.metrics.speculate_metrics == {"accepted": [1, 2]}


# ---- memory ------------------------------------------------------------------------------------------------


def test_the_garbage_collector_sees_one_object_a_result(rig_of):
    rig = rig_of("spec_topk", [str(number) for number in range(64)], slots=64)
    rig.step()
    rig.step()
    gc.collect()
    before = len(gc.get_objects())
    rig.step()
    assert len(gc.get_objects()) - before < 64 + 16


def test_a_cycle_through_a_result_is_found(rig):
    (result,) = rig.step(TOKENS)["only"]
    result.ic_req_data = {"itself": result}
    gone = weakref.ref(result)
    rig.sink.puts.clear()
    del result
    gc.collect()
    assert gone() is None


# ---- outputs: numbers until somebody asks ---------------------------------------------------------------


each_channel = each("channel", ["plain", "topk", "spec", "spec_topk"])


@pytest.fixture
def running(rig_of):
    """A function that makes a rig of a channel whose requests have had their first token."""

    def make(channel):
        rig = rig_of(channel, ("one", "two"))
        rig.step()
        return rig

    return make


def steady(rig):
    """A result in its steady state that nobody has looked at."""
    (made,) = rig.step({0: [11], 1: [12]})["one"]
    return made


def packed(rig, made):
    """The result in a message; the bytes are those of its dictionary."""
    message = Messages(rig.processor.plan).pack([[made]])
    assert message == msgpack.packb([[made.to_dict()]])
    return msgpack.unpackb(message)[0][0]


OF_A_REQUEST = [
    ("prompt_token_ids_len", 9, "prompt_token_ids_len", 9),
    ("num_cached_tokens", 7, "num_cached_tokens", 7),
    ("ic_req_data", {"a": 1}, "ic_req_data", {"a": 1}),
    ("multimodal_inputs", {"num_input_image_tokens": 3}, "num_input_image_tokens", 3),
    ("multimodal_inputs", {"num_input_video_tokens": 4}, "num_input_video_tokens", 4),
]


@each("name, value, key, shown", OF_A_REQUEST)
def test_what_changes_of_a_request_is_in_its_next_result(name, value, key, shown, running):
    rig = running("plain")
    before = packed(rig, steady(rig))
    setattr(rig.requests["one"], name, value)
    made, messages = steady(rig), Messages(rig.processor.plan)
    assert before[key] != shown
    messages.pack([[made]])
    assert messages.asked == 0  # a template's bytes
    assert packed(rig, made)[key] == shown


@each_channel
def test_lists_of_results_are_their_own(channel, running):
    rig = running(channel)
    made = steady(rig)
    made.prompt_token_ids.append(5)
    assert (made.prompt_token_ids, steady(rig).prompt_token_ids) == ([5], [])
    assert packed(rig, made)["prompt_token_ids"] == [5]
    made.prompt_token_ids = None
    assert packed(rig, made)["prompt_token_ids"] is None


@each("looked", [False, True])
@each_channel
def test_the_sender_gives_a_text(channel, running, looked):
    rig = running(channel)
    made, plan = steady(rig), rig.processor.plan
    assert not looked or made.outputs.text is None
    assert by_process(plan, {"one": [made]}, {}, None, True) == {None: [[made]]}
    assert packed(rig, made)["outputs"]["text"] == made.outputs.text == ""


@each_channel
def test_other_outputs(channel, running):
    """A pooling output, or none."""
    rig = running(channel)
    made = steady(rig)
    made.outputs = None
    assert packed(rig, made)["outputs"] is None
    made.outputs = types.SimpleNamespace(to_dict=lambda: {"data": [1.5]})
    assert packed(rig, made)["outputs"] == {"data": [1.5]}
    made.outputs = b"bytes"  # FastDeploy's own method says so
    with pytest.raises(AttributeError, match="to_dict"):
        made.to_dict()

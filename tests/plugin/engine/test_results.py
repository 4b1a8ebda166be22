"""What the plug-in's results are to their readers: values made when read, dictionaries."""

import copy
import gc
import pickle
import sys
import types

import msgpack
import numpy as np
import pytest

from fd_postproc.fastdeploy.engine.results._results import Messages, by_process
from tests.lib.quiet import imported
from tests.lib.rows import each

pytestmark = pytest.mark.framework

SLOT = "top_logprobs"
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


def kept(output):
    """What the slot of FastDeploy's class holds."""
    return vars(imported("fastdeploy.engine.request").CompletionOutput)[SLOT].__get__(output)


def as_sent():
    lists = imported("fastdeploy.worker.output").LogprobsLists
    return lists([[30, 0], [31, 0]], [[-3.75, -3.75], [-3.875, -3.875]], [30 % 7, 31 % 7])


def test_lists_are_made_when_asked_for_and_kept(output):
    assert type(kept(output)).__name__ == "Rows"
    first = output.top_logprobs
    assert first == as_sent()
    assert type(first) is type(as_sent())
    assert [type(part) for part in first] == [list] * 3
    assert output.top_logprobs is first
    assert kept(output) is first


@each("copied", [lambda one: one, copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_have_lists_and_metrics(rig, copied):
    (result,) = rig.step(TOKENS)["only"]
    rows = copied(result.outputs).top_logprobs
    assert rows == as_sent() == copied(result).outputs.to_dict()[SLOT]
    assert type(rows) is type(as_sent())
    (result,) = rig.step(TOKENS)["only"]
    assert copied(result).metrics == rig.requests["only"].metrics


def test_changes_stay(output):
    waiting = kept(output)
    output.top_logprobs.logprobs[0][0] = -1.0
    assert output.to_dict()[SLOT].logprobs[0][0] == -1.0
    output.top_logprobs = None
    assert output.top_logprobs is None
    assert output.to_dict()[SLOT] is None
    with pytest.raises(TypeError, match="top_logprobs cannot be of type Rows"):
        output.top_logprobs = waiting
    assert output.top_logprobs is None
    del output.top_logprobs
    assert not hasattr(output, SLOT)
    with pytest.raises(AttributeError, match="CompletionOutput has no value"):
        _ = output.top_logprobs


def test_slots_that_a_step_does_not_have(rig):
    step = rig.message({0: [30], 1: [31]})
    lists = rig.processor.plan.logprobs_lists
    assert lists(step, 1, 5).logprob_token_ids == [[31, 0]]
    for slot in -1, -(1 << 40), 2, 3, 1 << 40:
        assert lists(step, slot, 1) is None
    assert lists(step, 0, -1) is lists(step, 0, 0) is None


def test_only_outputs_have_it(output):
    attribute = vars(type(output))[SLOT]
    assert getattr(type(output), SLOT) is attribute
    for call in (attribute.__get__, attribute.__set__):
        with pytest.raises(TypeError, match="int is no CompletionOutput"):
            call(1, 2)


def test_a_waiting_result_keeps_its_own_rows_only(rig):
    step = rig.message(TOKENS, columns=21)
    before = sys.getrefcount(step)
    rig.processor.parts.steps.process(step)
    (result,) = rig.sink.puts[-1]
    assert sys.getrefcount(step) == before
    del step
    assert np.shape(result.outputs.top_logprobs.logprobs) == (2, 21)


# ---- metrics -----------------------------------------------------------------------------------------------


def waits(result):
    """Whether the metrics of a result have still to be made."""
    return "Moment" in [type(part).__name__ for part in gc.get_referents(result)]


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


def test_a_dictionary_needs_no_metrics(rig):
    (result,) = rig.step(TOKENS)["only"]
    made = result.to_dict()
    assert waits(result)
    assert made == upstream_dict(result)
    assert list(made["metrics"]) == list(upstream_dict(result)["metrics"])
    assert made["metrics"] is not result.to_dict()["metrics"]
    made["metrics"]["arrival_time"] = None  # of this dictionary alone
    assert result.to_dict() == upstream_dict(result)
    assert result.metrics.to_dict() == result.to_dict()["metrics"]


def test_metrics_that_are_no_plain_values(rig):
    rig.requests["only"].metrics.speculate_metrics = {"accepted": [1, 2]}
    (result,) = rig.step(TOKENS)["only"]
    made = result.to_dict()
    assert made == upstream_dict(result)
    made["metrics"]["speculate_metrics"]["accepted"].append(3)  # FastDeploy's copy is a deep one
    assert result.metrics.speculate_metrics == {"accepted": [1, 2]}


def test_metrics_can_be_replaced(rig):
    (result,) = rig.step(TOKENS)["only"]
    (moment,) = [part for part in gc.get_referents(result) if type(part).__name__ == "Moment"]
    result.metrics = None
    assert result.metrics is None
    assert result.to_dict()["metrics"] is None
    with pytest.raises(TypeError, match=r"RequestOutput\.metrics cannot be of type Moment"):
        result.metrics = moment
    del result.metrics
    assert not hasattr(result, "metrics")


# ---- dictionaries ------------------------------------------------------------------------------------------


def test_no_result_is_of_interest_to_the_garbage_collector(rig):
    (result,) = rig.step(TOKENS)["only"]
    result.ic_req_data = None  # FastDeploy's tuple is of interest until the collector has looked into it
    made = result.to_dict()
    parts = [result, result.outputs, result.metrics, result.outputs.token_ids, result.outputs.top_logprobs]
    assert not any(map(gc.is_tracked, parts))
    if sys.version_info < (3, 14):
        assert not any(map(gc.is_tracked, [made, made["outputs"], made["metrics"]]))
        made["itself"] = made
    assert gc.is_tracked(made)
    result.ic_req_data = {"anything": result}
    assert gc.is_tracked(result.to_dict())


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


def packed(messages, made):
    return messages.pack([[made]], msgpack.packb)


@each_channel
def test_made_once(channel, running):
    rig = running(channel)
    made = steady(rig)
    assert made.outputs is made.outputs
    assert made.outputs is not steady(rig).outputs
    assert made.outputs.draft_token_ids == []
    assert made.outputs.draft_token_ids is made.outputs.draft_token_ids
    made.prompt_token_ids.append(5)
    assert (made.prompt_token_ids, steady(rig).prompt_token_ids) == ([5], [])
    messages = Messages(rig.processor.plan)
    assert msgpack.unpackb(packed(messages, made))[0][0]["prompt_token_ids"] == [5]
    made.prompt_token_ids = None
    assert packed(messages, made) == msgpack.packb([[made.to_dict()]])
    assert messages.asked == 0


@each("looked", [False, True])
@each_channel
def test_the_sender_gives_a_text(channel, running, looked):
    rig = running(channel)
    made, plan = steady(rig), rig.processor.plan
    assert not looked or made.outputs.text is None
    assert by_process(plan, {"one": [made]}, {}, None, True) == {None: [[made]]}
    (sent,) = msgpack.unpackb(packed(Messages(plan), made))[0]
    assert sent["outputs"]["text"] == made.outputs.text == ""


@each_channel
def test_other_outputs(channel, running):
    """A pooling output, or none."""
    rig = running(channel)
    made, messages = steady(rig), Messages(rig.processor.plan)
    made.outputs = None
    assert msgpack.unpackb(packed(messages, made))[0][0]["outputs"] is None is made.to_dict()["outputs"]
    made.outputs = types.SimpleNamespace(to_dict=lambda: {"data": [1.5]})
    assert made.to_dict()["outputs"] == {"data": [1.5]}
    assert msgpack.unpackb(packed(messages, made))[0][0]["outputs"] == {"data": [1.5]}
    made.outputs = b"bytes"  # no value of ours: FastDeploy's own method says so
    assert made.outputs == b"bytes"
    with pytest.raises(AttributeError, match="to_dict"):
        made.to_dict()

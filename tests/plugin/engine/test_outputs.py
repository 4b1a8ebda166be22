"""A result's outputs: numbers until somebody asks, and no difference to whoever does."""

import types

import msgpack
import pytest

from fd_postproc.fastdeploy.engine.results._results import Messages, by_process
from tests.lib.rows import each

pytestmark = pytest.mark.framework

each_channel = each("channel", ["plain", "topk", "spec", "spec_topk"])


@pytest.fixture
def rigs(rig_of):
    """A function that makes a rig of a channel whose requests have had their first token."""

    def make(channel):
        rig = rig_of(channel, ("one", "two"))
        rig.step()
        return rig

    return make


def result(rig, name="one"):
    """A result in its steady state that nobody has looked at."""
    (made,) = rig.step({0: [11], 1: [12]})[name]
    return made


def packed(messages, made):
    return messages.pack([[made]], msgpack.packb)


@each_channel
def test_made_once(channel, rigs):
    rig = rigs(channel)
    made = result(rig)
    assert made.outputs is made.outputs
    assert made.outputs is not result(rig).outputs
    assert made.outputs.draft_token_ids == []
    assert made.outputs.draft_token_ids is made.outputs.draft_token_ids
    made.prompt_token_ids.append(5)
    assert (made.prompt_token_ids, result(rig).prompt_token_ids) == ([5], [])
    messages = Messages(rig.processor.plan)
    assert msgpack.unpackb(packed(messages, made))[0][0]["prompt_token_ids"] == [5]
    made.prompt_token_ids = None
    assert packed(messages, made) == msgpack.packb([[made.to_dict()]])
    assert messages.asked == 0


@each("looked", [False, True])
@each_channel
def test_the_sender_gives_a_text(channel, rigs, looked):
    rig = rigs(channel)
    made, plan = result(rig), rig.processor.plan
    assert not looked or made.outputs.text is None
    assert by_process(plan, {"one": [made]}, {}, None, True) == {None: [[made]]}
    (sent,) = msgpack.unpackb(packed(Messages(plan), made))[0]
    assert sent["outputs"]["text"] == made.outputs.text == ""


@each_channel
def test_other_outputs(channel, rigs):
    """A pooling output, or none."""
    rig = rigs(channel)
    made, messages = result(rig), Messages(rig.processor.plan)
    made.outputs = None
    assert msgpack.unpackb(packed(messages, made))[0][0]["outputs"] is None is made.to_dict()["outputs"]
    made.outputs = types.SimpleNamespace(to_dict=lambda: {"data": [1.5]})
    assert made.to_dict()["outputs"] == {"data": [1.5]}
    assert msgpack.unpackb(packed(messages, made))[0][0]["outputs"] == {"data": [1.5]}
    made.outputs = b"bytes"  # no value of ours: FastDeploy's own method says so
    assert made.outputs == b"bytes"
    with pytest.raises(AttributeError, match="to_dict"):
        made.to_dict()

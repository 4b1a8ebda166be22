"""Sampling masks that come with their step, and those that come beside it."""

from types import SimpleNamespace

import pytest

import fd_postproc as fp
from fd_postproc._core import _carrying
from tests.lib.rig import Rig

pytestmark = pytest.mark.framework


@pytest.fixture(params=["plain", "topk", "spec", "spec_topk"])
def rig(request):
    """A processor whose socket of masks gives one message after the other, and counts them."""
    made = Rig(request.param, ("a", "b"), use_sampling_mask=True)
    made.reads = 0
    made.processor.sampling_mask_zmq_server.close()

    def receive(block):
        assert block
        made.reads += 1
        return None, {0: [made.reads], 1: [made.reads]}

    made.processor.sampling_mask_zmq_server = SimpleNamespace(receive_pyobj_once=receive, close=lambda: None)
    yield made
    made.close()


def masks_of(rig, masks):
    """By request, the mask of its result of a step."""
    step = rig.message({0: [5], 1: [6]})
    if masks is not None:
        _carrying(step, masks, None)
        step = fp.decode(fp.encode(step, "compact"), rig.channel, mtype=2)
    rig.sink.puts.clear()
    rig.processor._process_step(step)
    return {result.request_id: result.outputs.sampling_mask for put in rig.sink.puts for result in put}


def test_each_step_has_its_masks_from_where_they_are(rig):
    """In any order: a step that carries none has a message of FastDeploy's."""
    one, two = ([7, 9], [1]) if not rig.channel.startswith("spec") else ([[7, 9]], [[1]])
    for _ in range(2):  # the first token, and in the steady state
        before = rig.reads
        assert masks_of(rig, {0: one, 1: two}) == {"a": one, "b": two}
        assert rig.reads == before
        assert masks_of(rig, None) == {"a": [before + 1], "b": [before + 1]}
        assert masks_of(rig, {1: two}) == {"a": None, "b": two}
        assert masks_of(rig, {}) == {"a": None, "b": None}
        assert rig.reads == before + 1


def test_an_engine_without_masks_does_not_look():
    rig = Rig("plain", ("a", "b"))
    assert masks_of(rig, {0: [7]}) == {"a": None, "b": None}
    rig.close()

"""Sampling masks travel in the compact frame of their step; FastDeploy sends them beside it."""

import os
import queue
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc.fastdeploy.worker import entry as worker
from fd_postproc.fastdeploy.worker import masks as masking
from tests.lib.sampled_steps import collect
from tests.lib.worker_side import CHANNEL, lines, restore_save_ops, sampled, save

pytestmark = pytest.mark.framework

MODULE = "model_executor__pre_and_post_process"


@pytest.fixture(params=["compact/1,masks/2", "compact/1"], ids=["in frames", "beside them"])
def peer(request, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", request.param)
    return request.param


@pytest.fixture
def plugged(double, originals, ops_queue, monkeypatch):
    """A function that turns the worker side on."""
    module = getattr(double, MODULE)
    for name in masking.NAMES:
        if hasattr(module, name):
            monkeypatch.setattr(module, name, getattr(module, name))  # and back
    masking._told.clear()
    monkeypatch.delenv("FD_POSTPROC_DISABLE", raising=False)
    yield worker.register
    restore_save_ops()


def masks_for(channel, requests, seed=0):
    """What FastDeploy's worker has (one array a slot, or a token), and by slot what its engine gets."""
    rng = np.random.default_rng(seed)

    def arrays(n):
        return [rng.integers(0, 150_000, rng.integers(0, 30)) for _ in range(n)]

    if not channel.startswith("spec"):
        made = arrays(requests.batch)
        return made, {slot: one.tolist() for slot, one in enumerate(made)}
    told, made = {}, []
    for slot, count in enumerate(requests.counts):
        if count > 0:
            own = arrays(count)
            told[slot] = [one.tolist() for one in own]
            made += own
    return made, told


def save_masked(double, channel, requests, made, waiting, **keywords):
    """`save` of a step with masks."""
    module = getattr(double, MODULE)
    kept = {}
    for name in ("save_output_normal", "save_output_specualate"):
        kept[name] = getattr(module, name)

    def with_masks(original):
        def call(*arguments, **named):
            sampler = arguments[1 if original.__name__ == "save_output_normal" else 0]
            sampler.sampling_mask = made
            return original(*arguments, **named, sampling_mask_async_queue=waiting)

        return call

    calls = SimpleNamespace(**{name: with_masks(one) for name, one in kept.items()})
    return save(SimpleNamespace(**{MODULE: calls}), channel, requests, **keywords)


def without_codes(requests):
    """FastDeploy's accepted tokens of a mask are counted by what is no code."""
    requests.counts[requests.counts < 0] = 0
    return requests


@CHANNEL
def test_masks_come_with_their_step_or_beside_it(
    channel, double, plugged, originals, peer, raised_limits, log
):
    plugged()
    waiting = queue.Queue()
    for seed in range(4):
        requests = sampled(channel, seed)
        if channel.startswith("spec"):
            without_codes(requests)
        made, told = masks_for(channel, requests, seed)
        [step] = collect(channel, partial(save_masked, double, channel, requests, made, waiting))
        requests.check(step)
        if "masks/2" in peer:
            assert step.masks == told
            assert step.dialect == "compact"
            assert waiting.empty()
        else:
            assert step.masks is None
            assert waiting.get_nowait()[0] is made
    assert not originals
    assert not lines(log, "WARNING") + lines(log, "ERROR")


@CHANNEL
def test_steps_without_masks_are_as_before(channel, double, plugged, monkeypatch, raised_limits):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,masks/2")
    plugged()
    requests = sampled(channel, 1)
    [step] = collect(channel, lambda: save(double, channel, requests))
    requests.check(step)
    assert step.masks is None
    assert (step.dialect == "compact") == channel.endswith("topk")


def test_masks_that_are_too_long_go_fastdeploys_way(double, plugged, monkeypatch, log):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,masks/2")
    plugged()
    requests, waiting = sampled("plain", 1), queue.Queue()
    made = [np.arange(60_000)] * requests.batch
    for _ in range(2):
        [step] = collect("plain", lambda: save_masked(double, "plain", requests, made, waiting))
        requests.check(step)
        assert step.masks is None
        assert waiting.get_nowait() == (made, None)
    assert len(lines(log, "WARNING", "left to FastDeploy's own socket", "too long")) == 1


def test_the_dialect_that_was_asked_for_has_no_place(double, plugged, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,masks/2")
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "packed")
    plugged()
    requests, waiting = sampled("plain", 1), queue.Queue()
    made, _ = masks_for("plain", requests)
    [step] = collect("plain", lambda: save_masked(double, "plain", requests, made, waiting))
    assert step.masks is None
    assert waiting.get_nowait()[0] is made


def test_a_step_that_is_left_to_fastdeploys_op_leaves_its_masks_too(
    double, plugged, originals, monkeypatch, log
):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,masks/2")
    plugged()
    requests, waiting = sampled("plain", 1), queue.Queue()
    made, _ = masks_for("plain", requests)
    monkeypatch.setattr(masking.MaskedOp, "__call__", lambda self, args: _refuse())
    [step] = collect("plain", lambda: save_masked(double, "plain", requests, made, waiting))
    requests.check(step)
    assert originals == ["save_output"]
    assert waiting.get_nowait()[0] is made
    assert lines(log, "WARNING", "save_output is left to FastDeploy's own op")


def _refuse():
    raise TypeError("a tensor of a test")


def test_what_fastdeploys_function_raises_is_raised_and_the_step_was_sent(double, plugged, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,masks/2")
    plugged()
    requests = sampled("plain", 1)
    made, _ = masks_for("plain", requests)

    def act():
        with monkeypatch.context() as patch:
            patch.setattr(getattr(double, MODULE), "_put_masks", lambda *arguments: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                save_masked(double, "plain", requests, made, queue.Queue())

    [step] = collect("plain", act)
    requests.check(step)
    assert step.masks is None
    requests = sampled("plain", 2)  # and the next step has nothing of it
    [step] = collect("plain", lambda: save(double, "plain", requests))
    requests.check(step)


def test_the_form_of_fastdeploy_2_5(ops_queue, monkeypatch):
    """There the function makes the dictionary, and gives it to the socket's client."""
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,masks/2")
    sent = []

    def save_output_normal(sampler_output, op, sampling_mask_zmq_client=None):
        op()
        sampling_mask_zmq_client.send_pyobj({0: [1, 2], 3: [4]})

    ours = masking.SaveOutput(save_output_normal)
    frame = fp.encode(fp.Step.from_arrays("plain", [1, -1], [5]), "compact")
    client = SimpleNamespace(send_pyobj=sent.append)
    output = SimpleNamespace(sampling_mask=[])

    def op():
        masking._thread.step.hold("plain", frame)

    [step] = collect("plain", lambda: ours(output, op, sampling_mask_zmq_client=client))
    assert step.masks == {0: [1, 2]}
    assert sent == []
    ours(output, lambda: None, client)
    assert sent == [{0: [1, 2], 3: [4]}]  # no step of ours


def test_groups_of_masks_are_fastdeploys():
    masks = [np.array([k]) for k in range(6)]
    assert masking.masks_by_slot((masks, None), 2) == {0: masks[0], 1: masks[1]}
    assert masking.masks_by_slot((masks, [2, 0, 1, 3]), 3) == {0: masks[:2], 2: masks[2:3]}
    assert masking.masks_by_slot((masks, [2, -1, 1]), 9) == {0: masks[:2], 2: masks[1:2]}  # it goes back, too


def test_an_engine_with_masks_announces_it(double, monkeypatch):
    from fd_postproc.fastdeploy.engine.activation import announce_peer

    monkeypatch.setenv("FD_POSTPROC_PEER", "")
    for arguments, words in (
        ((True, False, False, True), "compact/1,masks/2"),
        ((True, True, False, True), "compact/1,streams/3"),
        ((True, True, True, False), "compact/1,streams/3,streams/3+drafts"),
        ((True,), "compact/1"),
        ((False, False, False, True), None),
    ):
        announce_peer(*arguments)
        assert os.environ.get("FD_POSTPROC_PEER") == words

"""The plug-in's worker side, its engine side, or both: every pair understands each other."""

import pytest

import fd_postproc as fp
from fd_postproc.fastdeploy.worker import entry as worker
from tests.lib.rows import each
from tests.lib.worker_side import (
    LOGPROBS,
    Nothing,
    lines,
    receive,
    receive_ours,
    restore_save_ops,
    sampled,
    save,
)

pytestmark = pytest.mark.framework


def receiver(originals, patch, engine_ours, worker_ours):
    """A function that receives as the engine does, once each side is ours or FastDeploy's own."""
    if engine_ours:
        patch.setenv("FD_POSTPROC_PEER", "compact/1")
    restore_save_ops()
    originals.clear()
    if worker_ours:
        worker.register()
    return receive_ours if engine_ours else receive


PAIRS = [  # each channel with each engine and each worker; what is compact, with both
    *(("plain", False, False), ("plain", False, True), ("plain", True, True), ("topk", False, True)),
    *(("topk", True, False), ("topk", True, True), ("spec", False, True), ("spec", True, False)),
    *(("spec_topk", False, False), ("spec_topk", False, True), ("spec_topk", True, True)),
]


@each("channel, engine_ours, worker_ours", PAIRS)
def test_every_pair_of_sides_understands_each_other(
    channel, engine_ours, worker_ours, raised_limits, double, originals, ops_queue, monkeypatch, log
):
    log.clear()
    receive = receiver(originals, monkeypatch, engine_ours, worker_ours)
    for seed in range(3):
        requests = sampled(channel, seed)
        inputs = save(double, channel, requests)
        step = receive(channel)
        requests.check(step)
        assert inputs.told()
        compact = engine_ours and worker_ours and channel.endswith("topk")
        if channel.endswith("topk"):
            assert step.dialect == ("compact" if compact else "packed")
    assert bool(originals) != worker_ours
    assert len(lines(log, "INFO", "worker side active")) == worker_ours
    if worker_ours:
        assert lines(log, "INFO", "compact frames" if compact else "packed", f"channel {channel}")
    assert not lines(log, "WARNING", "left to") + lines(log, "ERROR")


@LOGPROBS
def test_frames_left_behind_do_no_harm_after_the_plug_in_is_turned_off(
    channel, raised_limits, double, plugged, monkeypatch
):
    plugged.anew()
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    for seed in range(3):
        save(double, channel, sampled(channel, seed))
    save(double, channel, sampled(channel, 9, batch=200, cols=21))  # in pieces
    restore_save_ops()
    monkeypatch.delenv("FD_POSTPROC_PEER")
    requests = sampled(channel, 5)
    save(double, channel, requests)
    requests.check(receive(channel))
    with pytest.raises(Nothing):
        receive(channel, patience=0)


@LOGPROBS
def test_messages_left_behind_are_read_after_it_is_turned_on(
    channel, raised_limits, double, plugged, monkeypatch
):
    restore_save_ops()
    before, after = sampled(channel, 1), sampled(channel, 2)
    save(double, channel, before)
    worker.register()
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    save(double, channel, after)
    with fp.Receiver(channel) as receiver:
        for requests, dialect in (before, "packed"), (after, "compact"):
            step = receiver.receive(60)
            requests.check(step)
            assert step.dialect == dialect

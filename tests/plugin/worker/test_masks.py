"""Sampling masks beside a queue go FastDeploy's own way, whoever sends the tokens."""

import queue
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fd_postproc.fastdeploy.worker import entry as worker
from tests.lib.sampled_steps import collect
from tests.lib.worker_side import CHANNEL, lines, restore_save_ops, sampled, save

pytestmark = pytest.mark.framework

MODULE = "model_executor__pre_and_post_process"


def masked(double, masks, waiting):
    """FastDeploy's functions, called with masks."""

    def with_masks(original):
        def call(*arguments, **named):
            sampler = arguments[1 if original.__name__ == "save_output_normal" else 0]
            sampler.sampling_mask = masks
            return original(*arguments, **named, sampling_mask_async_queue=waiting)

        return call

    names = "save_output_normal", "save_output_specualate"
    functions = {name: with_masks(getattr(getattr(double, MODULE), name)) for name in names}
    return SimpleNamespace(**{MODULE: SimpleNamespace(**functions)})


@CHANNEL
def test_masks_go_fastdeploys_way(channel, double, originals, ops_queue, monkeypatch, raised_limits, log):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    worker.register()
    waiting = queue.Queue()
    try:
        for seed in range(4):
            requests = sampled(channel, seed)
            masks = [np.arange(slot) for slot in range(requests.batch)]
            with_masks = masked(double, masks, waiting)
            [step] = collect(channel, partial(save, with_masks, channel, requests))
            requests.check(step)
            assert step.masks is None
            assert waiting.get_nowait()[0] is masks
    finally:
        restore_save_ops()
    assert not originals
    assert not lines(log, "WARNING") + lines(log, "ERROR")

"""Which saves the worker side leaves to FastDeploy's own ops, and that no step is lost."""

import queue
from functools import partial

import numpy as np
import pytest
from prometheus_client import REGISTRY

from fd_postproc.errors import UnfitNumber
from fd_postproc.fastdeploy.events.gauges import export_active
from tests.lib.frameworks import Paddle
from tests.lib.rows import each
from tests.lib.sampled_steps import KINDS, Requests, collect
from tests.lib.worker_side import CHANNEL, arrives, lines, receive_ours, sampled, save

pytestmark = pytest.mark.framework


class OnDevice:
    """Stands in for a tensor on another device than CUDA's, which only FastDeploy's op can read."""

    def __init__(self, tensor):
        self.tensor, self.shape, self.dtype = tensor, tensor.shape, tensor.dtype
        self.place = self

    def is_cpu_place(self):
        return False

    is_cuda_pinned_place = is_gpu_place = is_cpu_place

    def __str__(self):
        return "Place(xpu:0)"

    def data_ptr(self):
        raise AssertionError("a device address is no host address")

    is_contiguous = data_ptr

    def numpy(self):
        return self.tensor.numpy()


@pytest.mark.parametrize("peer", ["", "compact/1"])
def test_tensors_on_a_device(peer, raised_limits, double, plugged, monkeypatch, log):
    """Decided once, told once, and every step arrives."""
    monkeypatch.setenv("FD_POSTPROC_PEER", peer)
    requests = sampled("topk")
    inputs = KINDS["topk"](requests, tensor=Paddle().tensor)
    arrays = inputs.sampler.logprobs_tensors
    arrays.logprobs = OnDevice(arrays.logprobs)
    for _ in range(3):
        double.model_executor__pre_and_post_process.save_output_normal(
            inputs.model, inputs.sampler, inputs.share
        )
        requests.check(receive_ours("topk"))
        requests.preempted[:] = False  # the marks are gone after the first step
    assert plugged == ["save_output_topk"] * 3
    [line] = lines(log, "WARNING", "is left to")
    assert "save_output_topk is left to FastDeploy's own op: logprob_scores is on" in line
    save(double, "plain", sampled("plain"))
    assert plugged == ["save_output_topk"] * 3  # each op is decided on its own


def test_draft_logprobs_come_without_preempted_idx(raised_limits, double, plugged, log):
    """The call of FastDeploy's proposer, 12 arguments, for which its own op raises: nobody was preempted."""
    cuda = double.spec_decode__mtp_cuda
    for batch in 5, 2, 9:  # also in a later step of more requests
        requests = sampled("spec_topk", batch=batch)
        inputs = KINDS["spec_topk"](requests, tensor=Paddle().tensor)
        proposer = inputs.proposer | {"cu_batch_token_offset": inputs.sampler.cu_batch_token_offset}
        cuda.save_draft(inputs.sampler, proposer, batch, 0, False)
        step = receive_ours("spec_topk")
        assert (step.flag, step.batch) == (cuda.DRAFT, batch)
        assert step.rows == sum(count for count in step.counts if count > 0)
    assert plugged == []
    save(double, "spec_topk", requests)  # the same op object, FastDeploy's usual call
    requests.check(receive_ours("spec_topk"))


def test_a_call_of_another_form(raised_limits, double, plugged, monkeypatch, log):
    given = []
    op = double.spec_decode__mtp_cuda.speculate_save_output_topk
    monkeypatch.setattr(op, "original", lambda *arguments: given.append(arguments))
    for _ in range(2):
        op(*range(9))
    assert given == [tuple(range(9))] * 2
    [line] = lines(log, "WARNING", "are left to")
    assert "9 arguments" in line
    arrives(double, "spec_topk")
    assert len(given) == 2


@CHANNEL
def test_masks_go_fastdeploys_way(channel, double, plugged, monkeypatch, raised_limits, log):
    """Sampling masks beside a queue, whoever sends the tokens."""
    plugged.anew()
    log.clear()
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    waiting = queue.Queue()
    for seed in range(4):
        requests = sampled(channel, seed)
        masks = [np.arange(slot) for slot in range(requests.batch)]
        send = partial(save, double, channel, requests, masks, sampling_mask_async_queue=waiting)
        [step] = collect(channel, send)
        requests.check(step)
        assert step.masks is None
        assert waiting.get_nowait()[0] is masks
    assert not plugged
    assert not lines(log, "WARNING") + lines(log, "ERROR")


@each("every_rank", [False, True])
@CHANNEL
def test_ranks_above_0_are_left_to_fastdeploy(channel, every_rank, raised_limits, double, plugged):
    """Older builds let them send if save_each_rank says so, newer ones do not."""
    plugged.clear()
    inputs = KINDS[channel](sampled(channel), tensor=Paddle().tensor, mp_rank=1)
    calls = double.model_executor__pre_and_post_process
    if channel.startswith("spec"):
        calls.save_output_specualate(inputs.sampler, inputs.model, inputs.share, None, 1, 1, every_rank)
    else:
        calls.save_output_normal(inputs.model, inputs.sampler, inputs.share, save_each_rank=every_rank)
    assert len(plugged) == 1


@each("channel", ["spec", "spec_topk"])
def test_first_tokens_of_every_rank(channel, raised_limits, double, plugged):
    """All builds send these if save_each_rank says so; ours, too."""
    requests = Requests(np.random.default_rng(3), 3, 2, 1)
    inputs = KINDS[channel](requests, tensor=Paddle().tensor, mp_rank=1)
    calls = double.model_executor__pre_and_post_process
    calls.save_output_specualate(
        inputs.sampler, inputs.model, inputs.share, inputs.proposer, 1, 0, True, is_mtp_prefill=True
    )
    step = receive_ours(channel)
    assert list(step.counts) == [count + 1 if count > 0 else count for count in requests.counts]
    assert plugged == []


def test_a_bad_setting_loses_no_step(raised_limits, double, plugged, monkeypatch, log):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "packd")
    for seed in range(2):
        arrives(double, "topk", seed)
    assert len(plugged) == 2
    [line] = lines(log, "WARNING", "is left to")
    assert "FD_POSTPROC_DIALECT='packd'" in line


def test_numbers_that_fit_no_message_are_not_given_to_fastdeploy(raised_limits, double, plugged):
    """Its op would write out of bounds."""
    requests = sampled("spec", batch=3)
    requests.counts[:], requests.chunked[:], requests.preempted[:] = 7, False, False
    with pytest.raises(UnfitNumber, match="at most 6"):
        save(double, "spec", requests)
    assert plugged == []
    requests.counts[:] = 2
    save(double, "spec", requests)
    requests.check(receive_ours("spec"))


def test_a_removed_queue_costs_no_step(double, plugged, ops_queue):
    save(double, "plain", sampled("plain", 1))
    ops_queue.open("plain").remove()
    arrives(double, "plain", 2)


def test_the_gauge_says_that_the_worker_side_is_in_use(raised_limits, double, plugged, monkeypatch):
    exported = []
    monkeypatch.setattr(
        "fd_postproc.fastdeploy.worker.save_ops.export_active", lambda *one: exported.append(one)
    )
    for _ in range(2):
        save(double, "plain", sampled("plain"))
    assert exported == [("worker", True)]


@pytest.mark.parametrize(("where", "calls"), [("before", 3), ("after", 0)])
@pytest.mark.falls_back
def test_an_exception_of_ours(where, calls, raised_limits, double, plugged, monkeypatch, log):
    """Every step arrives once: FastDeploy's op sends it, unless ours had sent it before it raised."""
    op = double.model_executor__pre_and_post_process.save_output_topk
    own = op._own

    def fails(*args):
        if where == "after":
            own(*args)
        raise KeyError("in a test")

    monkeypatch.setattr(op, "_own", fails)
    requests = sampled("topk")
    for _ in range(3):
        save(double, "topk", requests)
        requests.check(receive_ours("topk"))
        requests.preempted[:] = False
    assert plugged == ["save_output_topk"] * calls
    assert (op._state == "original") is (where == "before")
    assert len(lines(log, "ERROR", "save ops failed", "KeyError")) == 1


def test_a_workers_gauge_names_its_rank(monkeypatch):
    """One page has those of all ranks: a fall-back of one of them shows."""
    for rank, active, side in ("0", True, "worker"), ("1", False, "worker 1"), ("7", True, "worker 7"):
        monkeypatch.setenv("PADDLE_TRAINER_ID", rank)
        export_active("worker", active)
        assert REGISTRY.get_sample_value("fd_postproc_active", {"side": side}) == active
    assert REGISTRY.get_sample_value("fd_postproc_active", {"side": "worker"}) == 1

"""The worker side of the plug-in: which save op sends, in what form, and what the log says."""

import importlib.util
import logging
import os
import sys
import threading
import time
import types

import numpy as np
import pytest
import stock_ops
import sysv_ipc
from frameworks import Paddle
from nursery import with_paddle
from quiet import Double, imported
from sampled_steps import KINDS, Requests, collect

import fd_postproc as fp
from fd_postproc import ops, queues
from fd_postproc.errors import MessageTooBig, UnfitNumber
from fd_postproc.fastdeploy import build, logs
from fd_postproc.fastdeploy.worker import entry as worker
from fd_postproc.fastdeploy.worker.sending import SIGNATURES, SaveOp
from fd_postproc.ops import watch as watch_module

pytestmark = pytest.mark.framework

CHANNEL = pytest.mark.parametrize("channel", KINDS)
LOGPROBS = pytest.mark.parametrize("channel", ["topk", "spec_topk"])


@pytest.fixture
def double():
    """The double's modules by name."""
    return Double()


@pytest.fixture
def log():
    """What FastDeploy's log got: (level, text)."""
    told = []

    class Keep(logging.Handler):
        def emit(self, record):
            told.append((record.levelname, record.getMessage()))

    keep, logger = Keep(), logging.getLogger("fastdeploy")
    logger.addHandler(keep)
    yield told
    logger.removeHandler(keep)


def lines(log, level, *words):
    return [text for found, text in log if found == level and all(word in text for word in words)]


@pytest.fixture
def originals(double, monkeypatch):
    """FastDeploy's own save ops, in every place; names of those that were called."""
    called = []
    places = [
        double.model_executor__ops__gpu,
        double.model_executor__pre_and_post_process,
        double.spec_decode__mtp,
        double.spec_decode__mtp_cuda,
    ]
    for name, op in stock_ops.SAVE_OPS.items():

        def save(*arguments, name=name, op=op):
            called.append(name)
            return op(*arguments)

        for place in places:
            if hasattr(place, name):
                monkeypatch.setattr(place, name, save)
    return called


@pytest.fixture
def plugged(originals, ops_queue, monkeypatch):
    """The worker side, turned on; names of FastDeploy's ops that were called all the same."""
    monkeypatch.delenv("FD_POSTPROC_DISABLE", raising=False)
    worker.register()
    yield originals
    worker.restore_save_ops()


def sampled(channel, seed=1, batch=5, cols=3):
    return Requests(np.random.default_rng(seed), batch, cols, 6, plain=False)


def save(double, channel, requests, **keywords):
    """What FastDeploy's worker does after sampling."""
    calls = double.model_executor__pre_and_post_process
    inputs = KINDS[channel](requests, tensor=Paddle().tensor)
    inputs.share["last_preempted_idx"] = inputs.preempted
    if channel.startswith("spec"):
        calls.save_output_specualate(
            inputs.sampler, inputs.model, inputs.share, inputs.proposer, 0, 0, **keywords
        )
    else:
        calls.save_output_normal(inputs.model, inputs.sampler, inputs.share, **keywords)
    return inputs


# ---- Turning it on ----------------------------------------------------------------------------------------

LOADED = """
import json, sys, warnings
warnings.simplefilter("ignore")
import fastdeploy.model_executor.pre_and_post_process as early
import fastdeploy.worker.gpu_worker
import fastdeploy.model_executor.ops.gpu as ops
from fastdeploy.spec_decode import mtp, mtp_cuda
def ours(module):
    return sorted(name for name, value in vars(module).items() if type(value).__name__ == "SaveOp")
print(json.dumps([ours(module) for module in (ops, early, mtp, mtp_cuda)]))
"""


@pytest.mark.parametrize(
    ("settings", "active"),
    [
        ({"FD_PLUGINS": "fd_postproc"}, True),
        ({"FD_PLUGINS": "another,fd_postproc", "FD_POSTPROC_DISABLE": "0"}, True),
        ({}, True),
        ({"FD_PLUGINS": "another"}, False),
        ({"FD_PLUGINS": "fd_postproc", "FD_POSTPROC_DISABLE": "1"}, False),
    ],
)
def test_fastdeploy_loads_it_in_a_worker(settings, active):
    names = ("FD_PLUGINS", "FD_POSTPROC_DISABLE", "FD_POSTPROC_FASTDEPLOY")
    environment = {name: value for name, value in os.environ.items() if name not in names} | settings
    everywhere = [sorted(SIGNATURES)] * 2 + [["speculate_save_output_topk"]] * 2
    assert with_paddle(LOADED, environment) == (everywhere if active else [[]] * 4)


def test_on_and_off(double, plugged):
    modules = [double.model_executor__ops__gpu, double.model_executor__pre_and_post_process]
    first = [getattr(module, name) for module in modules for name in SIGNATURES]
    assert all(isinstance(op, SaveOp) for op in first)
    worker.register()  # a second time changes nothing
    assert [getattr(module, name) for module in modules for name in SIGNATURES] == first
    worker.restore_save_ops()
    assert not [name for module in modules for name, op in vars(module).items() if isinstance(op, SaveOp)]
    assert logs._forward not in logging.getLogger("fd_postproc").handlers


def test_it_stands_aside_when_told_to(double, originals, log, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_DISABLE", "1")
    worker.register()
    assert not isinstance(double.model_executor__ops__gpu.save_output, SaveOp)
    assert lines(log, "INFO", "FD_POSTPROC_DISABLE")


@pytest.mark.parametrize(
    ("value", "off"), [("", False), ("0", False), (" 0 ", False), ("1", True), ("yes", True)]
)
def test_values_of_the_switch(double, originals, monkeypatch, value, off):
    monkeypatch.setenv("FD_POSTPROC_DISABLE", value)
    worker.register()
    found = isinstance(double.model_executor__ops__gpu.save_output, SaveOp)
    worker.restore_save_ops()
    assert found != off


def test_other_platforms_are_left_alone(double, originals, log, monkeypatch):
    monkeypatch.setattr(double.platforms.current_platform, "is_cuda", lambda: False, raising=False)
    worker.register()
    assert not isinstance(double.model_executor__ops__gpu.save_output, SaveOp)
    assert lines(log, "INFO", "CUDA build")


def test_a_build_without_ops(double, monkeypatch):
    """What FastDeploy puts in the place of ops that could not be loaded."""

    class NoneModule:
        def __getattr__(self, name):
            return None

    monkeypatch.setitem(sys.modules, "fastdeploy.model_executor.ops.gpu", NoneModule())
    assert worker.replace_save_ops() == []
    worker.restore_save_ops()


def test_it_never_keeps_fastdeploy_from_starting(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "fastdeploy.platforms", None)  # importing it raises
    worker.register()
    assert "the worker side is off" in caplog.text
    monkeypatch.setitem(sys.modules, "fastdeploy.utils", None)
    assert logs.fastdeploy_log().name == "fd_postproc"


# ---- Either side alone, and both --------------------------------------------------------------------------


@pytest.fixture
def sides(request, double, originals, ops_queue, monkeypatch):
    """(engine, worker): whether each is ours.  A function that receives as the engine does."""
    engine_ours, worker_ours = request.param
    request.getfixturevalue("raised_limits")
    if engine_ours:
        monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    if worker_ours:
        worker.register()
    yield (
        (stock_ops.receive_ours if engine_ours else lambda channel: stock_ops.receive(double, channel)),
        request.param,
    )
    worker.restore_save_ops()


SIDES = pytest.mark.parametrize(
    "sides",
    [(engine, own) for engine in (False, True) for own in (False, True)],
    indirect=True,
    ids=["both stock", "worker ours", "engine ours", "both ours"],
)


@CHANNEL
@SIDES
def test_every_pair_of_sides_understands_each_other(channel, sides, raised_limits, double, originals, log):
    receive, (engine_ours, worker_ours) = sides
    for seed in range(3):
        requests = sampled(channel, seed)
        inputs = save(double, channel, requests)
        step = receive(channel)
        requests.check(step)
        assert inputs.told()
        compact = engine_ours and worker_ours and channel.endswith("topk")
        assert step.dialect == (
            "compact" if compact else "packed" if channel.endswith("topk") else step.dialect
        )
    assert bool(originals) != worker_ours
    assert len(lines(log, "INFO", "worker side active")) == worker_ours
    if worker_ours:
        assert lines(log, "INFO", "compact frames" if compact else "packed", f"channel {channel}")
    assert not lines(log, "WARNING", "left to") + lines(log, "ERROR")


@pytest.mark.parametrize("channel", ["spec", "spec_topk"])
@SIDES
def test_first_tokens(channel, sides, raised_limits, double, originals):
    receive, (_, worker_ours) = sides
    requests = Requests(np.random.default_rng(3), 5, 3, 1 if channel == "spec" else 5)
    requests.counts[:2] = 1, 0
    save(double, channel, requests, is_mtp_prefill=True)
    step = receive(channel)
    live = [n + 1 if n > 0 else n for n in requests.counts]
    assert list(step.counts) == live
    assert [[row[0] for row in rows] for rows in step.tolists()[0]] == [
        requests.ids[i, :n, 0].tolist() for i, n in enumerate(live)
    ]
    assert bool(originals) != worker_ours


def test_logprobs_under_default_limits(default_limits, double, plugged, monkeypatch, log):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    requests = sampled("spec_topk", 4, batch=64, cols=21)
    [step] = collect("spec_topk", lambda: save(double, "spec_topk", requests))
    requests.check(step)
    assert step.dialect == "compact"
    assert not plugged
    assert not lines(log, "ERROR")


@LOGPROBS
def test_frames_left_behind_do_no_harm_after_the_plug_in_is_turned_off(
    channel, raised_limits, double, plugged, monkeypatch
):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    for seed in range(3):
        save(double, channel, sampled(channel, seed))
    save(double, channel, sampled(channel, 9, batch=200, cols=21))  # in pieces
    worker.restore_save_ops()
    monkeypatch.delenv("FD_POSTPROC_PEER")
    requests = sampled(channel, 5)
    save(double, channel, requests)
    requests.check(stock_ops.receive(double, channel))
    with pytest.raises(stock_ops.Nothing):
        stock_ops.receive(double, channel, patience=0)


@LOGPROBS
def test_messages_left_behind_are_read_after_it_is_turned_on(
    channel, raised_limits, double, plugged, monkeypatch
):
    worker.restore_save_ops()
    before, after = sampled(channel, 1), sampled(channel, 2)
    save(double, channel, before)
    worker.register()
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    save(double, channel, after)
    with fp.Receiver(channel) as receiver:
        for requests, dialect in (before, "packed"), (after, "compact"):
            step = receiver.receive(5)
            requests.check(step)
            assert step.dialect == dialect


@pytest.mark.parametrize(
    ("settings", "dialect"),
    [
        ({"FD_POSTPROC_DIALECT": "legacy"}, "legacy"),
        ({"FD_POSTPROC_DIALECT": "compact"}, "compact"),
        ({"FD_POSTPROC_DIALECT": "packed", "FD_POSTPROC_PEER": "compact/1"}, "packed"),
        ({"FD_POSTPROC_DIALECT": "auto", "FD_POSTPROC_PEER": "other/3,compact/1"}, "compact"),
        ({"FD_POSTPROC_PEER": "compact/2"}, "packed"),
    ],
)
@LOGPROBS
def test_a_named_dialect_and_what_the_peer_says(
    channel, settings, dialect, raised_limits, double, plugged, monkeypatch
):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    requests = sampled(channel)
    save(double, channel, requests)
    step = stock_ops.receive_ours(channel)
    requests.check(step)
    assert (step.dialect, plugged) == (dialect, [])


# ---- What is left to FastDeploy's own ops -----------------------------------------------------------------


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
        requests.check(stock_ops.receive_ours("topk"))
        requests.preempted[:] = False  # the marks are gone after the first step
    assert plugged == ["save_output_topk"] * 3
    [line] = lines(log, "WARNING", "is left to")
    assert "save_output_topk is left to FastDeploy's own op: logprob_scores is on" in line
    save(double, "plain", sampled("plain"))
    assert plugged == ["save_output_topk"] * 3  # each op is decided on its own


def test_a_call_of_another_form(raised_limits, double, plugged, monkeypatch, log):
    """The proposer of newer versions gives no preempted_idx: FastDeploy's op knows what that means."""
    given = []
    cuda = double.spec_decode__mtp_cuda
    monkeypatch.setattr(
        cuda.speculate_save_output_topk, "original", lambda *arguments: given.append(arguments)
    )
    requests = sampled("spec_topk")
    inputs = KINDS["spec_topk"](requests, tensor=Paddle().tensor)
    for _ in range(2):
        cuda.save_draft(
            inputs.sampler,
            inputs.proposer | {"cu_batch_token_offset": inputs.sampler.cu_batch_token_offset},
            5,
            0,
            False,
        )
    assert [len(arguments) for arguments in given] == [12, 12]
    [line] = lines(log, "WARNING", "are left to")
    assert "12 arguments" in line
    save(double, "spec_topk", requests)  # the same op object, FastDeploy's usual call
    requests.check(stock_ops.receive_ours("spec_topk"))
    assert len(given) == 2


@pytest.mark.parametrize("every_rank", [False, True])
@CHANNEL
def test_ranks_above_0_are_left_to_fastdeploy(channel, every_rank, raised_limits, double, plugged):
    """Older builds let them send if save_each_rank says so, newer ones do not."""
    inputs = KINDS[channel](sampled(channel), tensor=Paddle().tensor, mp_rank=1)
    calls = double.model_executor__pre_and_post_process
    if channel.startswith("spec"):
        calls.save_output_specualate(inputs.sampler, inputs.model, inputs.share, None, 1, 1, every_rank)
    else:
        calls.save_output_normal(inputs.model, inputs.sampler, inputs.share, save_each_rank=every_rank)
    assert len(plugged) == 1


@pytest.mark.parametrize("channel", ["spec", "spec_topk"])
def test_first_tokens_of_every_rank(channel, raised_limits, double, plugged):
    """All builds send these if save_each_rank says so; ours, too."""
    requests = Requests(np.random.default_rng(3), 3, 2, 1)
    inputs = KINDS[channel](requests, tensor=Paddle().tensor, mp_rank=1)
    calls = double.model_executor__pre_and_post_process
    calls.save_output_specualate(
        inputs.sampler, inputs.model, inputs.share, inputs.proposer, 1, 0, True, is_mtp_prefill=True
    )
    stock_ops.receive_ours(channel)
    assert plugged == []


def test_a_bad_setting_loses_no_step(raised_limits, double, plugged, monkeypatch, log):
    monkeypatch.setenv("FD_POSTPROC_DIALECT", "packd")
    for seed in range(2):
        requests = sampled("topk", seed)
        save(double, "topk", requests)
        requests.check(stock_ops.receive_ours("topk"))
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
    requests.check(stock_ops.receive_ours("spec"))


def test_a_removed_queue_costs_no_step(double, plugged, ops_queue):
    save(double, "plain", sampled("plain", 1))
    ops_queue.open("plain").remove()
    requests = sampled("plain", 2)
    save(double, "plain", requests)
    requests.check(stock_ops.receive_ours("plain"))


# ---- What the build is like -------------------------------------------------------------------------------


@LOGPROBS
def test_the_dialect_of_the_build(channel, double, tmp_path, monkeypatch):
    assert build.stock_dialect(channel) == "packed"
    shift = {"topk": 16, "spec_topk": 8}[channel]
    for code, dialect in [("x", "legacy"), (f"x >> {shift} & 3", "packed"), (f"x >> {24 - shift}", "legacy")]:
        file = tmp_path / f"other_{len(code)}.py"
        file.write_text(f"class TokenProcessor:\n    def read(self, x):\n        return {code}\n")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, file.stem, module)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, "fastdeploy.output.token_processor", module)
        assert build.stock_dialect(channel) == dialect
    monkeypatch.setitem(sys.modules, "fastdeploy.output.token_processor", types.ModuleType("empty"))
    assert build.stock_dialect(channel) is None


@pytest.mark.parametrize("reads", ["legacy", None])
@LOGPROBS
def test_an_engine_that_may_read_another_dialect(
    channel, reads, raised_limits, double, plugged, monkeypatch, log
):
    """A packed message crashes a legacy receiver."""
    monkeypatch.setattr("fd_postproc.fastdeploy.worker.sending.stock_dialect", lambda channel: reads)
    save(double, channel, sampled(channel))
    assert len(plugged) == 1
    assert lines(log, "WARNING", "reads")


@pytest.mark.parametrize("reads", ["legacy", None])
@LOGPROBS
def test_our_engine_reads_all_dialects(channel, reads, raised_limits, double, plugged, monkeypatch):
    monkeypatch.setattr("fd_postproc.fastdeploy.worker.sending.stock_dialect", lambda channel: reads)
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    save(double, channel, sampled(channel))
    assert plugged == []


def own_queues():
    return {queue.key for queue in queues.list_queues() if queue.owner == os.geteuid()}


def asks_for(key_of):
    """A get_output_ep that makes its queue's key by another rule."""

    def get_output_ep(x, rank, wait):
        key = key_of(int(os.environ["INFERENCE_MSG_QUEUE_ID"]), os.stat("/dev/shm"))
        sysv_ipc.MessageQueue(key, sysv_ipc.IPC_CREAT, mode=0o666)

    return get_output_ep


OTHER_RULES = {
    "libc": lambda n, at: queues.queue_key(n, "/dev/shm", "libc"),
    "16 bits": lambda n, at: queues._int32((at.st_dev & 0xFF) << 24 | (at.st_ino & 0xFF) << 16 | n & 0xFFFF),
}


@pytest.mark.parametrize("rule", OTHER_RULES)
def test_a_build_with_other_keys(rule, raised_limits, double, plugged, log):
    assert build.same_keys(double.model_executor__ops__gpu.get_output_ep)
    before = own_queues()
    get_output_ep = asks_for(OTHER_RULES[rule])
    assert not build.same_keys(get_output_ep)
    assert own_queues() == before
    worker.restore_save_ops()
    double.model_executor__ops__gpu.get_output_ep, kept = (
        get_output_ep,
        double.model_executor__ops__gpu.get_output_ep,
    )
    try:
        worker.register()
        save(double, "plain", sampled("plain"))
    finally:
        double.model_executor__ops__gpu.get_output_ep = kept
    assert plugged == ["save_output"]
    assert lines(log, "WARNING", "keys of queues")


def test_a_build_that_cannot_be_asked_for_its_keys(monkeypatch):
    def broken(x, rank, wait):
        raise OSError

    monkeypatch.delenv("INFERENCE_MSG_QUEUE_ID", raising=False)
    imported("paddle")
    assert not build.same_keys(None)
    assert not build.same_keys(broken)
    assert "INFERENCE_MSG_QUEUE_ID" not in os.environ


# ---- Limits, a full queue ---------------------------------------------------------------------------------


def test_a_queue_that_cannot_take_the_largest_message(default_limits, double, plugged, log):
    """The first step would fit; the error comes all the same, once."""
    requests = sampled("spec_topk", batch=8)
    requests.counts[:], requests.chunked[:], requests.preempted[:] = 0, False, False
    for _ in range(2):
        save(double, "spec_topk", requests)
    [line] = lines(log, "ERROR")
    for word in (
        "packed messages of 10316 bytes",
        "8 requests",
        "kernel.msgmax = 8192",
        "sysctl -w kernel.msgmax=1048576",
        "kernel.msgmnb=268435456",
        "compact frames need no limits",
    ):
        assert word in line
    assert "remove the queue" not in line
    assert plugged == []


def test_a_permanent_error_raises(default_limits, double, plugged, log):
    for _ in range(2):
        with pytest.raises(MessageTooBig, match="msgmax"):
            save(double, "topk", sampled("topk"))
    assert len(lines(log, "ERROR")) == 1
    assert plugged == []


def test_fastdeploys_own_op_under_default_limits(default_limits, double, plugged, monkeypatch, log, capsys):
    """What it loses is told before."""
    monkeypatch.setattr("fd_postproc.fastdeploy.worker.sending.stock_dialect", lambda channel: "legacy")
    for _ in range(2):
        save(double, "topk", sampled("topk"))
    assert capsys.readouterr().out == "full msg buffer\n" * 2
    [line] = lines(log, "ERROR")
    assert "88072 bytes" in line
    assert "every step is lost" in line


def test_a_queue_made_before_the_limits_were_raised(default_limits, double, plugged, monkeypatch, log):
    sysv_ipc.MessageQueue(queues.locate("topk"), sysv_ipc.IPC_CREAT)
    default_limits("msgmax", 1 << 20)
    default_limits("msgmnb", 64 << 20)
    with pytest.raises(OSError, match="msg_qbytes = 16384"):
        save(double, "topk", sampled("topk"))
    [line] = lines(log, "ERROR")
    assert "the queue holds 16384" in line
    assert "remove the queue" in line


@CHANNEL
def test_nothing_is_said_where_all_fits(channel, raised_limits, double, plugged, log):
    save(double, channel, sampled(channel, batch=200))
    stock_ops.receive_ours(channel)
    assert not lines(log, "ERROR")


def test_drafts_of_another_form_are_checked_for_room(default_limits, double, plugged, monkeypatch, log):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    cuda = double.spec_decode__mtp_cuda
    monkeypatch.setattr(cuda.speculate_save_output_topk, "original", lambda *arguments: None)
    inputs = KINDS["spec_topk"](sampled("spec_topk"), tensor=Paddle().tensor)
    proposer = inputs.proposer | {"cu_batch_token_offset": inputs.sampler.cu_batch_token_offset}
    for _ in range(2):
        cuda.save_draft(inputs.sampler, proposer, 5, 0, False)
    [line] = lines(log, "ERROR")
    assert "530448 bytes" in line


def test_a_check_that_fails_loses_no_step(raised_limits, double, plugged, monkeypatch):
    def broken():
        raise OSError

    monkeypatch.setattr("fd_postproc.fastdeploy.worker.room.kernel_limits", broken)
    requests = sampled("plain")
    save(double, "plain", requests)
    requests.check(stock_ops.receive_ours("plain"))


def test_a_full_queue_is_told_in_fastdeploys_log(default_limits, double, plugged, monkeypatch, log):
    """Other threads run meanwhile, and nothing is lost."""
    monkeypatch.setattr(watch_module, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(watch_module, "_watched_pid", 0)  # a watcher that looks that often
    before = ops.save_stats()["waits"]
    requests = sampled("plain", batch=400)
    save(double, "plain", requests)
    sent, full = 1, threading.Event()

    def receive():
        full.wait(10)
        deadline = time.monotonic() + 10
        while not lines(log, "WARNING", "has been full for") and time.monotonic() < deadline:
            time.sleep(0.01)
        with fp.Receiver("plain") as receiver:
            for _ in range(12):
                got.append(receiver.receive(5))

    got, thread = [], None
    thread = threading.Thread(target=receive)
    thread.start()
    full.set()
    for _ in range(11):
        save(double, "plain", requests)
        sent += 1
    thread.join(20)
    assert sent == len(got) == 12
    assert None not in got
    assert ops.save_stats()["waits"] > before
    assert lines(log, "WARNING", "has been full for")

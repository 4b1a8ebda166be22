"""Kernel limits and full queues: what the worker side does, and what FastDeploy's log says."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import ops, queues
from fd_postproc.errors import MessageTooBig
from fd_postproc.fastdeploy.events.log import fastdeploy_log as log_of_fastdeploy
from fd_postproc.fastdeploy.worker.limit_check import check_room
from fd_postproc.ops import watch as watch_module
from tests.lib.frameworks import Paddle
from tests.lib.rows import each
from tests.lib.sampled_steps import KINDS
from tests.lib.waiting import until
from tests.lib.worker_side import arrives, lines, sampled, save

pytestmark = pytest.mark.framework


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


def test_fastdeploys_own_op_under_default_limits(default_limits, double, plugged, monkeypatch, log, capsys):
    """What it loses is told before."""
    monkeypatch.setattr("fd_postproc.fastdeploy.worker.save_ops.stock_dialect", lambda channel: "legacy")
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
    for _ in range(2):
        with pytest.raises(MessageTooBig, match="msg_qbytes = 16384"):
            save(double, "topk", sampled("topk"))
    [line] = lines(log, "ERROR")
    assert plugged == []
    assert "the queue holds 16384" in line
    assert "remove the queue" in line


def test_a_call_of_another_form_is_checked_for_room(default_limits, double, plugged, monkeypatch, log):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    cuda = double.spec_decode__mtp_cuda
    monkeypatch.setattr(cuda.speculate_save_output_topk, "original", lambda *arguments: None)
    inputs = KINDS["spec_topk"](sampled("spec_topk"), tensor=Paddle().tensor)
    for _ in range(2):
        cuda.speculate_save_output_topk(*[inputs.proposer["batch_token_num"]] * 11)
    [line] = lines(log, "ERROR")
    assert "530448 bytes" in line


def test_a_check_that_fails_loses_no_step(raised_limits, double, plugged, monkeypatch):
    def broken():
        raise OSError

    monkeypatch.setattr("fd_postproc.fastdeploy.worker.limit_check.kernel_limits", broken)
    arrives(double, "plain")


@pytest.mark.realtime
def test_a_full_queue_is_told_in_fastdeploys_log(default_limits, double, plugged, monkeypatch, log):
    """Other threads run meanwhile, and nothing is lost."""
    monkeypatch.setattr(watch_module, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(watch_module, "_watched_pid", 0)  # a watcher that looks that often
    before = ops.save_stats()["waits"]
    requests = sampled("plain", batch=400)

    def receive():
        until(lambda: lines(log, "WARNING", "has been full for"))
        with fp.Receiver("plain") as receiver:
            return [receiver.receive(60) for _ in range(12)]

    save(double, "plain", requests)  # makes the queue
    with ThreadPoolExecutor() as beside:
        received = beside.submit(receive)
        for _ in range(11):
            save(double, "plain", requests)
        assert None not in received.result()
    assert ops.save_stats()["waits"] > before


@each(
    "dialect, limit, fits",
    [("packed", 10316, True), ("packed", 10315, False), ("compact", 8192, True), (None, 530448, True)],
)
def test_a_message_may_be_as_long_as_the_limit(default_limits, dialect, limit, fits, log):
    log.clear()
    default_limits("msgmax", limit)
    default_limits("msgmnb", max(limit, 16384))
    check_room("spec_topk", 8, dialect, log_of_fastdeploy())
    assert bool(lines(log, "ERROR")) is not fits

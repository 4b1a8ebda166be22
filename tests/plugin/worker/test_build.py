"""What the worker side finds out about FastDeploy's build: its dialect, its keys of queues."""

import importlib.util
import os
import sys
import types
from unittest.mock import Mock

import pytest
import sysv_ipc

from fd_postproc import QueueError, queues
from fd_postproc.fastdeploy import build
from fd_postproc.fastdeploy.engine import activation
from tests.lib.quiet import imported
from tests.lib.rows import each
from tests.lib.worker_side import LOGPROBS, lines, sampled, save

pytestmark = pytest.mark.framework


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


@each("reads", ["legacy", None])
@each("peer", ["", "compact/1"])
@LOGPROBS
def test_an_engine_that_may_read_another_dialect(
    channel, reads, peer, raised_limits, double, plugged, monkeypatch, log
):
    """A packed message crashes a legacy receiver; our engine reads all dialects."""
    plugged.anew()
    log.clear()
    monkeypatch.setattr("fd_postproc.fastdeploy.worker.save_ops.stock_dialect", lambda channel: reads)
    monkeypatch.setenv("FD_POSTPROC_PEER", peer)
    save(double, channel, sampled(channel))
    assert len(plugged) == (peer == "")
    assert bool(lines(log, "WARNING", "reads")) == (peer == "")


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


@each("rule", OTHER_RULES)
def test_a_build_with_other_keys(rule, raised_limits, double, plugged, monkeypatch, log):
    assert build.key_rule(double.model_executor__ops__gpu.get_output_ep) is build.KeyRule.OURS
    before = own_queues()
    get_output_ep = asks_for(OTHER_RULES[rule])
    assert build.key_rule(get_output_ep) is build.KeyRule.OTHER
    assert own_queues() == before
    monkeypatch.setattr(double.model_executor__ops__gpu, "get_output_ep", get_output_ep)
    plugged.anew()
    save(double, "plain", sampled("plain"))
    assert plugged == ["save_output"]
    assert lines(log, "WARNING", "keys of queues")


def test_a_queue_that_another_program_removes_is_asked_for_again(double, monkeypatch):
    get_output_ep, calls = double.model_executor__ops__gpu.get_output_ep, []

    def removed_once(*arguments):
        get_output_ep(*arguments)
        calls.append(queues.locate("plain"))
        if len(calls) == 1:
            sysv_ipc.MessageQueue(calls[0]).remove()

    assert build.key_rule(removed_once) is build.KeyRule.OURS
    assert len(calls) == 2
    monkeypatch.setattr(sysv_ipc, "MessageQueue", Mock(side_effect=sysv_ipc.PermissionsError))
    assert build._exists(calls[1])  # another user's


def test_a_build_that_cannot_be_asked_for_its_keys(monkeypatch):
    def broken(x, rank, wait):
        raise OSError

    monkeypatch.delenv("INFERENCE_MSG_QUEUE_ID", raising=False)
    imported("paddle")
    assert build.key_rule(None) is build.key_rule(broken) is build.KeyRule.UNKNOWN
    assert "INFERENCE_MSG_QUEUE_ID" not in os.environ


def test_no_room_for_a_queue_is_no_matter_of_keys(default_limits, double):
    """All queues that kernel.msgmni allows are in use when the engine starts."""
    default_limits("msgmni", 0)
    with pytest.raises(QueueError, match=r"all 0 queues that kernel\.msgmni allows are in use"):
        build.key_rule(double.model_executor__ops__gpu.get_output_ep)
    decision = activation.decide(imported("fastdeploy.output.token_processor"))
    assert decision.compatible
    assert "kernel.msgmni" in decision.asked_later
    default_limits("msgmni", 100)
    assert activation.other_keys() == ""

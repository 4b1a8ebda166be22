"""Where the worker side of the plug-in is turned on, and where it falls back."""

import functools
import logging
import os
import sys
import types

import pytest

from fd_postproc.fastdeploy.events import log
from fd_postproc.fastdeploy.events.log import tell_variables
from fd_postproc.fastdeploy.worker import entry as worker
from fd_postproc.fastdeploy.worker import kernel_warmup
from fd_postproc.fastdeploy.worker.save_ops import SaveOp
from fd_postproc.fastdeploy.worker.stream_builder import StreamBuilder
from fd_postproc.ops.table import SAVE_OPS
from tests.lib.nursery import with_paddle
from tests.lib.rows import each
from tests.lib.worker_side import lines, restore_save_ops

pytestmark = pytest.mark.framework


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


@each(
    "settings, active",
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
    everywhere = [sorted(SAVE_OPS)] * 2 + [["speculate_save_output_topk"]] * 2
    assert with_paddle(LOADED, environment) == (everywhere if active else [[]] * 4)


def test_on_and_off(double, plugged):
    modules = [double.model_executor__ops__gpu, double.model_executor__pre_and_post_process]
    first = [getattr(module, name) for module in modules for name in SAVE_OPS]
    assert all(isinstance(op, SaveOp) for op in first)
    worker.register()  # a second time changes nothing
    assert [getattr(module, name) for module in modules for name in SAVE_OPS] == first
    restore_save_ops()
    assert not [name for module in modules for name, op in vars(module).items() if isinstance(op, SaveOp)]
    assert log._forward not in logging.getLogger("fd_postproc").handlers


@each("switch, value", [("FD_POSTPROC_DISABLE", "1"), ("FD_POSTPROC_WORKER", "0")])
def test_it_falls_back_on_request(switch, value, double, originals, log, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1,streams/3")
    with monkeypatch.context() as patch:
        patch.setenv(switch, value)
        worker.register()
    assert not isinstance(double.model_executor__ops__gpu.save_output, SaveOp)
    assert not isinstance(
        double.model_executor__pre_and_post_process._build_stream_transfer_data, StreamBuilder
    )
    assert lines(log, "INFO", "worker side off", switch)


@each("value, begun", [("0", 0), ("1", 1), ("auto", 1)])
def test_the_kernel_is_loaded_early_where_it_may_be_used(value, begun, double, originals, monkeypatch):
    told = []
    monkeypatch.setattr(kernel_warmup, "begin", lambda: told.append(1))
    monkeypatch.setenv("FD_POSTPROC_CUDA", value)
    worker.register()
    assert len(told) == begun
    restore_save_ops()


def test_unreadable_switches_are_said_and_are_safe(double, originals, log, monkeypatch):
    for name in ("CHECKSUM", "FLIGHT_TOKENS", "KEEP_STALE"):
        monkeypatch.setenv(f"FD_POSTPROC_{name}", "perhaps")
    monkeypatch.setenv("FD_POSTPROC_DISABEL", "1")
    worker.register()
    assert isinstance(double.model_executor__ops__gpu.save_output, SaveOp)
    assert lines(log, "ERROR", "FD_POSTPROC_FLIGHT_TOKENS='perhaps'")
    assert lines(log, "ERROR", "FD_POSTPROC_DISABLE was perhaps meant")
    assert [
        os.environ[f"FD_POSTPROC_{name}"] for name in ("CHECKSUM", "FLIGHT_TOKENS", "KEEP_STALE")
    ] == list("100")
    told = []  # a process may have two sides, each with a log
    for _ in range(2):
        tell_variables(types.SimpleNamespace(name="another", error=told.append))
    assert len([one for one in told if "FD_POSTPROC_FLIGHT_TOKENS='perhaps'" in one]) == 1


@each("platform", ["xpu", "iluvatar", "gcu"])
def test_ops_of_other_platforms_are_replaced_where_they_are(double, originals, monkeypatch, platform):
    """They are compiled from the same sources."""
    name = f"fastdeploy.model_executor.ops.{platform}"
    ops = types.ModuleType(name)
    ops.save_output = ops.get_output_ep = lambda *arguments: None
    ops.save_output.__module__ = name
    user = types.ModuleType("fastdeploy.worker.of_a_platform")
    user.save_output = ops.save_output
    monkeypatch.setitem(sys.modules, name, ops)
    monkeypatch.setitem(sys.modules, user.__name__, user)
    monkeypatch.setattr(double.platforms.current_platform, "is_cuda", lambda: False, raising=False)
    monkeypatch.setattr(double.platforms.current_platform, f"is_{platform}", lambda: True, raising=False)
    worker.register()
    assert isinstance(ops.save_output, SaveOp)
    assert user.save_output is ops.save_output
    assert not isinstance(double.model_executor__ops__gpu.save_output, SaveOp)


def test_a_platform_without_save_ops_is_told(double, originals, log, monkeypatch):
    name = "fastdeploy.model_executor.ops.intel_hpu"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(double.platforms.current_platform, "is_intel_hpu", lambda: True, raising=False)
    worker.register()
    assert not isinstance(double.model_executor__ops__gpu.save_output, SaveOp)
    assert lines(log, "INFO", "worker side off", "none of the save ops")


def test_a_build_without_ops(double, monkeypatch):
    """What FastDeploy puts instead of ops that could not be loaded."""

    class NoneModule:
        def __getattr__(self, name):
            return None

    monkeypatch.setitem(sys.modules, "fastdeploy.model_executor.ops.gpu", NoneModule())
    assert worker.replace_save_ops() == []
    restore_save_ops()


def test_it_never_keeps_fastdeploy_from_starting(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "fastdeploy.platforms", None)  # importing it raises
    worker.register()
    assert "the worker side is off" in caplog.text
    monkeypatch.setitem(sys.modules, "fastdeploy.utils", None)
    assert log.fastdeploy_log().name == "fd_postproc"


def test_an_op_that_somebody_has_wrapped_stays_and_is_named(double, originals, log, monkeypatch):
    ops = double.model_executor__ops__gpu
    stock = ops.save_output

    @functools.wraps(stock)
    def traced(*arguments):
        return stock(*arguments)

    monkeypatch.setattr(ops, "save_output", traced)
    worker.register()
    assert ops.save_output is traced
    assert isinstance(ops.save_output_topk, SaveOp)
    assert lines(log, "WARNING", "save_output is wrapped by traced", "test_turning_on.py")

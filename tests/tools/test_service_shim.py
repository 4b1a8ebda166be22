"""The stand-in for a prefill node's save ops (harness/service) beside recorded messages of FastDeploy's."""

import importlib.util
import itertools

import pytest

import fd_postproc as fp
from tests.lib.goldens import GOOD
from tests.lib.service_tool import FOLDER

FIRST = {
    name: golden
    for name, golden in GOOD.items()
    # A legacy op steps 21 columns whatever there is: its rows are right with 21 only.
    if name.startswith("mtpfirst") and ("legacy" not in name or "_c21_" in name)
}


@pytest.fixture
def shim(monkeypatch, tmp_path):
    """The stand-in's module of ops, which sends into queues of its own."""
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", "48321")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("shim_ops", FOLDER / "shim/fd_service_shim/ops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_first_tokens_are_those_of_fastdeploys_ops(raised_limits, shim, monkeypatch):
    """The same counts, ids, log-probabilities and flags, for each recorded message."""
    assert {golden.channel for golden in FIRST.values()} == {"spec", "spec_topk"}
    for name, golden in FIRST.items():
        monkeypatch.setenv("FD_SERVICE_DIALECT", golden.dialect)
        inputs = golden.inputs()
        if golden.channel == "spec":
            order = ("x", "not_need_stop", "seq_lens_decoder", "prompt_lens", "step_idx")
            rest = (0, False, golden.record["save_attrs"][-1] == "True")
        else:
            order = tuple(inputs)
            rest = (3, 0, False)
        with fp.Receiver(golden.channel) as receiver:
            getattr(shim, golden.record["save_op"])(*(inputs[key] for key in order), *rest)
            got = receiver.receive(10)
        right = fp.decode(golden.payload, golden.channel)
        assert got.counts == right.counts, name
        assert got.stop_flag == right.stop_flag, name
        for ours, theirs in itertools.zip_longest(got.tolists(), right.tolists()):
            assert ours == theirs, name

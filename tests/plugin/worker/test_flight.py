"""What the worker side puts into its flight recorder's file."""

import functools
import os
import subprocess
import sys

import pytest
from prometheus_client import REGISTRY

from fd_postproc import MessageTooBig, doctor
from fd_postproc.doctor import environment
from fd_postproc.fastdeploy.worker import save_ops
from fd_postproc.flight import files, reading
from fd_postproc.flight.codes import Kind
from fd_postproc.flight.reading import Event
from fd_postproc.ops.device import saves
from fd_postproc.ops.proof import State
from tests.lib.waiting import PATIENCE
from tests.lib.worker_side import sampled, save

pytestmark = pytest.mark.framework


@pytest.fixture
def entries(tmp_path, monkeypatch):
    """A function that reads the file of this process's worker side."""
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))
    save_ops._recorder_of.cache_clear()

    def entries(*kinds):
        (name,) = os.listdir(tmp_path / "flights")
        flight = reading.read(str(tmp_path / "flights" / name))
        assert flight.side == "worker"
        assert flight.busy_since is None
        return [entry for entry in flight.entries if isinstance(entry, Event) and entry.kind in kinds]

    yield entries
    save_ops._recorder_of.cache_clear()


def test_what_is_sent(double, plugged, entries, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    for seed in range(3):
        save(double, "spec_topk", sampled("spec_topk", seed))
    (active,) = entries(Kind.ACTIVE)
    assert active.text.endswith("compact frames")
    assert [(one.numbers[0], one.numbers[2]) for one in entries(Kind.SENT)] == [(0, 5), (1, 5), (2, 5)]
    assert all(0 < one.numbers[1] < 20e9 for one in entries(Kind.SENT))


def test_what_is_not_sent(double, plugged, entries, default_limits, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    default_limits("msgmax", 8)
    with pytest.raises(MessageTooBig):
        save(double, "plain", sampled("plain"))
    (one,) = entries(Kind.SEND_FAILED)
    assert "msgmax" in one.text


def test_what_is_left_to_fastdeploy(double, plugged, entries, monkeypatch):
    monkeypatch.setattr(save_ops, "key_rule", lambda _: save_ops.KeyRule.OTHER)
    save(double, "plain", sampled("plain"))
    (one,) = entries(Kind.FELL_BACK)
    assert "keys of queues" in one.text
    assert not entries(Kind.SENT)


def test_why_the_kernel_is_off(double, plugged, entries, monkeypatch):
    """The gauge says it, the counter, explain, and the doctor, as long as the file is there."""
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    (report,) = saves.proof.listeners
    gauge = functools.partial(REGISTRY.get_sample_value, "fd_postproc_fast_path", {"path": "cuda"})
    total = functools.partial(REGISTRY.get_sample_value, "fd_postproc_fallbacks_total", {"seam": "cuda"})
    before = total() or 0
    for is_used, why in (False, ""), (True, ""), (False, "word 7 is wrong"):
        report(State(is_used, why, "topk"))
        assert gauge() == is_used
    assert total() == before + 1
    save(double, "topk", sampled("topk"))
    (left,) = entries(Kind.FELL_BACK)
    assert left.text == "the save kernel is off: word 7 is wrong"
    monkeypatch.setattr(environment, "why_no_cuda", lambda: "")
    found = environment.check_cuda()[1]
    assert (found.severity, found.code, found.seen) == ("warning", "cuda-turned-off", left.text)
    told = doctor.bug_report([found])["findings"]
    assert [one["seen"] for one in told] == [left.text]
    (path,) = files.listed()
    done = subprocess.run(
        [sys.executable, "-m", "fd_postproc", "explain", path],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert left.text in done.stdout, done.stderr

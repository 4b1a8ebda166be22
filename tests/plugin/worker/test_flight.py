"""What the worker side puts into its flight recorder's file."""

import os

import pytest

from fd_postproc import MessageTooBig
from fd_postproc.fastdeploy.worker import sending
from fd_postproc.flight import reading
from fd_postproc.flight.codes import Kind
from fd_postproc.flight.reading import Event
from tests.lib.worker_side import sampled, save

pytestmark = pytest.mark.framework


@pytest.fixture
def entries(tmp_path, monkeypatch):
    """A function that reads the file of this process's worker side."""
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))
    sending._recorder_of.cache_clear()

    def entries(*kinds):
        (name,) = os.listdir(tmp_path / "flights")
        flight = reading.read(str(tmp_path / "flights" / name))
        assert flight.side == "worker"
        assert flight.busy_since is None
        return [entry for entry in flight.entries if isinstance(entry, Event) and entry.kind in kinds]

    yield entries
    sending._recorder_of.cache_clear()


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
    monkeypatch.setattr(sending, "key_rule", lambda _: sending.KeyRule.OTHER)
    save(double, "plain", sampled("plain"))
    (one,) = entries(Kind.FELL_BACK)
    assert "keys of queues" in one.text
    assert not entries(Kind.SENT)

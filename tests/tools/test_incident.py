"""Which message made it raise: a recording put through the plug-in."""

import logging
from unittest import mock

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc.flight.recorder import Recorder
from fd_postproc.recording import RecordingWriter
from tests.lib.quiet import imported

pytestmark = pytest.mark.framework


def step(tokens, flag=3):
    """Two columns; a list of tokens for each request."""
    flat = [token for one in tokens for token in one]
    ids = np.array([[token, 7] for token in flat], np.int32).reshape(len(flat), 2)
    scores, ranks = np.full((len(flat), 2), -1.0, np.float32), np.ones(len(flat), np.int32)
    return fp.Step.from_arrays("spec_topk", [len(one) for one in tokens], ids, scores, ranks, flag=flag)


STEPS = [step([[10 + k], [20 + k, 30 + k]]) for k in range(6)] + [step([[2], [40]]), step([[50], [51]])]


@pytest.fixture
def incident():
    return imported("tools.incident")


@pytest.fixture(params=["recording", "flight"])
def file(request, tmp_path, monkeypatch):
    """A function that writes messages into a file of either kind."""

    def write(messages):
        if request.param == "recording":
            with RecordingWriter(tmp_path / "a.fdrec", "spec_topk") as writer:
                for payload, mtype in messages:
                    writer.write(payload, mtype)
            return str(tmp_path / "a.fdrec")
        monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))
        monkeypatch.setenv("FD_POSTPROC_FLIGHT_TOKENS", "1")
        recorder = Recorder.begin("engine", "spec_topk", 7, logging.getLogger("tests.flight"), size=1 << 18)
        for payload, mtype in messages:
            recorder.frame(payload, mtype)
        recorder.end()
        return recorder.path

    return write


def frames(steps):
    return [(fp.encode(one, "compact"), 2) for one in steps]


def test_nothing_raises(incident, file, capsys):
    assert incident.main([file(frames(STEPS))]) == 0
    assert capsys.readouterr().out.startswith("8 steps in ")


def test_the_message_that_is_refused_is_named(incident, file, capsys):
    messages = frames(STEPS)
    messages[3] = b"\xff" * 90, 1
    assert incident.main([file(messages)]) == 1
    assert "message 3: refused: 90 bytes of type 1: malformed spec_topk message" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["lost step", "failed request"])
def test_the_step_that_raises_is_named(incident, file, capsys, kind):
    Replay, put = incident.Replay, incident.Replay.put

    def planted(self, index, step):
        name = "postprocess" if kind == "lost step" else "_steady_of_a_test"
        if index != 5:
            return put(self, index, step)
        if kind == "lost step":
            with mock.patch.object(self.processor, name, side_effect=KeyError("planted")):
                return put(self, index, step)
        with mock.patch.object(self.processor, "_append_tokens", side_effect=KeyError("planted")):
            ended = mock.patch.object(self.processor, "steady_mode", return_value=None)
            with ended:
                return put(self, index, step)

    with mock.patch.object(Replay, "put", planted):
        assert incident.main([file(frames(STEPS))]) == 1
    out = capsys.readouterr().out
    assert f"message 5: {kind}: KeyError: 'planted'" in out
    assert "message 4" not in out
    assert "message 6" not in out


def test_what_is_no_recording(incident, tmp_path, capsys):
    (tmp_path / "a").write_bytes(b"nothing")
    assert incident.main([str(tmp_path / "a")]) == 2
    assert "is not a recording" in capsys.readouterr().err

"""Which message made it raise: a recording put through the plug-in."""

import contextlib
import logging
from unittest import mock

import numpy as np
import pytest

import fd_postproc as fp
from fd_postproc.flight.recorder import Recorder
from fd_postproc.recording import RecordingWriter
from tests.lib.quiet import imported
from tests.lib.rows import each

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


@pytest.fixture
def files(tmp_path_factory, monkeypatch):
    """A function that writes messages into a file of each kind: a recording, and a flight recorder's."""

    def write(messages):
        folder = tmp_path_factory.mktemp("files")
        with RecordingWriter(folder / "a.fdrec", "spec_topk") as writer:
            for payload, mtype in messages:
                writer.write(payload, mtype)
        yield str(folder / "a.fdrec")
        monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(folder / "flights"))
        monkeypatch.setenv("FD_POSTPROC_FLIGHT_TOKENS", "1")
        recorder = Recorder.begin("engine", "spec_topk", 7, logging.getLogger("tests.flight"), size=1 << 18)
        for payload, mtype in messages:
            recorder.frame(payload, mtype)
        recorder.end()
        yield recorder.path

    return write


def frames(steps):
    return [(fp.encode(one, "compact"), 2) for one in steps]


def test_nothing_raises_or_the_message_that_is_refused_is_named(incident, files, capsys):
    for file in files(frames(STEPS)):
        assert incident.main([file]) == 0
        assert capsys.readouterr().out.startswith("8 steps in ")
    messages = frames(STEPS)
    messages[3] = b"\xff" * 90, 1
    for file in files(messages):
        assert incident.main([file]) == 1
        assert (
            "message 3: refused: 90 bytes of type 1: malformed spec_topk message" in capsys.readouterr().out
        )


BROKEN = {
    "lost step": {"pairing.postprocess": KeyError("planted")},
    "failed request": {
        "requests.append_tokens": KeyError("planted"),
        "steps.steady_mode": lambda *_: None,
    },
}


@each("kind, broken", BROKEN.items())
def test_the_step_that_raises_is_named(incident, files, capsys, kind, broken):
    Replay, put = incident.Replay, incident.Replay.put

    def planted(self, index, step):
        with contextlib.ExitStack() as patches:
            for name, effect in broken.items() if index == 5 else ():
                part, _, method = name.partition(".")
                holder = getattr(self.processor.parts, part)
                patches.enter_context(mock.patch.object(holder, method, side_effect=effect))
            return put(self, index, step)

    with mock.patch.object(Replay, "put", planted):
        for file in files(frames(STEPS)):
            assert incident.main([file]) == 1
            out = capsys.readouterr().out
            assert f"message 5: {kind}: KeyError: 'planted'" in out
            assert "message 4" not in out
            assert "message 6" not in out


def test_what_is_no_recording(incident, tmp_path, capsys):
    (tmp_path / "a").write_bytes(b"nothing")
    assert incident.main([str(tmp_path / "a")]) == 2
    assert "is not a recording" in capsys.readouterr().err

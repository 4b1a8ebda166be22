"""What ``fd-postproc doctor --report FILE`` writes: what a bug report needs, and nothing of anybody's."""

import json

from fd_postproc import doctor
from fd_postproc.doctor import trial
from fd_postproc.fastdeploy.api import activation
from tests.lib.quiet import imported


def test_versions_and_reasons(run, tmp_path, monkeypatch):
    imported("fastdeploy.output.token_processor")
    monkeypatch.setattr(activation, "install", lambda module: None)  # this process goes on
    report = imported("fd_postproc.fastdeploy.report").report()
    monkeypatch.setattr(trial, "report", lambda: report)
    monkeypatch.setattr(doctor, "check_trial", trial.check_trial)
    monkeypatch.setattr(trial, "installed", lambda: doctor.Finding("ok", "fastdeploy", "fastdeploy", "", ""))
    monkeypatch.setenv("FD_PLUGINS", "fd_postproc")
    monkeypatch.setenv("FD_POSTPROC_FLIGHT", "1 /home/somebody/secret")
    file = tmp_path / "report.json"
    run("--report", file)
    told = json.loads(file.read_text())
    assert told["versions"]["fd_postproc"]
    assert told["versions"]["numpy"]
    assert told["settings"]["FD_PLUGINS"] == "fd_postproc"
    assert told["settings"]["FD_POSTPROC_FLIGHT"] == "set"
    assert told["trial"]["decision"]["compatible"] == report["decision"]["compatible"]
    text = file.read_text()
    assert "somebody" not in text
    assert "def " not in text


def test_paths_are_not_told():
    finding = doctor.Finding("info", "fastdeploy", "x", "engine", "no /home/somebody/tree/file.py there")
    (told,) = doctor.bug_report([finding])["findings"]
    assert told["seen"] == "no .../file.py there"
    other = doctor.Finding("info", "queues", "x", "somebody", "4711")
    assert doctor.bug_report([other])["findings"] == []

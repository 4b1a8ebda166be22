"""Advice that can be followed: what doctor and errors say to do would help."""

import pytest

import fd_postproc as fp
from fd_postproc.doctor import trial


def test_a_folder_without_fastdeploy(tmp_path, monkeypatch):
    """There is no installation to mend."""
    monkeypatch.setattr(trial, "installed", lambda: type("Finding", (), {"code": "fastdeploy-missing"}))
    for folder in tmp_path, tmp_path / "fastdeploy", tmp_path / "nowhere":
        monkeypatch.setenv("FD_POSTPROC_FASTDEPLOY", str(folder))
        (found,) = trial.check_trial()
        assert (found.code, found.severity) == ("plugin-untried", "warning")
        assert (
            f"'{folder}' holds no FastDeploy: there is no fastdeploy/output/token_processor.py in it"
            in found.seen
        )
        assert "the folder that holds fastdeploy/" in found.remedy[0]


def test_a_queue_that_we_removed_ourselves(queue_key):
    receiver, sender = fp.Receiver("plain", key=queue_key), fp.Sender("plain", key=queue_key)
    receiver.remove()
    with pytest.raises(fp.QueueRemoved, match=r"somebody removed it \(remove\(\) of its receiver,"):
        sender.send_arrays([1], [5])

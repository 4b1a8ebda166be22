"""Advice that can be followed: what doctor and errors say to do would help."""

import importlib.metadata

import pytest

import fd_postproc as fp
from fd_postproc.doctor import plugins, trial
from fd_postproc.doctor.environment import check_environment
from tests.lib.other_user import as_nobody
from tests.lib.rows import each


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


@each(
    ("names", "seen", "better"),
    [
        ("fd-postproc", "'fd-postproc' is not the name of a plug-in, 'fd_postproc' is", "fd_postproc"),
        ("another, fd_postproc", "'another' is not the name of an installed plug-in, ' fd_postproc' is",
         "another,fd_postproc"),
        ("", "'' is not the name of an installed plug-in", "fd_postproc"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_not_kept(names, seen, better, monkeypatch):
    monkeypatch.setenv("FD_PLUGINS", names)
    if not any(
        point.name == "fd_postproc" for point in importlib.metadata.entry_points(group=plugins.WORKER_GROUP)
    ):
        pytest.skip("fd_postproc is not installed as a package")
    for found in plugins.check_plugins():
        assert found.code.endswith("not-allowed")
        assert seen in found.seen
        assert found.remedy == (f"FD_PLUGINS={better}",)


def test_a_number_that_is_none(monkeypatch):
    monkeypatch.setenv("INFERENCE_MSG_QUEUE_ID", "port")
    (found,) = [one for one in check_environment() if one.code == "variable-invalid"]
    assert found.seen == "'port' is not a decimal 32-bit number"
    assert found.remedy == (
        "unset it, or set it to a valid value",
        "FastDeploy's own ops end their process at a value like this one",
    )


def test_an_empty_variable_is_as_if_unset(monkeypatch):
    for name in (
        "INFERENCE_MSG_QUEUE_ID",
        "FD_POSTPROC_QUEUE_MODE",
        "FD_POSTPROC_CUDA_BUFFERS",
        "FD_POSTPROC_NONE",
    ):
        monkeypatch.setenv(name, "")
    assert [one.code for one in check_environment()] == ["environment"]


def test_only_the_owner_removes_a_queue(queue):
    """Mode 0666 would not help."""
    queue.mode = 0o666
    script = (
        "import fd_postproc as fp\n"
        "from fd_postproc import queues\n"
        f"try: queues.remove_queue({queue.id})\n"
        "except fp.QueuePermission as error: print(error)"
    )
    out = as_nobody(script).stdout
    assert "only its owner, its creator and root may remove a queue, whatever its mode" in out
    assert "0666" not in out


def test_a_queue_that_we_removed_ourselves(queue_key):
    receiver, sender = fp.Receiver("plain", key=queue_key), fp.Sender("plain", key=queue_key)
    receiver.remove()
    with pytest.raises(fp.QueueRemoved, match=r"somebody removed it \(remove\(\) of its receiver,"):
        sender.send_arrays([1], [5])

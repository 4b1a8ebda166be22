"""The doctor on environment variables, FastDeploy, its plug-ins, CUDA."""

import importlib.machinery
import importlib.util
import logging
import os
import re
import sys

import pytest

from fd_postproc import doctor
from fd_postproc.doctor import environment, trial
from fd_postproc.doctor.environment import check_cuda, check_environment, check_fastdeploy
from fd_postproc.flight.recorder import Recorder
from fd_postproc.support.environment import VARIABLES
from tests.lib.rows import each


@each(
    ("name", "value", "fault"),
    [
        *(
            ("INFERENCE_MSG_QUEUE_ID", text, "not a decimal")
            for text in ("eight", "4294967296", "80_02", "0x10", "8002.0", "²")
        ),
        ("INFERENCE_MSG_ID", "2", "other than 2"),
        *(("INFERENCE_MSG_ID", text, "not a decimal") for text in ("-1", "1.5", "0x1", "2147483648")),
        ("FD_POSTPROC_QUEUE_MODE", "777", "is not octal"),
        *(("FD_POSTPROC_DIALECT", text, "not one of auto") for text in ("Compact", "dense", "auto,packed")),
        *(("FD_POSTPROC_PEER", text, "compact/1") for text in ("yes", "compact/2", "compact/10")),
        ("FD_POSTPROC_PEER", "compact/1,service/8002", "eight digits"),
        ("FD_POSTPROC_CUDA_BUFFERS", "2", ""),
        ("FD_POSTPROC_LOG_STATS", "-1", ""),
        ("ENABLE_V1_KVCACHE_SCHEDULER", "yes", ""),
        ("FD_POSTPROC_KNOWN", "/nope", "cannot be read: No such file"),
        ("FD_POSTPROC_KNOWN", "/etc/passwd", "holds nothing"),
        ("INFERENCE_MSG_QUEUE_ID", "8002", None),
        ("INFERENCE_MSG_ID", "1", None),
        ("FD_POSTPROC_QUEUE_MODE", "666", None),
        ("FD_POSTPROC_DIALECT", "auto", None),
        ("FD_POSTPROC_PEER", "compact/1", None),
        ("FD_POSTPROC_PEER", "compact/1,new/1,service/00008002", None),
        *(("FD_POSTPROC_SILENCE", text, fault) for text, fault in (("0.09", "from 0.1"), ("0.1", None))),
        *(("FD_POSTPROC_UNREACHABLE", text, fault) for text, fault in (("1.9", "from 2"), ("2", None))),
        ("FD_POSTPROC_DISABEL", "", None),
        ("INFERENCE_MSG_QUEUE_ID", "", None),
        ("FD_POSTPROC_CUDA_BUFFERS", "", None),
    ],
)
def test_bad_variables_are_errors(run, monkeypatch, queue, name, value, fault):
    """For whoever reads one, too."""
    monkeypatch.setenv(name, value)
    (found,) = check_environment()
    if fault is None:
        assert found.severity == "ok"
        assert (f"{name}={value}" in found.seen) is (value != "")  # an empty one is as if unset
        return
    assert found.severity == "error"
    assert fault in found.seen
    assert (found.subject, found.code) == (name, "variable-invalid")
    assert repr(value) in found.seen
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r} ")):
        _ = VARIABLES[name].value
    if value == "eight":
        status, out, _ = run("--queue-id", f"key:{queue.key:#x}")
        assert (status, name in out) == (1, True)


@each(
    ("name", "value", "needed"),
    [
        ("FD_POSTPROC_FLIGHT_TOKENS", "1", "FD_POSTPROC_FLIGHT"),
        ("FD_POSTPROC_STREAM_INTERVAL", "4", "FD_POSTPROC_API"),
        ("FD_POSTPROC_STREAM_INTERVAL", "0", None),
    ],
)
def test_a_variable_without_effect(monkeypatch, name, value, needed):
    monkeypatch.setenv(name, value)
    monkeypatch.setenv(needed or "FD_POSTPROC_API", "0")
    (found,) = check_environment()
    assert (found.code, found.severity) == (("variable-idle", "warning") if needed else ("environment", "ok"))
    assert needed is None or (found.subject == name and needed in found.seen)


@each("setting, idle", [
    ("ZMQ_SEND_BATCH_DATA=0", True), ("FD_ENABLE_INTERNAL_ADAPTER=1", True), ("FD_USE_HF_TOKENIZER=1", True),
    ("FD_ENABLE_RETURN_TEXT=1", True), ("ZMQ_SEND_BATCH_DATA=1", False),
])  # fmt: skip
def test_a_stream_interval_beside_settings_with_which_nothing_is_joined(monkeypatch, setting, idle):
    monkeypatch.setenv("FD_POSTPROC_STREAM_INTERVAL", "4")
    monkeypatch.setenv(*setting.split("="))
    (found,) = check_environment()
    assert found.code == ("variable-idle" if idle else "environment")
    assert not idle or setting in found.seen


@each(
    ("kind", "fault"),
    [
        ("file", "not a folder"),
        ("parent", "there is no folder"),
        ("shared", "others may write to it (mode 1777)"),
        ("link", "a link"),
        ("another user's", "it belongs to user 1"),
        ("own", None),
        ("none", None),
    ],
)
def test_the_flight_recorders_folder(monkeypatch, tmp_path, kind, fault):
    """As when a recorder begins; the remedy removes nothing."""
    folder = tmp_path / kind
    if kind == "file":
        folder.write_text("")
    elif kind == "parent":
        folder /= "below"
    elif kind == "link":
        folder.symlink_to(tmp_path)
    elif kind != "none":
        folder.mkdir(0o700)
    if kind == "shared":
        folder.chmod(0o1777)
    elif kind == "another user's":
        if os.geteuid():
            return
        os.chown(folder, 1, -1)
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(folder))
    (found,) = check_environment()
    assert found.code == ("flight-folder" if fault else "environment")
    assert fault is None or (found.severity == "warning" and fault in found.seen)
    assert not any("rm" in step.split() or "remove" in step for step in found.remedy)
    recorder = Recorder.begin("engine", "topk", 7, logging.getLogger("tests"), size=1 << 14)
    assert (recorder.ring is None) == bool(fault)
    recorder.end()
    monkeypatch.setenv("FD_POSTPROC_FLIGHT", "0")
    assert [one.code for one in check_environment()] == ["environment"]


def test_one_of_two_folders_is_enough_for_the_flight_recorder(monkeypatch, tmp_path):
    monkeypatch.setattr(
        environment, "folders", lambda: [str(tmp_path / "none" / "below"), str(tmp_path / "good")]
    )
    assert [one.code for one in check_environment()] == ["environment"]


@each("peer, codes", [(0, []), (os.getppid(), []), (os.getpid(), ["engine-unnamed"])])
def test_an_engine_whom_the_kernel_does_not_name(peer, codes, monkeypatch, tmp_path):
    (tmp_path / "8180.socket").touch()
    monkeypatch.setattr(environment, "peer_of", lambda path: peer)
    assert [found.code for found in environment.check_peers(f"{tmp_path}/*.socket")] == codes
    monkeypatch.undo()
    assert environment.check_peers(f"{tmp_path}/*.socket") == []  # nobody listens


def test_zeromq(monkeypatch):
    monkeypatch.setenv("FD_USE_GET_SAVE_OUTPUT_V1", "1")
    (told,) = check_environment()
    assert (told.severity, told.code, bool(told.remedy)) == ("warning", "zeromq", True)
    for word in ("pooling model", "768 files in /dev/shm", "speculative decoding is refused"):
        assert word in told.seen
    (told,) = check_environment(True)
    assert (told.severity, told.code, bool(told.remedy)) == ("info", "zeromq", False)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A function that installs a distribution, as far as its metadata goes; there is no other."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in "FD_PLUGINS", "FD_POSTPROC_DISABLE":
        monkeypatch.delenv(name, raising=False)

    def install(name, version, points="", files=()):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(points)
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text("raise SystemExit('FastDeploy was imported')")

    return install


def fastdeploy_codes():
    return [finding.code for finding in check_fastdeploy()]


def test_the_version_of_fastdeploy_without_importing_it(site):
    site("fastdeploy", "3.1.1")  # an unrelated project of this name
    assert "3.1.1" not in check_fastdeploy()[0].seen
    site("fastdeploy-gpu", "2.4.0", files=["fastdeploy/__init__.py", "fastdeploy/output/token_processor.py"])
    assert "fastdeploy-gpu 2.4.0" in check_fastdeploy()[0].seen


def test_a_fastdeploy_that_this_user_may_not_read(site, monkeypatch, tmp_path):
    """It is known of because it has been imported before the process became another user's."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    site("other", "1", files=["fastdeploy/output/token_processor.py"])
    spec = importlib.machinery.ModuleSpec("fastdeploy", None, is_package=True)
    spec.submodule_search_locations.append(str(tmp_path / "fastdeploy"))
    monkeypatch.setitem(sys.modules, "fastdeploy", importlib.util.module_from_spec(spec))
    assert fastdeploy_codes()[0] == "fastdeploy"
    tmp_path.chmod(0)
    os.seteuid(65534)
    try:
        codes = fastdeploy_codes()
    finally:
        os.seteuid(0)
    assert codes[0] == "fastdeploy-missing"


def test_two_fastdeploys(site):
    site("fastdeploy-gpu", "2.4.0", files=["fastdeploy/output/token_processor.py"])
    sys.path.append(f"{sys.path[0]}/")  # the same one, seen twice
    assert fastdeploy_codes()[0] == "fastdeploy"
    site("fastdeploy-xpu", "2.5.0")
    assert fastdeploy_codes()[0] == "fastdeploy-twice"


ENGINE_POINT = "[fastdeploy.token_processor_plugins]\nfd_postproc = fd_postproc.plugin:get\n"
WORKER_POINT = "[fastdeploy.model_register_plugins]\nfd_postproc = fd_postproc.plugin:register\n"


def plugin(which):
    found = check_fastdeploy()[which]
    return found.code, found.data.get("active", False)


def test_the_engine_sides_plugins(site, monkeypatch):
    assert plugin(1)[0] == "plugin-none"
    site("other", "1", "[fastdeploy.token_processor_plugins]\nanother = other:get\n")
    assert plugin(1)[0] == "plugin-not-allowed"  # without the variable FastDeploy loads none
    monkeypatch.setenv("FD_PLUGINS", "another")
    assert "another project's: another (other:get)" in check_fastdeploy()[1].seen
    site("ours", "1", ENGINE_POINT)
    for names, code, active, disabled in (
        ("another,fd_postproc", "plugin-several", None, ""),
        ("fd_postproc", "plugin", True, ""),
        ("fd_postproc", "plugin-disabled", False, "1"),
        ("nothing", "plugin-not-allowed", False, "1"),
    ):
        monkeypatch.setenv("FD_PLUGINS", names)
        monkeypatch.setenv("FD_POSTPROC_DISABLE", disabled)
        assert plugin(1) in ((code, active), *([(code, True), (code, False)] if active is None else []))
    assert "FD_PLUGINS=nothing,fd_postproc" in check_fastdeploy()[1].remedy[0]


def test_names_beside_ours_that_are_no_plug_in(site, monkeypatch):
    site("other", "1", "[fastdeploy.token_processor_plugins]\nanother = other:get\n")
    site("ours", "1", ENGINE_POINT)
    for names, unknown, remedy in (
        ("fd_postproc,another", None, None),
        ("anther", None, None),  # the sides say it
        ("fd_postproc,anther", ["anther"], "FD_PLUGINS=fd_postproc"),
        ("fd_postproc, another", [" another"], "FD_PLUGINS=another,fd_postproc"),
    ):
        monkeypatch.setenv("FD_PLUGINS", names)
        found = [one for one in check_fastdeploy() if one.code == "plugin-unknown"]
        assert [one.data["unknown"] for one in found] == ([] if unknown is None else [unknown])
        assert all(one.severity == "warning" and one.remedy[0].endswith(remedy) for one in found)
        monkeypatch.setattr(doctor, "check_fastdeploy", check_fastdeploy)
        assert [
            one for one in doctor.examine(doctor.Scope(trial=False)) if one.code == "plugin-unknown"
        ] == found
    site("alike", "1", "[fastdeploy.token_processor_plugins]\nfd_postprocs = other:get\n")
    monkeypatch.setenv("FD_PLUGINS", "fd_postprocs;fd_posproc;another")
    assert check_fastdeploy()[1].remedy == ("FD_PLUGINS=fd_postprocs,another,fd_postproc",)
    monkeypatch.setenv("FD_PLUGINS", "fd_postproc;another")
    assert check_fastdeploy()[1].remedy == ("FD_PLUGINS=another,fd_postproc",)


def test_the_worker_sides_plugins(site, monkeypatch):
    assert plugin(2) == ("worker-missing", False)
    site("other", "1", "[fastdeploy.model_register_plugins]\nanother = other:get\n")
    assert plugin(2) == ("worker-missing", False)
    site("ours", "1", WORKER_POINT)
    assert plugin(2) == ("worker-not-allowed", False)
    assert "FD_PLUGINS is unset" in check_fastdeploy()[2].seen
    monkeypatch.setenv("FD_PLUGIN", "fd_postproc")
    assert "FD_PLUGIN means nothing to it" in check_fastdeploy()[2].seen
    for names, remedy in (
        ("another", "FD_PLUGINS=another,fd_postproc"),
        ("", "FD_PLUGINS=fd_postproc"),
        ("fd_posproc,fd-postproc", "FD_PLUGINS=fd_postproc"),
    ):
        monkeypatch.setenv("FD_PLUGINS", names)
        assert plugin(2) == ("worker-not-allowed", False)
        assert check_fastdeploy()[2].remedy == (remedy,)
    monkeypatch.setenv("FD_PLUGINS", "another,fd_postproc")
    monkeypatch.setenv("FD_POSTPROC_API", "0")  # of the API server's side alone
    assert plugin(2) == ("worker", True)
    monkeypatch.setenv("FD_POSTPROC_WORKER", "0")
    assert plugin(2) == ("worker-disabled", False)
    assert "FD_POSTPROC_WORKER says so; FastDeploy's own save ops send" in check_fastdeploy()[2].seen
    monkeypatch.setenv("FD_POSTPROC_WORKER", "1")
    monkeypatch.setenv("FD_POSTPROC_DISABLE", "1")
    assert plugin(2) == ("worker-disabled", False)


@each(
    "why, version, severity, words",
    [
        ("", (12, 2), "ok", "the save ops take its tensors, once the kernel has proved itself in a worker"),
        ("no CUDA driver: not found", None, "info", "not found; tensors in host memory need none"),
        ("a CUDA driver but no device: ...", (12, 2), "info", "but no device"),
        ("the driver is for CUDA 11.7; ...", (11, 7), "warning", "the driver is for CUDA 11.7"),
    ],
)
def test_cuda_is_one_line(why, version, severity, words, monkeypatch, tmp_path):
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path))
    monkeypatch.delenv("FD_POSTPROC_CUDA", raising=False)
    monkeypatch.setattr("fd_postproc.doctor.environment.why_no_cuda", lambda: why)
    monkeypatch.setattr("fd_postproc.doctor.environment.driver_version", lambda: version)
    (found,) = check_cuda()
    assert found.severity == severity
    assert words in found.seen
    assert found.data["available"] is (why == "")
    monkeypatch.setenv("FD_POSTPROC_CUDA", "1")
    (found,) = check_cuda()
    assert "proved itself" not in found.seen
    monkeypatch.setenv("FD_POSTPROC_CUDA", "0")
    (found,) = check_cuda()
    assert (found.severity, found.code) == ("info", "cuda-off")
    assert "the save ops copy tensors to the host" in found.seen


def test_only_the_newest_worker_of_a_queue_says_that_the_kernel_is_off(monkeypatch, tmp_path):
    monkeypatch.setenv("FD_POSTPROC_FLIGHT_FOLDER", str(tmp_path / "flights"))
    recorders = []
    for queue_id, note in (7, "once"), (7, ""), (8, ""), (8, "off"):
        recorders.append(Recorder.begin("worker", "topk", queue_id, logging.getLogger("tests"), size=1 << 14))
        recorders[-1].note(note)
    files = {str(one.path): one for one in recorders}
    assert [one.seen for one in check_cuda() if one.code == "cuda-turned-off"] == ["off"]
    assert len(files) == 4
    for one in recorders:
        one.end()


def test_a_folder_without_fastdeploy(tmp_path, monkeypatch):
    """There is no installation to mend."""
    monkeypatch.setattr(trial, "installed", lambda: type("Finding", (), {"code": "fastdeploy-missing"}))
    for folder in tmp_path, tmp_path / "fastdeploy", tmp_path / "nowhere":
        monkeypatch.setenv("FD_POSTPROC_FASTDEPLOY", str(folder))
        (found,) = trial.check_trial()
        assert (found.code, found.severity) == ("plugin-untried", "warning")
        assert f"'{folder}' holds no FastDeploy" in found.seen

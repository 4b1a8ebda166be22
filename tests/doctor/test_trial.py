"""The doctor's trial: our token processor beside the installed FastDeploy's, in a process of its own."""

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fd_postproc import doctor
from fd_postproc.doctor import Finding, Scope, trial
from fd_postproc.fastdeploy import build, report
from fd_postproc.fastdeploy.api import activation
from fd_postproc.fastdeploy.gate.contract import SERVED
from fd_postproc.fastdeploy.gate.judgements import gate
from tests.lib.nursery import with_paddle
from tests.lib.paths import TESTS
from tests.lib.quiet import imported
from tests.lib.rows import each

pytestmark = pytest.mark.framework

DOUBLE = TESTS / "fastdeploy_double"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("DISABLE", "FASTDEPLOY"):
        monkeypatch.delenv(f"FD_POSTPROC_{name}", raising=False)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """FastDeploy's metadata, as a package installer leaves it, for the double."""
    imported("paddle")
    info = tmp_path / "fastdeploy_gpu-2.6.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fastdeploy-gpu\nVersion: 2.6.0\n")
    (tmp_path / "fastdeploy" / "output").mkdir(parents=True)
    (tmp_path / "fastdeploy" / "output" / "token_processor.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


def test_without_fastdeploy_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(trial, "report", lambda: pytest.fail("tried"))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(DOUBLE)])
    monkeypatch.delitem(sys.modules, "fastdeploy", raising=False)
    (found,) = trial.check_trial()
    assert (found.code, found.severity) == ("plugin-untried", "info")
    assert "FastDeploy is not installed" in found.seen


def test_an_older_fastdeploy_is_not_to_be_accepted_by_its_operator(monkeypatch):
    for reason, remedies in ((f"it has no clock; served are FastDeploy {SERVED}", 1), ("new code", 3)):
        told = {"from": "", "decision": {"compatible": False, "reason": reason}}
        assert len(trial._judged(told).remedy) == remedies


@each("batches", [True, False])
def test_the_verdict_on_an_installed_fastdeploy(installed, monkeypatch, batches):
    envs = imported("fastdeploy.output.token_processor").envs
    monkeypatch.setattr(envs, "ZMQ_SEND_BATCH_DATA", int(batches))
    monkeypatch.setattr(activation, "install", lambda module: None)  # this process goes on
    told = report.report()
    assert told["from"].endswith("token_processor.py")
    assert ("api unpacking" in told["api_left"]) is batches
    monkeypatch.setattr(trial, "report", lambda: told)
    (found,) = trial.check_trial()
    assert (found.code, found.severity) == ("plugin-compatible", "ok"), found.seen
    assert found.seen == "this FastDeploy's code is known"
    assert found.data["decision"]["compatible"] is True


def test_a_part_that_one_of_its_modules_takes_is_not_left(monkeypatch):
    monkeypatch.setattr(report, "_left", lambda seam, name: "" if name == seam.modules[-1] else "new code")
    assert report._api_left(SimpleNamespace(ZMQ_SEND_BATCH_DATA=1, FD_ENABLE_INTERNAL_ADAPTER=0)) == {}


PLUGGED = """
import contextlib, io, runpy
from fd_postproc.fastdeploy.gate import loading
from fd_postproc.fastdeploy.api import entry
loading.when_loaded("fastdeploy", lambda _: entry.register())
said = io.StringIO()
with contextlib.redirect_stdout(said):
    runpy.run_module("fd_postproc.fastdeploy.report", run_name="__main__")
print(said.getvalue().rpartition("fd_postproc report: ")[2].strip())
"""


def test_the_code_is_compared_before_ours_is_in_its_place(monkeypatch):
    """FastDeploy calls the plug-ins that FD_PLUGINS names while it is imported."""
    monkeypatch.delenv("FD_POSTPROC_API", raising=False)
    told = with_paddle(PLUGGED)
    assert [one["compatible"] for one in told["api"].values()] == [True, True]


def test_the_workers_code_is_compared(monkeypatch):
    imported("fastdeploy.output.token_processor")
    assert report._worker() == {"left": {}}
    monkeypatch.setattr(gate, "record", {})
    assert "_build_stream_transfer_data has new code in line" in report._worker()["left"]["streams"]
    monkeypatch.setattr(build, "ops_module", lambda: None)
    assert "none of the save ops" in report._worker()["untried"]


@each(
    "zeromq, worker, parts",
    [
        ("1", {"left": {"streams": "new"}}, [("streams", "warning")]),
        ("", {"left": {"streams": "new"}}, [("streams", "info")]),
        ("1", {"left": {}}, []),
        ("1", {"untried": "no ops"}, []),
    ],
)
def test_the_doctor_says_what_the_worker_leaves(monkeypatch, zeromq, worker, parts):
    monkeypatch.setenv("FD_USE_GET_SAVE_OUTPUT_V1", zeromq)
    tried = Finding("ok", "fastdeploy", "equal", "", "", data={"worker": worker})
    monkeypatch.setattr(doctor, "check_fastdeploy", lambda: [STATIC] * 4)
    monkeypatch.setattr(doctor, "check_trial", lambda: [tried])
    found = doctor.examine(Scope(ids=frozenset([1])))
    assert [(one.subject, one.severity) for one in found if one.code == "part-left"] == parts
    assert ("not tried: no ops" in " ".join(one.seen for one in found)) is ("untried" in worker)
    assert [one.severity for one in found if one.code == "zeromq"] == (["info"] if zeromq else [])


def test_a_tree_that_is_named_and_cannot_be_imported(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "fastdeploy", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(DOUBLE)])
    (tmp_path / "fastdeploy" / "output").mkdir(parents=True)
    (tmp_path / "fastdeploy" / "output" / "token_processor.py").write_text("")
    (tmp_path / "fastdeploy" / "__init__.py").write_text("raise SystemExit('no GPU')\n")
    monkeypatch.setenv("FD_POSTPROC_FASTDEPLOY", str(tmp_path / "fastdeploy"))
    (found,) = trial.check_trial()
    assert (found.code, found.severity) == ("plugin-unknown", "warning")
    assert "cannot be imported: SystemExit: no GPU" in found.seen


DIFFERENCE = {"compatible": False, "reason": "TokenProcessor.x has new code in line 3 of y.py"}


def test_a_difference_comes_with_its_remedy(monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_FASTDEPLOY", "anywhere")
    monkeypatch.setattr(trial, "report", lambda: {"decision": DIFFERENCE})
    (found,) = trial.check_trial()
    assert (found.code, found.severity) == ("plugin-differs", "warning")
    assert f"FastDeploy's own class is used: {DIFFERENCE['reason']}" in found.seen
    assert "FD_POSTPROC_KNOWN" in " ".join(found.remedy)
    monkeypatch.setenv("FD_POSTPROC_DISABLE", "1")  # it is tried all the same
    (found,) = trial.check_trial()
    assert (found.code, found.severity) == ("plugin-disabled", "info")


@each("change, ours", [
    ("wrapped by traced", False), ("replaced by mine", False), ("new", True),
    (f"wrapped by traced; {DIFFERENCE['reason']}", True),
])  # fmt: skip
def test_no_newer_version_is_promised_for_what_somebody_has_wrapped(monkeypatch, change, ours):
    reason = DIFFERENCE["reason"] if change == "new" else f"TokenProcessor.x is {change} (line 3 of y.py)"
    monkeypatch.setenv("FD_POSTPROC_FASTDEPLOY", "anywhere")
    monkeypatch.setattr(trial, "report", lambda: {"decision": {**DIFFERENCE, "reason": reason}})
    (found,) = trial.check_trial()
    assert ("FD_POSTPROC_KNOWN" in " ".join(found.remedy)) is ours


@each("folder", ["FD_LOG_DIR", "PROMETHEUS_MULTIPROC_DIR"])
def test_what_fastdeploy_writes_when_it_is_imported_is_deleted(monkeypatch, tmp_path, folder):
    monkeypatch.setenv(folder, str(tmp_path / "own"))
    code = f"import os; where = os.environ['{folder}']; open(where + '/x', 'w'); "
    code += f"print('{report.MARK}' + '{{\"at\": \"' + where + '\"}}')"
    monkeypatch.setattr(trial, "python_command", lambda module: [sys.executable, "-c", code])
    assert not os.path.exists(trial.report()["at"])
    assert list(tmp_path.iterdir()) == []


@each(
    "end, words",
    [
        ("sys.exit(3)", "ended with status 3: no GPU here"),
        ("os.kill(os.getpid(), 9)", "signal 9 ended the child process"),
    ],
)
def test_a_child_without_an_answer_is_told_with_its_last_words(monkeypatch, end, words):
    monkeypatch.setenv("FD_POSTPROC_FASTDEPLOY", "anywhere")
    code = f"import os, sys; print('no GPU here', file=sys.stderr, flush=True); {end}"
    monkeypatch.setattr(trial, "python_command", lambda module: [sys.executable, "-c", code])
    (found,) = trial.check_trial()
    assert found.code == "plugin-unknown"
    assert words in found.seen


def test_the_trial_can_be_left_out(monkeypatch):
    monkeypatch.setattr(doctor, "check_trial", lambda: pytest.fail("tried"))
    doctor.examine(Scope(trial=False, ids=frozenset([1])))


# ---- The verdict: what is set, what FastDeploy loads, what the classes did -------------------------------

STATIC = Finding(
    "info", "fastdeploy", "plugin", "engine side", "fd_postproc's", data={"active": True, "FD_PLUGINS": None}
)
COMPATIBLE = DIFFERENCE | {"compatible": True}
OURS = "fd_postproc.fastdeploy.engine.processor_class.TokenProcessor"
STOCK = "fastdeploy.output.token_processor.TokenProcessor"


@each(
    "decision, loaded, code, severity, told",
    [
        (COMPATIBLE, OURS, "plugin-active", "ok", "active: FastDeploy loads"),
        (COMPATIBLE, "", "plugin-not-loaded", "warning", "takes no plug-in (FD_PLUGINS is unset)"),
        (COMPATIBLE, STOCK, "plugin-not-loaded", "warning", f"takes {STOCK}"),
        (DIFFERENCE, OURS, "plugin-aside", "warning", "has new code in line 3 of y.py"),
    ],
)
def test_the_verdict_is_of_what_fastdeploy_loads_and_of_the_trial(decision, loaded, code, severity, told):
    data = {"decision": decision, "loaded": loaded}
    tried = [Finding("ok", "fastdeploy", "plugin-compatible", "our token processor", "equal", data=data)]
    found = trial.engine_side(STATIC, tried)
    assert (found.code, found.severity, found.subject) == (code, severity, "engine side")
    assert told in found.seen
    assert found.data["loaded"] == loaded


def test_without_a_trial_the_verdict_says_so():
    assert trial.engine_side(STATIC, []).seen.endswith("was not tried")
    off = replace(STATIC, code="plugin-none", data={"active": False})
    assert trial.engine_side(off, []) is off

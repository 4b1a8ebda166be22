"""Which parts of the API side are put in, and who is told of those that are not."""

import logging
from types import SimpleNamespace

import pytest

from fd_postproc.doctor.findings import Finding
from fd_postproc.doctor.trial import api_side
from fd_postproc.fastdeploy.api import entry
from fd_postproc.fastdeploy.seams import API_PARTS as PARTS
from tests.lib.paths import ROOT

OTHER = SimpleNamespace(DealerConnectionManager=SimpleNamespace(get_connection=lambda manager: manager.other))


@pytest.mark.parametrize("name", PARTS)
def test_a_module_of_another_kind_keeps_its_own(name):
    """Its reason is said in words; nothing is raised, and nothing put in."""
    module = SimpleNamespace()
    assert PARTS[name].put_in(module)
    assert vars(module) == {}


@pytest.mark.parametrize("name", PARTS)
def test_each_part_is_on_the_page_of_seams(name):
    assert f"### api {name}\n" in (ROOT / "docs" / "seams.md").read_text()
    assert callable(PARTS[name].maker())


def test_the_reason_is_logged_and_the_gauge_set(caplog, monkeypatch):
    prometheus_client = pytest.importorskip("prometheus_client")
    monkeypatch.setattr("fd_postproc.fastdeploy.seams._taken", set())
    monkeypatch.setattr("fd_postproc.fastdeploy.logs.api_log", logging.getLogger)
    with caplog.at_level(logging.INFO):
        entry._put_in("stream_queue", OTHER)
    assert (
        "leaves the queues of results to FastDeploy: DealerConnectionManager.get_connection cannot be read"
        in caplog.text
    )
    value = prometheus_client.REGISTRY.get_sample_value
    assert value("fd_postproc_fast_path", {"path": "api stream_queue"}) == 0


def verdicts(left):
    told = {"chat completions": {"compatible": True, "reason": "", "left": {}}}
    tried = Finding("ok", "fastdeploy", "equal", "", "", data={"api": told, "api_left": left})
    return api_side(Finding("info", "fastdeploy", "api", "", "on", data={"active": True}), [tried])


def test_the_doctor_says_what_is_left():
    found = verdicts({"the texts of new tokens": "no module"})
    assert found.severity == "ok"
    assert found.seen.endswith("(chat completions); left to FastDeploy: the texts of new tokens (no module)")
    assert found.data["left"] == {"the texts of new tokens": "no module"}
    assert "left to" not in verdicts({}).seen

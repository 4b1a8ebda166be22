"""Which parts of the API side are put in, and who is told of those that are not."""

import importlib
import logging
from types import SimpleNamespace

import pytest

from fd_postproc.doctor.findings import Finding
from fd_postproc.doctor.trial import api_side
from fd_postproc.fastdeploy.api import entry
from fd_postproc.fastdeploy.api.parts import PARTS, put_in
from tests.lib.paths import ROOT

OTHER = SimpleNamespace(EngineClient=SimpleNamespace(check_model_weight_status=lambda client: client.other))


@pytest.mark.parametrize("name", PARTS)
def test_a_module_of_another_kind_keeps_its_own(name):
    """Its reason is said in words; nothing is raised, and nothing put in."""
    module = SimpleNamespace()
    assert put_in(name, module)
    assert vars(module) == {}


@pytest.mark.parametrize("name", PARTS)
def test_each_part_is_in_the_guides_table(name):
    assert f"| `api {name}` |" in (ROOT / "docs" / "fastdeploy.md").read_text()
    assert callable(importlib.import_module(f"fd_postproc.fastdeploy.api.{name}").install)


def test_the_reason_is_logged_and_the_gauge_set(caplog):
    prometheus_client = pytest.importorskip("prometheus_client")
    with caplog.at_level(logging.INFO):
        entry._put_in("weights", OTHER)
    assert "leaves the look at the weights' state to FastDeploy: it looks at something else" in caplog.text
    assert prometheus_client.REGISTRY.get_sample_value("fd_postproc_quick_way", {"way": "api weights"}) == 0


def verdicts(left):
    told = {"chat completions": {"compatible": True, "reason": "equal in 9 answers"}}
    tried = Finding("ok", "fastdeploy", "equal", "", "", data={"api": told, "api_left": left})
    return api_side(Finding("info", "fastdeploy", "api", "", "on", data={"active": True}), [tried])


def test_the_doctor_says_what_is_left():
    found = verdicts({"the texts of new tokens": "no module"})
    assert found.severity == "ok"
    assert found.seen.endswith("9 answers); left to FastDeploy: the texts of new tokens (no module)")
    assert found.data["left"] == {"the texts of new tokens": "no module"}
    assert "left to" not in verdicts({}).seen

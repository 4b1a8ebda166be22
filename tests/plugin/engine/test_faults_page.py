"""docs/faults.md is what a run shows, explain knows its codes, and worker-sim's faults are all there."""

import re
import subprocess
import sys

import pytest

from fd_postproc.cli.misbehaviour import FAULTS as SIMULATED
from fd_postproc.explain.findings import CODES
from fd_postproc.fastdeploy.engine.liveness import REASONS
from tests import record_faults
from tests.lib.faults import FAULTS
from tests.lib.paths import ROOT

pytestmark = pytest.mark.framework

PAGE = record_faults.PAGE.read_text()
ROW = re.compile(r"^\| \[(.*)\]\(#([\w-]+)\) \| (.*) \| (.*) \| (.*) \| `([\w-]+)`: .+ \|$", re.M)


def test_every_fault_has_its_row_and_section():
    rows = {name: (title, reason, code) for title, name, _, reason, _, code in ROW.findall(PAGE)}
    assert [*rows] == [fault.name for fault in FAULTS]
    for fault in FAULTS:
        said = f"`{fault.reason}`" if fault.reason else "-"
        assert rows[fault.name] == (fault.title, said, fault.code)
        assert f"\n## {fault.name}\n" in PAGE
        assert fault.remedy in PAGE


def test_the_page_has_all_that_a_worker_can_simulate():
    assert {*SIMULATED} <= {fault.name for fault in FAULTS}
    for name in SIMULATED:
        assert f"--fault {name}`" in PAGE


def test_codes_and_reasons_exist():
    """Those that need no stage but a special FastDeploy, or have been played elsewhere, are named here."""
    played = {fault.code for fault in FAULTS}
    also = {
        code
        for codes in re.findall(r"also says (.*)$", PAGE, re.M)
        for code in re.findall(r"`([\w-]+)`", codes)
    }
    assert played | also <= {*CODES}
    assert {*CODES} - played - also == {
        *("lost-step", "failed-request", "stood-aside", "send-failed", "slow-sends", "left"),
        *("unhealthy", "damaged"),
    }
    assert {fault.reason for fault in FAULTS} - {None} == {*REASONS}


@pytest.mark.nightly
def test_a_run_bears_the_page_out():
    command = [sys.executable, "-m", "tests.record_faults", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_what_a_run_must_show():
    from tests.lib.fault_stage import Outcome

    fault = FAULTS[0]
    told = {"findings": [{"code": fault.code, "text": "it is"}]}
    assert record_faults.wrong(fault, Outcome(told, fault.reason, 4.0)) == ""
    assert "could not" in record_faults.wrong(fault, Outcome(told, fault.reason, 4.0, error="no"))
    assert "does not name" in record_faults.wrong(fault, Outcome({}, fault.reason, 4.0))
    assert "healthy says" in record_faults.wrong(fault, Outcome(told, None))
    assert "took 6" in record_faults.wrong(fault, Outcome(told, fault.reason, 6.0))

"""docs/faults.md is what a run shows, explain knows its codes, and a worker's faults are all there."""

import re
import subprocess
import sys

import pytest

from fd_postproc.faults import FAULTS as WORDS
from fd_postproc.faults import HEALTH
from tests import record_faults
from tests.lib.faults import FAULTS
from tests.lib.paths import ROOT
from tests.lib.simulated_worker import FAULTS as SIMULATED

pytestmark = pytest.mark.framework

PAGE = record_faults.PAGE.read_text()


def test_every_fault_has_its_rows():
    rows, _ = record_faults.invariants(PAGE)
    assert [*rows] == [fault.name for fault in FAULTS]
    for fault in FAULTS:
        said = f"`{fault.reason}`" if fault.reason else "-"
        assert rows[fault.name] == (fault.title, said, fault.code)
        assert f"\n| `{fault.name}` | {record_faults.cell(fault.remedy)} | " in PAGE


def test_the_page_has_all_that_a_worker_can_simulate():
    assert {*SIMULATED} <= {fault.name for fault in FAULTS}
    for name in SIMULATED:
        assert f"--fault {name}`" in PAGE


def test_codes_and_reasons_exist():
    """Those that need no stage but a special FastDeploy, or have been played elsewhere, are named here."""
    played = {fault.code for fault in FAULTS}
    last_cells = re.findall(r"^\| `.*\| ([^|]*) \|$", PAGE.partition("## What")[0], re.M)
    also = {code for cell in last_cells for code in re.findall(r"`([\w-]+)`", cell)}
    assert played | also <= {*WORDS}
    assert {*WORDS} - played - also == {
        *("lost-step", "failed-request", "stood-aside", "send-failed", "slow-sends", "left"),
        *("damaged", "send-stuck"),
    }
    # That the engine's process is gone is the word of the API server's gauge.
    assert {fault.reason for fault in FAULTS} - {None} == {*HEALTH} - {"engine"}


def test_the_page_has_the_rules_of_evidence():
    assert PAGE.endswith("\n".join(record_faults.evidence()) + "\n")
    assert len(re.findall(r"^\| `[\w-]+`( \(\*\))? \| \w+ \|", PAGE, re.M)) == len(WORDS)


def test_a_check_compares_what_does_not_vary():
    other = PAGE.replace("many steps come at once", "few steps come at once")
    assert record_faults.differing(PAGE, PAGE) == []
    assert record_faults.differing(PAGE, other)
    assert record_faults.differing(PAGE, PAGE.replace("| `silent` |", "| - |"))
    assert record_faults.differing(PAGE, PAGE.replace("| `burst` |", "| `slower` |"))
    assert not record_faults.differing(PAGE, PAGE.replace("`queue-backlog`, ", ""))
    assert not record_faults.differing(PAGE, PAGE.replace("unhealthy (silent)", "something else"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("process 7 sent 1,024 bytes in 2.5 s", "process N sent N bytes in N s"),
        ("faults.py:12 (_refuse)", "faults.py:N (_refuse)"),
        ("slots 4, 5, 6 of fd_postproc 0x1234567", "slots N of fd_postproc N"),
    ],
)
def test_numbers_are_not_on_the_page(text, shown):
    assert record_faults.settled(text) == shown


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

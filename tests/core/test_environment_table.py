"""The one table of environment variables: defaults, checks, and what the page says of them."""

import re
import subprocess

import pytest

from fd_postproc.doctor.environment import check_environment
from fd_postproc.environment import VARIABLES, Variable
from tests.lib.paths import ROOT

PAGE = (ROOT / "docs" / "environment.md").read_text()
ROWS = {name: default for name, _, default in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", PAGE, re.M)}


@pytest.mark.parametrize("name", VARIABLES)
def test_the_page_says_the_same_default(name):
    default = VARIABLES[name].default
    assert ROWS[name].strip("`").split(" ")[0] == default if default else name in ROWS


@pytest.mark.parametrize("name", VARIABLES)
def test_nothing_means_the_default(name, monkeypatch):
    variable = VARIABLES[name]
    monkeypatch.delenv(name, raising=False)
    usual = variable.value
    monkeypatch.setenv(name, "")
    assert variable.value == usual
    if variable.default:
        monkeypatch.setenv(name, variable.default)
        assert variable.value == usual


def test_every_variable_of_ours_in_the_sources_is_in_the_table():
    """Nowhere but in the table is one named, but for C, which looks up names that Python gives it."""
    files = subprocess.run(
        ["git", "ls-files", "fd_postproc", "cuda", "setup.py"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    if not files:
        pytest.skip("no checkout")
    named = set()
    for file in files:
        if file.endswith((".py", ".pyx", ".pxi")) and (ROOT / file).exists():
            named |= set(re.findall(r"\bFD_POSTPROC_[A-Z0-9_]+\b", (ROOT / file).read_text()))
    assert named <= set(VARIABLES)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("INFERENCE_MSG_QUEUE_ID", "4294967296"),
        ("INFERENCE_MSG_ID", "2"),
        ("FD_POSTPROC_PEER", "compact/2"),
        ("FD_POSTPROC_DIALECT", "Compact"),
        ("FD_POSTPROC_QUEUE_MODE", "777"),
        ("FD_POSTPROC_CUDA_BUFFERS", "2"),
        ("FD_POSTPROC_CUDA_WAY", "fast"),
        ("FD_POSTPROC_LOG_STATS", "-1"),
        ("FD_POSTPROC_GC", "perhaps"),
        ("ENABLE_V1_KVCACHE_SCHEDULER", "yes"),
    ],
)
def test_a_value_that_means_nothing(name, bad, monkeypatch):
    monkeypatch.setenv(name, bad)
    with pytest.raises(ValueError, match=re.escape(f"{name}={bad!r} ")):
        _ = VARIABLES[name].value


def test_the_doctor_knows_them_all(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, VARIABLES[name].default or "1")
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    (finding,) = check_environment()
    assert finding.severity == "ok"


def test_a_default_is_checked_as_well():
    with pytest.raises(ValueError):
        Variable("FD_POSTPROC_OF_A_TEST", "perhaps", "is no number", int)
    assert "FD_POSTPROC_OF_A_TEST" not in VARIABLES

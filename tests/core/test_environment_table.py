"""The one table of environment variables: defaults, checks, and what the page says of them."""

import re
import subprocess

import pytest

from fd_postproc.doctor.environment import check_environment
from fd_postproc.support.environment import VARIABLES, Switch, Variable, is_on, settle_switches
from tests.lib.paths import ROOT
from tests.lib.rows import each

PAGE = (ROOT / "docs" / "environment.md").read_text()
ROWS = {name: default for name, _, default in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", PAGE, re.M)}
SWITCHES = {name: one for name, one in VARIABLES.items() if isinstance(one, Switch)}


@each("name", VARIABLES)
def test_the_page_says_the_same_default(name):
    default = VARIABLES[name].default
    assert ROWS[name].strip("`").split(" ")[0] == default if default else name in ROWS
    assert f"| `{name}` | switch |" in PAGE or name not in SWITCHES


@each("name", VARIABLES)
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


SAFELY_ON = {"FD_POSTPROC_DISABLE", "FD_POSTPROC_CHECKSUM", "FD_POSTPROC_KEEP_POLLING"}
YES = {"1": "0", "true": "false", "TRUE": "FALSE", "yes": "no", " Yes ": " No ", "on": "off", "On": "Off"}


@each("name", SWITCHES)
def test_every_switch_understands_the_same_words(name, monkeypatch):
    for yes, no in YES.items():
        for word, expected in (yes, True), (no, False):
            monkeypatch.setenv(name, word)
            assert (SWITCHES[name].value, is_on(SWITCHES[name])) == (expected, expected), word


@each("name", SWITCHES)
def test_an_unreadable_switch_is_said_and_has_its_safe_meaning(name, monkeypatch):
    safe = name in SAFELY_ON
    for word in "perhaps", "2", "-1", "tru", "nein", "0.0", " ":
        monkeypatch.setenv(name, word)
        neither = f"{name}={word!r} is neither yes (1, true, yes, on) nor"
        with pytest.raises(ValueError, match=re.escape(neither)):
            _ = SWITCHES[name].value
        assert is_on(SWITCHES[name]) is safe
        (found,) = check_environment()
        assert (found.severity, found.subject) == ("error", name)
        assert f"the plug-in takes it for {'yes' if safe else 'no'}" in found.seen
        (said,) = settle_switches()
        assert said.startswith(f"{name}={word!r} is neither")
        assert SWITCHES[name].value is safe  # readable from now on, also for C and for child processes
        assert settle_switches() == []


@each(
    "written, meant",
    [
        ("FD_POSTPROC_DISABEL", "; FD_POSTPROC_DISABLE was perhaps meant"),
        ("fd_postproc_disable", "; FD_POSTPROC_DISABLE was perhaps meant"),
        ("FD_POSTPROC_CHECKSUMS", "; FD_POSTPROC_CHECKSUM was perhaps meant"),
        ("FD_POSTPROC_FLIGHT_TOKEN", "; FD_POSTPROC_FLIGHT_TOKENS was perhaps meant"),
        ("FD_POSTPROC_QQQQQQQQQQQQQQQQQQQQQQQQQQQ", ""),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(written, meant, monkeypatch):
    monkeypatch.setenv(written, "1")
    expected = f"is not a variable of fd_postproc: it has no effect{meant}"
    (found,) = check_environment()
    assert (found.severity, found.code, found.seen) == ("warning", "variable-unknown", expected)
    assert settle_switches() == [f"{written} {expected}"]


def test_the_doctor_knows_them_all(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.setenv(name, VARIABLES[name].default or "1")
    monkeypatch.setenv("FD_POSTPROC_PEER", "compact/1")
    (tmp_path / "known.json").write_text('{"a seam": {"x": "0123456789 abcdefabcd+"}}')
    monkeypatch.setenv("FD_POSTPROC_KNOWN", str(tmp_path / "known.json"))
    (finding,) = check_environment()
    assert finding.severity == "ok"


def test_a_default_is_checked_as_well():
    with pytest.raises(ValueError):
        Variable("FD_POSTPROC_OF_A_TEST", "perhaps", "is no number", int)
    assert "FD_POSTPROC_OF_A_TEST" not in VARIABLES

"""The suite's own machinery where it would fail silently: quarantine, and what a test leaves behind."""

import os
import subprocess

from tests.lib.children import python
from tests.lib.paths import ROOT
from tests.lib.waiting import PATIENCE

PLUGINS = """
pytest_plugins = ["tests.lib.marks", "tests.lib.leaks"]
def pytest_configure():
    from tests.lib import leaks
    leaks.GRACE_S = 0.1
"""
CONFIGURATION = "[pytest]\nmarkers =\n    realtime:\n    nightly:\n    quarantine:\n"
QUARANTINE = """
import pytest
@pytest.mark.parametrize("number", range(2))
@pytest.mark.quarantine("2026-01-{day:02}", "the reason")
def test_it(number): raise Exception
"""
LEAVES = """
import os, subprocess, threading, time
import pytest, sysv_ipc
THREAD = "threading.Thread(target=threading.Event().wait, name='left', daemon=True).start()"
CHILD = r"global child; os.symlink('/bin/sleep', b'\\xff'); child = subprocess.Popen([b'./\\xff', '1000'])"
VARIABLE = "os.environ['LEFT'] = 'it'; del os.environ['HOME']"
QUEUE = "sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX).send(b'it')"

@pytest.mark.parametrize("what", [THREAD, CHILD, VARIABLE, QUEUE])
def test_it(what):
    exec(what)

def test_none_is_left():
    assert "LEFT" not in os.environ and "HOME" in os.environ and child.poll() is not None
"""
QUARANTINES = {f"{day:02}": QUARANTINE.format(day=day) for day in range(11, 0, -1)} | {
    "good": "def test_it(): pass",
    "unsaid": "import pytest\n@pytest.mark.quarantine('today', 'it')\ndef test_it(): raise Exception",
}


def test_ten_are_in_quarantine_and_a_leak_is_its_own_tests_failure(tmp_path):
    (tmp_path / "conftest.py").write_text(PLUGINS)
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    for name, code in {"leaves": LEAVES, **QUARANTINES}.items():
        (tmp_path / f"test_{name}.py").write_text(code)
    code = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    told = subprocess.run(
        python(code, "-p", "no:cacheprovider", "-q", tmp_path),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    ).stdout
    assert "3 failed, 6 passed, 20 deselected, 4 errors" in told, told
    assert "10 in quarantine, of 10 at most" in told
    assert "test_11.py::test_it[1]" in told
    assert "days: test_10.py::test_it: the reason" in told
    for left in "thread left", "child process ", "variable HOME, variable LEFT", "queue 0x":
        assert f"the test left behind: {left}" in told

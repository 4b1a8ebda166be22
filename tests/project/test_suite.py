"""The suite's own machinery: crashed processes, marks, leaks, hangs, in a small suite of its own."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.lib.children import python
from tests.lib.paths import ROOT
from tests.lib.waiting import PATIENCE

PLUGINS = """
pytest_plugins = ["tests.lib.marks", "tests.lib.crashes", "tests.lib.leaks"]
def pytest_configure():
    from tests.lib import leaks
    leaks.GRACE_S = 0.1
"""
CONFIGURATION = "[pytest]\nmarkers =\n    realtime:\n    nightly:\n    quarantine:\n"
FORKED = """
import os, pathlib, signal
def test_it():
    if (child := os.fork()) == 0:
        signal.pause()
    (pathlib.Path(__file__).parent / "child").write_text(str(child))
    os._exit(1)
"""


@pytest.fixture
def run(tmp_path):
    """A function that runs files of tests, code by name, in so many processes: what pytest tells."""
    (tmp_path / "conftest.py").write_text(PLUGINS)
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)

    def run(processes, *options, **files):
        for name, code in files.items():
            (tmp_path / f"test_{name}.py").write_text(code)
        code = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
        arguments = ["-p", "no:cacheprovider", "-n", processes, "--dist", "loadfile", "-q", *options]
        with open(tmp_path / "stderr", "w") as stderr:  # which a forked child has, too: no pipe
            done = subprocess.run(
                python(code, "-p", "xdist", *arguments, tmp_path),
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                timeout=PATIENCE,
            )
        return done.stdout + Path(tmp_path, "stderr").read_text()

    return run


ORDERED = """
import os, pathlib, time, warnings
import pytest

def log(name):
    with open(pathlib.Path(__file__).with_name("log"), "a") as file:
        file.write(f'["{{name}}", {{os.getpid()}}, {{time.monotonic()}}]\\n')

@pytest.mark.realtime
def test_late():
    warnings.warn("of no harm here")
    log("realtime begins")
    time.sleep(0.1)
    log("realtime ends")

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    time.sleep(0.01)
    log("other ends")
"""


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


HANGS = """
import pytest, threading
def wait_for_ever(): threading.Event().wait()
def test_it(subtests):
    with subtests.test("a row that fails takes no limit away"):
        raise ValueError
    wait_for_ever()
@pytest.mark.realtime
def test_that_needs_real_time(): threading.Event().wait(3)
"""
QUARANTINES = {f"{day:02}": QUARANTINE.format(day=day) for day in range(11, 0, -1)} | {
    "good": "def test_it(): pass",
    "unsaid": "import pytest\n@pytest.mark.quarantine('today', 'it')\ndef test_it(): raise Exception",
}


def _in_order(folder, sizes):
    """Whether the realtime tests, one a file, ran after all others, in one process."""
    entries = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    names = [name for name, _, _ in sorted(entries, key=lambda entry: entry[2])]
    assert names == ["other ends"] * sum(sizes) + ["realtime begins", "realtime ends"] * len(sizes)
    return len({process for name, process, _ in entries if name != "other ends"}) == 1


def test_in_one_process(run, tmp_path):
    """Realtime tests are last and may warn, ten are in quarantine, a leak is its own test's failure."""
    told = run(0, "-W", "error", ordered=ORDERED.format(tests=3), leaves=LEAVES, **QUARANTINES)
    assert _in_order(tmp_path, [3])
    assert "3 failed, 10 passed, 20 deselected, 1 warning, 4 errors" in told, told
    assert "10 in quarantine, of 10 at most" in told
    assert "test_11.py::test_it[1]" in told
    assert "days: test_10.py::test_it: the reason" in told
    for left in "thread left", "child process ", "variable HOME, variable LEFT", "queue 0x":
        assert f"the test left behind: {left}" in told


@pytest.mark.nightly
def test_a_hang_is_told(run, tmp_path):
    """What it says in time is the test's name and where it hangs; one that needs real time has more of it.

    A child that the process has forked does not keep the run waiting.
    """
    try:
        options = "-o", "faulthandler_timeout=1", "-o", "faulthandler_exit_on_timeout=true"
        told = run(2, *options, hangs=HANGS, forked=FORKED)
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert "3 failed, 1 passed" in told, told
    assert "test_hangs.py::test_it" in told
    assert "in wait_for_ever" in told

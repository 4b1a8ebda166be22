"""Processes of the suite that end in the middle of a test: that test fails, and all others are run."""

import os
import signal
import subprocess

from tests.lib.children import python
from tests.lib.crashes import Scheduling
from tests.lib.paths import ROOT
from tests.lib.waiting import PATIENCE

PLUGINS = 'pytest_plugins = ["tests.lib.crashes"]\n'
FILE = """
import os, pytest
@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    if number == {fatal}:
        os._exit(1)
"""
FORKED = """
import os, pathlib, signal
def test_it():
    if (child := os.fork()) == 0:
        signal.pause()
    (pathlib.Path(__file__).parent / "child").write_text(str(child))
    os._exit(1)
"""


def _run(folder, processes, sizes, fatal):
    """Run so many files of tests, each of a size; the third test of a `fatal` size ends its process."""
    for place, tests in enumerate(sizes):
        path = folder / f"test_{place:02}.py"
        path.write_text(FILE.format(tests=tests, fatal=2 if tests == fatal else -1))
    if not (folder / "conftest.py").exists():
        (folder / "conftest.py").write_text(PLUGINS)
    run = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-p", "xdist", "-p", "no:cacheprovider", "-n", processes, "--dist", "loadfile", "-q"]
    return subprocess.run(
        python(run, *options, f"--rootdir={folder}", folder),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # which a forked child has, too
        text=True,
        timeout=PATIENCE,
    ).stdout


def test_the_others_are_run_and_the_run_ends(tmp_path):
    """The files that the process has done are no work for another."""
    sizes = [*range(20, 8, -1), 8, *range(7, 1, -1)]
    told = _run(tmp_path, 2, sizes, fatal=8)
    assert f"1 failed, {sum(sizes) - 1} passed" in told, told
    assert "test_12.py::test_it[2]" in told


def test_a_process_that_has_not_said_what_its_tests_are_gets_none():
    """Another one may end meanwhile, whose files are handed out anew."""
    scheduling, file = Scheduling.__new__(Scheduling), {"test_it": False}
    scheduling.workqueue, scheduling.registered_collections = {"file": file}, {}
    scheduling._reschedule(object())
    assert scheduling.workqueue == {"file": file}


def test_a_child_that_it_forked_does_not_keep_the_run_waiting(tmp_path):
    (tmp_path / "test_forked.py").write_text(FORKED)
    try:
        told = _run(tmp_path, 2, [3, 2], fatal=0)
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert "1 failed, 5 passed" in told, told

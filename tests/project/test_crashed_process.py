"""A process of the suite that ends in the middle of a test: one test fails, and all others are run."""

import os
import subprocess

from tests.lib.children import python
from tests.lib.paths import ROOT

FILE = """
import os, pytest
@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    if number == {fatal}:
        os._exit(1)
"""
LONGEST_S = 60


def test_the_others_are_run_and_the_run_ends(tmp_path):
    """The files that the process has done are no work for another."""
    sizes = [*range(20, 8, -1), 8, *range(7, 1, -1)]
    for place, tests in enumerate(sizes):
        path = tmp_path / f"test_{place:02}.py"
        path.write_text(FILE.format(tests=tests, fatal=2 if tests == 8 else -1))
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.lib.crashes"]\n')
    run = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-p", "xdist", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", "-q"]
    done = subprocess.run(
        python(run, *options, f"--rootdir={tmp_path}", tmp_path),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert f"1 failed, {sum(sizes) - 1} passed" in done.stdout, done.stdout
    assert "test_12.py::test_it[2]" in done.stdout

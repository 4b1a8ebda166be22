"""Services whose clock is set while they run; see isolated/set_clock.py."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.lib.paths import TESTS
from tests.lib.waiting import PATIENCE

pytestmark = pytest.mark.framework

SCRIPT = TESTS / "isolated" / "set_clock.py"
STEPS = (-3600, -1, 60, 1625, 3600)


@pytest.fixture
def wrong(tmp_path, ops_queue):
    """A function that runs services whose clock is set, and returns what was wrong with any."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    if "LD_PRELOAD" in os.environ:
        pytest.skip("something else is preloaded already")  # a sanitizer, which must come first
    library, clock = tmp_path / "set_clock.so", tmp_path / "clock"
    source = TESTS / "lib" / "set_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    clock.write_bytes(bytes(4096))
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "SET_CLOCK": str(clock),
        "FD_POSTPROC_FLIGHT_FOLDER": str(tmp_path / "flights"),
        "FD_POSTPROC_FLIGHT": "1",
    }

    def run(moments, *steps):
        command = [sys.executable, SCRIPT, moments, *map(str, steps)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        assert len(rows) == len(steps) * len(moments.split(","))
        return [row for row in rows if row[2]]

    return run


def test_a_clock_that_is_set_changes_no_token_and_no_answer(wrong):
    assert wrong("middle", -3600, 3600) == []
    assert wrong("start", 60) == []


@pytest.mark.nightly
def test_at_any_moment_by_any_amount(wrong):
    assert wrong("start,middle,end", *STEPS) == []

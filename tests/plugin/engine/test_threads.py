"""FastDeploy's other threads at work while steps are processed; see isolated/plugin_threads.py.

Without Paddle, so that the sanitizers see it, too.
"""

import os
import subprocess
import sys

import pytest

from tests.lib.paths import TESTS

SCRIPT = TESTS / "isolated" / "plugin_threads.py"
LONG = [
    pytest.param(channel, 8000, seed, marks=pytest.mark.nightly)
    for channel in ("plain", "topk", "spec", "spec_topk")
    for seed in range(3)
]


@pytest.mark.realtime
@pytest.mark.parametrize(("channel", "steps", "seed"), [("spec_topk", 120, 1), *LONG])
def test_other_threads_lose_and_break_nothing(channel, steps, seed):
    """The script compares every token itself."""
    pytest.importorskip("prometheus_client")
    pytest.importorskip("msgpack")
    done = subprocess.run(
        [sys.executable, "-W", "error", SCRIPT, channel, str(steps), str(seed)],
        capture_output=True,
        text=True,
        timeout=900,
        env={"PYTHONMALLOC": "debug", **os.environ},  # notices what is used after it was freed
    )
    assert done.returncode == 0, done.stderr
